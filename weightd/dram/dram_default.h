// The memory budget when nobody names one.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

class Pack;

// All of `packs`, each model once however often it is named, and at least their dense extents with one
// session's minimum of `threads` compute threads; but at most 70 % of `usable` bytes of memory, as the rest
// of the machine needs some too.
uint64_t DefaultDramBudget(const std::vector<const Pack*>& packs, uint32_t threads, uint64_t usable);

}  // namespace sluice
