#include "common/base/clock.h"

#include <chrono>

namespace sluice {
namespace {

// absl::Now() looks at the wall clock every two seconds only.
absl::Time WallNow() { return absl::FromChrono(std::chrono::system_clock::now()); }

absl::Duration SinceBoot() { return absl::Nanoseconds(MonotonicClock().NowNanos()); }

}  // namespace

absl::Time SteadyNow() {
  static const absl::Time boot = WallNow() - SinceBoot();
  return boot + SinceBoot();
}

absl::Time ToWallClock(absl::Time steady) { return WallNow() + (steady - SteadyNow()); }

absl::Time FromWallClock(absl::Time wall) { return SteadyNow() + (wall - WallNow()); }

}  // namespace sluice
