// Replays a router trace through the cache's decisions without the model: hit rates of a session's eviction
// policies (slot_eviction.h) and of Belady's oracle, which knows the future.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <cstdint>

#include "inferd/policy/router_trace.h"
#include "inferd/policy/slot_eviction.h"

namespace sluice::inferd {

struct ReplayCount {
  uint64_t accesses = 0;
  uint64_t hits = 0;
  double rate() const {
    return accesses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(accesses);
  }
};

// Order in which a token's experts access the cache. kPinned: hits are counted against the state before the
// token, its experts cannot evict each other (as in a session), and a better expert counts as used later.
// kSequential: one access after the other, best expert first, without pinning. With fewer slots than experts
// of a token the order is always sequential.
enum class ReplayOrder : uint8_t { kPinned, kSequential };

// Replays one layer's cache of `slots` experts, empty at the start. Every token is a step of its own.
ReplayCount ReplayEviction(const TraceLayer& layer, uint32_t slots, const SlotEvictionOptions& options,
                           ReplayOrder order = ReplayOrder::kPinned);

// The maximum number of hits over all choices of victims, order kPinned: the expert with the furthest next
// use is evicted.
ReplayCount ReplayOracle(const TraceLayer& layer, uint32_t slots);

}  // namespace sluice::inferd
