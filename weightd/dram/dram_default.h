// The memory budget when nobody names one.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

class Pack;

// What weights take, in bytes.
struct WeightSizes {
  uint64_t all = 0;    // dense extents and experts
  uint64_t dense = 0;  // in memory as long as a session lives
  uint64_t largest_expert = 0;
};
// The least budget that a session of `threads` compute threads runs with: the dense weights and its own
// minimum.
uint64_t LeastDramBudget(const WeightSizes& sizes, uint32_t threads);
// All of it, and at least the least budget; but at most 70 % of `usable` bytes of memory, as the rest of the
// machine needs some too.
uint64_t DefaultDramBudget(const WeightSizes& sizes, uint32_t threads, uint64_t usable);

// The same of `packs` together, each model once however often it is named.
uint64_t DefaultDramBudget(const std::vector<const Pack*>& packs, uint32_t threads, uint64_t usable);

}  // namespace sluice
