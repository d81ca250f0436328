// Checks that the machine has the memory that a budget promises.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/machine_facts.h"

namespace sluice::weightd {

// Reserve besides the budget for the process's own code, stacks, tables and rings, in bytes.
inline constexpr uint64_t kProcessReserve = 32ull * 1024 * 1024;

// RESOURCE_EXHAUSTED with the four numbers (budget, MemAvailable, cgroup limit, cgroup use) unless `budget`
// and a reserve for the process itself fit.
absl::Status CheckBudget(uint64_t budget, const MemoryFacts& facts);

// Repeats CheckBudget until it passes or `wait_ms` have passed: a predecessor that was just killed may still
// be mapped. `read` and `pause` are replaced in tests.
absl::Status WaitForBudget(uint64_t budget, int wait_ms,
                           const std::function<absl::StatusOr<MemoryFacts>()>& read,
                           const std::function<void(int ms)>& pause);

}  // namespace sluice::weightd

// The default memory budget.
//
// Thread safety: free functions, safe to call from any thread.

namespace sluice {
class Pack;
}  // namespace sluice

namespace sluice::weightd {

// Sizes of a model's weights, in bytes.
struct WeightSizes {
  uint64_t all = 0;    // dense extents and experts
  uint64_t dense = 0;  // in memory as long as a session lives
  uint64_t largest_expert = 0;
};
// The minimum budget of a session with `threads` compute threads: the dense weights and its reserved minimum.
uint64_t MinDramBudget(const WeightSizes& sizes, uint32_t threads);
// All weights, at least the minimum budget, but at most 70 % of `usable` bytes of memory: the rest of the
// machine needs some too.
uint64_t DefaultDramBudget(const WeightSizes& sizes, uint32_t threads, uint64_t usable);

// The same for `packs` together; each model counts once, however often it is named.
uint64_t DefaultDramBudget(const std::vector<const Pack*>& packs, uint32_t threads, uint64_t usable);

}  // namespace sluice::weightd
