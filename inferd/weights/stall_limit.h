// Timeout of waits for bytes. Only time in which this process waited counts: neither computing, nor time in
// which the process was stopped.
//
// Thread safety: none; one thread's.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace sluice::inferd {

class StallLimit {
 public:
  explicit StallLimit(absl::Duration limit) : limit_(limit) {}

  // Restarts the timeout: something arrived, or a wait begins at `now`.
  void Restart(absl::Time now) {
    since_ = now;
    due_ = absl::InfiniteFuture();
  }

  // True if nothing arrived within the limit. If the last wait ended so late that the process was stopped
  // meanwhile (a suspended machine, a frozen cgroup, a debugger), which also applies to weightd or is made up
  // for by now, counting restarts.
  bool Exceeded(absl::Time now) {
    constexpr absl::Duration kStopped = absl::Seconds(1);  // no scheduler delays a thread for so long
    if (now > due_ + kStopped) {
      Restart(now);
    }
    return now >= since_ + limit_;
  }

  // End of a wait that begins at `now` and may last until `until`; not before `now`, else the wait would seem
  // to end late. Waits are short: an earlier check tells a stop from waiting.
  absl::Time EndOfWait(absl::Time now, absl::Time until = absl::InfiniteFuture()) {
    constexpr absl::Duration kLongestWait = absl::Seconds(1);
    due_ = std::max(now, std::min({until, since_ + limit_, now + kLongestWait}));
    return due_;
  }

 private:
  absl::Duration limit_;
  absl::Time since_;
  absl::Time due_ = absl::InfiniteFuture();  // planned end of the last wait
};

}  // namespace sluice::inferd
