// StopGuard: bounds the time of work that cannot be interrupted.
//
// Thread safety: made and destroyed by one thread; `late` runs on the guard's own.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace sluice::weightd {

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
