// A clock that only the test moves.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/clock.h"

namespace sluice {

class FakeClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now_.load(); }
  void Advance(int64_t nanos) { now_.fetch_add(nanos); }

 private:
  std::atomic<int64_t> now_{1'000'000'000};
};

}  // namespace sluice
