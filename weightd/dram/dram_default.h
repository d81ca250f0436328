// The default memory budget.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <vector>

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
