// Time that never jumps: as a dependency that tests can hold still (tests/support/fakes/fake_clock.h), and as
// the absl::Time that every deadline, timeout and measurement of the programs is counted in.
//
// Thread safety: thread-safe; every method may be called from any thread.
#pragma once

#include <time.h>

#include <cstdint>

#include "absl/time/time.h"

namespace sluice {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary point; never runs backwards.
  virtual int64_t NowNanos() const = 0;
};

class MonotonicClock final : public Clock {
 public:
  int64_t NowNanos() const override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
};

// The current time for deadlines and durations: what the wall clock said when the process first asked, plus
// the time that has passed since by CLOCK_MONOTONIC. Setting the wall clock (NTP, an administrator, a resumed
// virtual machine) leaves it alone, so a request cannot time out early or late. absl::Now() is for times that
// people or protocols read.
absl::Time SteadyNow();

// Convert a deadline between SteadyNow()'s clock and the wall clock of this moment, for interfaces that take
// or give wall clock times (gRPC). Infinite times stay infinite.
absl::Time ToWallClock(absl::Time steady);
absl::Time FromWallClock(absl::Time wall);

}  // namespace sluice
