// Control tasks that other threads queue for the engine thread, run between two steps while the callers wait:
// steps, which need the weights, and calls, which do not.
//
// Thread safety: thread-safe; RunNext(), FailSteps() and Close() belong to the engine thread.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "inferd/forward/engine_parts.h"

namespace sluice::inferd {

class TaskQueue {
 public:
  // `wake` is called after each queued task, to wake the engine thread.
  explicit TaskQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Both block until the engine thread has run the task. UNAVAILABLE once closed.
  absl::Status RunStep(EngineWork work);
  absl::Status RunCall(std::function<absl::Status()> call);

  // Runs the oldest task, a step by `run_step`; false: no task waits.
  bool RunNext(const std::function<absl::Status(const EngineWork&)>& run_step);
  // Fails the waiting steps.
  void FailSteps(const absl::Status& status);
  // Fails all waiting and future tasks.
  void Close(const absl::Status& status);

 private:
  // A task's fields are guarded by mutex_ before it is taken and after it is done.
  struct ControlTask {
    EngineWork work;                     // a step, or
    std::function<absl::Status()> call;  // a call
    absl::Status status;
    bool done = false;
  };

  absl::Status Await(ControlTask* task);
  void Fail(const absl::Status& status, bool calls_too) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void()> wake_;
  Mutex mutex_;
  CondVar done_;
  std::deque<ControlTask*> tasks_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // OK: open
};

}  // namespace sluice::inferd
