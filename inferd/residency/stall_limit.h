// From when on a wait for bytes is counted against the stall limit: only time in which this process waited
// says anything about weightd.
//
// Thread safety: a pure function.
#ifndef SLUICE_INFERD_RESIDENCY_STALL_LIMIT_H_
#define SLUICE_INFERD_RESIDENCY_STALL_LIMIT_H_

#include "absl/time/time.h"

namespace sluice {

// A wait that should have ended at `until` ended at `now`; it was counted from `since` on. If it ended so
// late that the process was stopped meanwhile (a suspended machine, a frozen cgroup, a debugger), which
// weightd was too or has made up for by now, counting begins again.
inline absl::Time CountedFrom(absl::Time since, absl::Time until, absl::Time now) {
  constexpr absl::Duration kStopped = absl::Seconds(1);  // no scheduler keeps a thread away for so long
  return now > until + kStopped ? now : since;
}

}  // namespace sluice

#endif  // SLUICE_INFERD_RESIDENCY_STALL_LIMIT_H_
