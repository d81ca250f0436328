// Work of other threads that the engine thread does between two steps while they wait for it: steps of their
// own, which need the weights, and calls, which do not.
//
// Thread safety: thread-safe; RunNext(), FailSteps() and Close() are the engine thread's.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "inferd/engine/parts/model_parts.h"

namespace sluice {

class AsideQueue {
 public:
  // `wake` is called once something has been queued: the engine thread should look.
  explicit AsideQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Block until the engine thread has done it. UNAVAILABLE once closed.
  absl::Status RunStep(EngineWork work);
  absl::Status RunCall(std::function<absl::Status()> call);

  // Does what has waited longest, a step by `run_step`; false: nothing waits.
  bool RunNext(const std::function<absl::Status(const EngineWork&)>& run_step);
  // Ends the steps that wait.
  void FailSteps(const absl::Status& status);
  // Ends all that waits or will come.
  void Close(const absl::Status& status);

 private:
  // Its fields are guarded by mutex_ until it is taken and once it is done.
  struct Aside {
    EngineWork work;                     // a step, or
    std::function<absl::Status()> call;  // a call
    absl::Status status;
    bool done = false;
  };

  absl::Status Await(Aside* aside);
  void Fail(const absl::Status& status, bool calls_too) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void()> wake_;
  Mutex mutex_;
  CondVar done_;
  std::deque<Aside*> asides_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // OK: open
};

}  // namespace sluice
