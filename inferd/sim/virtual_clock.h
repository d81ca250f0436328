// Virtual time of a modelled device and of the CPU beside it: it advances when work of known cost is done or
// waited for, never by itself, so that the same decisions take the same time on any machine (--clock
// virtual).
//
// Thread safety: one thread (the engine's) advances the clock; any thread may read the time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace sluice::inferd {

// The CPU of the modelled machine, which computes experts in place, one after another.
class VirtualCpu {
 public:
  // Schedules work at the first free time, not before `now`; returns its end time.
  int64_t Run(int64_t now, int64_t nanos) { return free_at_ = std::max(free_at_, now) + nanos; }
  // Sets the time of the CPU's next result: a wait for the link advances the clock no further than that.
  void SetNextResult(int64_t nanos) { next_result_ = nanos; }
  int64_t next_result() const { return next_result_; }

 private:
  int64_t free_at_ = 0;
  int64_t next_result_ = INT64_MAX;
};

class VirtualClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now_.load(std::memory_order_relaxed); }
  void Advance(int64_t nanos) { now_.store(NowNanos() + nanos, std::memory_order_relaxed); }
  void AdvanceTo(int64_t nanos) {
    if (nanos > NowNanos()) {
      now_.store(nanos, std::memory_order_relaxed);
    }
  }
  VirtualCpu& cpu() { return cpu_; }

 private:
  std::atomic<int64_t> now_{0};
  VirtualCpu cpu_;
};

}  // namespace sluice::inferd
