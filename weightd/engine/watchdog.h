// Watchdogs: ProgressWatch detects a hung pump or disk, StopGuard bounds work that cannot be interrupted.
//
// Thread safety: ProgressWatch is thread-compatible, main's thread owns it; StopGuard as stated below.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace sluice::weightd {

// ProgressWatch: detects from two looks at the store that weightd makes no progress: the pump must have made
// a round since it was last nudged, and the reader must not have been silent for long while reads are in
// flight. Pure.
//
// Thread safety: thread-compatible; main's thread owns it.

// The values compared over time.
struct StoreProgress {
  uint64_t rounds = 0;           // of the pump
  uint64_t reads_reported = 0;   // by the reader
  uint64_t in_flight_bytes = 0;  // bytes of reads that have not been reported, as of the last round
};

class ProgressWatch {
 public:
  // A disk without any answer for this long, with reads in flight, counts as hung. Slow disks answer within
  // seconds, dying ones retry a sector for up to 30 s.
  static constexpr int64_t kReaderTimeoutNanos = 60'000'000'000;

  // The reason why nothing moves; "" when it does. The caller nudges the store after each look, and looks
  // again no sooner than a round can last.
  std::string Look(const StoreProgress& now, int64_t now_nanos);

 private:
  bool looked_ = false;
  StoreProgress last_;
  int64_t reader_moved_nanos_ = 0;
};

// StopGuard: bounds the time of work that cannot be interrupted.
//
// Thread safety: made and destroyed by one thread; `late` runs on the guard's own.
class StopGuard {
 public:
  // Calls `late` once if the guard still exists after the timeout.
  StopGuard(absl::Duration timeout, std::function<void()> late);
  // After this `late` does not run.
  ~StopGuard();
  StopGuard(const StopGuard&) = delete;
  StopGuard& operator=(const StopGuard&) = delete;

 private:
  Mutex mutex_;
  CondVar ended_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // const after construction
};

}  // namespace sluice::weightd
