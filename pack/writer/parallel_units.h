// Units of work on several threads, and their progress.
//
// Thread safety: safe from any thread; stated at each part.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "pack/writer/pack_writer.h"

namespace sluice {

// Runs numbered units of work on several threads until all are done or one fails.
//
// Thread safety: free functions; the work function is called from several threads at once, each with its own
// worker number.

// Number of workers for `units` units: `requested`, or the CPUs of the affinity mask if it is 0; at most 8
// (they saturate every disk measured so far, and each holds a part of an expert in memory), at least 1.
uint32_t WorkerCount(uint32_t requested, uint32_t units);

// Calls work(worker, unit) for every unit below `units`, in ascending order per worker. The first error stops
// the rest and is returned.
absl::Status RunUnits(uint32_t workers, uint32_t units,
                      const std::function<absl::Status(uint32_t worker, uint32_t unit)>& work);

// Counts bytes from several threads and calls a progress function at a bounded rate; carries the cancel flag.
//
// Thread safety: all methods may be called from any thread; the progress function is called by one at a time.
class ProgressMeter {
 public:
  // `progress` may be empty, `cancel` null; both outlive this. `total` is the number of all bytes.
  ProgressMeter(const PackingProgressFn& progress, const std::atomic<bool>* cancel, const char* stage,
                uint64_t total);

  // Adds `bytes` done by this run or (`found`) by an earlier one, which does not count for the rate.
  // Cancelled once the flag is set.
  absl::Status Add(uint64_t bytes, bool found = false) ABSL_LOCKS_EXCLUDED(mutex_);

  void SetStage(const char* stage) ABSL_LOCKS_EXCLUDED(mutex_);
  double seconds() const;

 private:
  void Report() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PackingProgressFn& progress_;
  const std::atomic<bool>* const cancel_;
  const absl::Time start_;
  const uint64_t total_;
  Mutex mutex_;
  const char* stage_ ABSL_GUARDED_BY(mutex_);
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t worked_ ABSL_GUARDED_BY(mutex_) = 0;  // of done_, in this run
  absl::Time next_report_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice
