// How long one waits for bytes before that is an error. Only time in which this process waited says anything
// about weightd: computing does not count, nor does time in which the process was stopped.
//
// Thread safety: none; one thread's.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace sluice {

class StallLimit {
 public:
  explicit StallLimit(absl::Duration limit) : limit_(limit) {}

  // Something came, or what is waited for begins at `now`.
  void Restart(absl::Time now) {
    since_ = now;
    due_ = absl::InfiniteFuture();
  }

  // Whether nothing came for the limit. If the last wait ended so late that the process was stopped meanwhile
  // (a suspended machine, a frozen cgroup, a debugger), which weightd was too or has made up for by now,
  // counting begins again.
  bool Exceeded(absl::Time now) {
    constexpr absl::Duration kStopped = absl::Seconds(1);  // no scheduler keeps a thread away for so long
    if (now > due_ + kStopped) {
      Restart(now);
    }
    return now >= since_ + limit_;
  }

  // When a wait that begins at `now` and may last until `until` has to end; not before `now`, else the wait
  // would look as if it had ended late. None lasts long: an earlier look tells a stop from waiting.
  absl::Time EndOfWait(absl::Time now, absl::Time until = absl::InfiniteFuture()) {
    constexpr absl::Duration kLongestWait = absl::Seconds(1);
    due_ = std::max(now, std::min({until, since_ + limit_, now + kLongestWait}));
    return due_;
  }

 private:
  absl::Duration limit_;
  absl::Time since_;
  absl::Time due_ = absl::InfiniteFuture();  // of the last wait
};

}  // namespace sluice
