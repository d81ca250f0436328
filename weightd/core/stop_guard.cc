#include "weightd/core/stop_guard.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace sluice::weightd {

StopGuard::StopGuard(absl::Duration timeout, std::function<void()> late) {
  thread_ = std::thread([this, end = absl::Now() + timeout, late = std::move(late)] {
    MutexLock lock(&mutex_);
    while (!done_ && absl::Now() < end) {
      // The condition variable adds the duration to its own clock: forever would overflow.
      ended_.WaitFor(&mutex_, absl::ToChronoNanoseconds(std::min(end - absl::Now(), absl::Hours(1))));
    }
    if (!done_) {
      late();
    }
  });
}

StopGuard::~StopGuard() {
  {
    MutexLock lock(&mutex_);
    done_ = true;
  }
  ended_.SignalAll();
  thread_.join();
}

}  // namespace sluice::weightd
