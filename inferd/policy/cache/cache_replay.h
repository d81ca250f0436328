// Replays a router trace through the cache's decisions without the model: hit rates of the eviction policies
// of a session (slot_eviction.h) and of Belady's oracle, which knows the future.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <cstdint>

#include "inferd/policy/cache/slot_eviction.h"
#include "inferd/policy/trace/trace_file.h"

namespace sluice {

struct ReplayCount {
  uint64_t accesses = 0;
  uint64_t hits = 0;
  double rate() const {
    return accesses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(accesses);
  }
};

// How a token's experts meet the cache. kPinned: hits are judged on the state before the token, its experts
// cannot evict each other (as a session does it), and a better one counts as used later. kSequential: one
// access after the other, best expert first, without a shield. Fewer slots than experts of a token: always
// sequential.
enum class ReplayOrder : uint8_t { kPinned, kSequential };

// One layer's cache of `slots` experts, empty at the start. Every token is a step of its own.
ReplayCount ReplayEviction(const TraceLayer& layer, uint32_t slots, const SlotEvictionOptions& options,
                           ReplayOrder order = ReplayOrder::kPinned);

// The most hits that any choice of victims could have had, order kPinned: the one used again last goes.
ReplayCount ReplayOracle(const TraceLayer& layer, uint32_t slots);

}  // namespace sluice
