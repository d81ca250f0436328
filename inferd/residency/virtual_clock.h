// Time of a modelled device: it moves when work of known cost is done or waited for, never by itself, so that
// the same decisions take the same time on any machine (--clock virtual).
//
// Thread safety: one thread moves it (the engine's); any thread may read it.
#ifndef SLUICE_INFERD_RESIDENCY_VIRTUAL_CLOCK_H_
#define SLUICE_INFERD_RESIDENCY_VIRTUAL_CLOCK_H_

#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace sluice {

class VirtualClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now_.load(std::memory_order_relaxed); }
  void Advance(int64_t nanos) { now_.store(NowNanos() + nanos, std::memory_order_relaxed); }
  void AdvanceTo(int64_t nanos) {
    if (nanos > NowNanos()) {
      now_.store(nanos, std::memory_order_relaxed);
    }
  }

 private:
  std::atomic<int64_t> now_{0};
};

}  // namespace sluice

#endif  // SLUICE_INFERD_RESIDENCY_VIRTUAL_CLOCK_H_
