// LiveCalls: the calls under way at all servers, their unread bytes, and the readers that were cut.
//
// Thread safety: thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sluice::inferd {

class LiveCalls {
 public:
  void Enter() ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(&mutex_);
    ++live_;
  }
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(&mutex_);
    if (--live_ == 0) {
      idle_.SignalAll();
    }
  }
  uint64_t calls() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(&mutex_);
    return live_;
  }
  // Waits up to `timeout` until there is no call; true if there is none.
  bool AwaitIdle(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::Time deadline = SteadyNow() + timeout;
    const MutexLock lock(&mutex_);
    while (live_ > 0) {
      const absl::Duration left = deadline - SteadyNow();
      if (left <= absl::ZeroDuration()) {
        return false;
      }
      idle_.WaitFor(&mutex_, absl::ToChronoNanoseconds(std::min(left, absl::Hours(1))));
    }
    return true;
  }

  // Number of bytes that the engine made and readers have not accepted.
  uint64_t unsent_bytes() const { return unsent_.load(std::memory_order_relaxed); }
  // Number of streams cut because of a slow reader, since the start.
  void CountSlowConsumer() { slow_consumers_.fetch_add(1); }
  uint64_t slow_consumers() const { return slow_consumers_.load(); }

 private:
  friend class ServedCall;
  std::atomic<uint64_t> unsent_{0};
  std::atomic<uint64_t> slow_consumers_{0};
  mutable Mutex mutex_;
  uint64_t live_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable CondVar idle_;  // self-synchronised: no call is live
};

}  // namespace sluice::inferd
