// Time as a dependency, so that tests can hold it still (tests/support/fakes/fake_clock.h).
//
// Thread safety: thread-safe; every method may be called from any thread.
#pragma once

#include <time.h>

#include <cstdint>

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

}  // namespace sluice
