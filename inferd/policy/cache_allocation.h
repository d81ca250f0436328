// Numbers of slots that each layer gets of a device's cache: `uniform`, `dp_timed` (AdapMoE 4.4), and
// `layers` (FloE: all experts of the first layers).
//
// Pure functions of the total number of slots, summed over all layers; slots that experts only pass through
// are not part of it. Every result sums to min(total, all experts), and no layer gets more slots than it has
// experts. Layers without experts get none.
//
// Thread safety: plain values and pure functions; StackDistances is thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice::inferd {

// One layer in AdapMoE's cost model (its Table 1).
struct LayerDemand {
  uint32_t experts = 0;          // N
  uint32_t top_k = 0;            // K
  double single_share = 0;       // alpha: share of tokens that use one expert
  double prefetch_accuracy = 0;  // beta: chance that an expert is prefetched rightly
};

// Times of one expert and of the work before a layer, in one unit.
struct LayerTimes {
  double load = 0;     // an expert over the link
  double compute = 0;  // an expert on the device
  double before = 0;   // computing from the prediction to the layer, while its experts travel
};

// Expected delay of a layer against one with all experts resident, for a token that misses `misses` of its K
// experts. Each expert is missing with the same probability, and each missing expert was prefetched correctly
// with probability beta. M missing experts of k, P of them prefetched, delay the layer by max(0, M load -
// min(P load, before) - k compute): while the link works, the layer computes resident experts and each load
// as it lands. A token uses one expert with probability alpha, else K.
double WaitingCost(const LayerDemand& layer, double misses, const LayerTimes& times);

// The same number of slots for each layer; a remainder goes one by one to the first layers. Slots that a
// layer cannot use are divided among the others.
std::vector<uint32_t> AllocateUniform(absl::Span<const uint32_t> experts, uint64_t total);

// The least-cost allocation for costs[layer][slots], slots 0..experts (AdapMoE eq. 16-19). Ties give a layer
// fewer slots, later ones first.
std::vector<uint32_t> AllocateByCost(absl::Span<const std::vector<double>> costs, uint64_t total);

// All experts of the first layers, as far as the total reaches; the layer at the edge gets the rest.
std::vector<uint32_t> AllocateLayers(absl::Span<const uint32_t> experts, uint64_t total);

// A layer's misses by cache size, from one pass over its choices. An access hits in every LRU cache that is
// larger than the number of distinct experts used since the expert's last use (Mattson's stack distance). A
// token's experts are counted against the state before it.
class StackDistances {
 public:
  explicit StackDistances(uint32_t experts);

  // Adds one token's distinct experts; the last of them counts as most recently used. REQUIRES: each <
  // experts.
  void Add(absl::Span<const uint32_t> chosen);

  uint64_t tokens() const { return tokens_; }
  uint64_t accesses() const { return accesses_; }
  uint64_t Hits(uint32_t slots) const;
  // Misses per token at 0, 1, .., experts slots: a row of AllocateByCost.
  std::vector<double> MissCurve() const;

 private:
  std::vector<uint32_t> stack_;  // experts seen, most recently used first
  std::vector<uint64_t> at_;     // [experts]: number of accesses found at this depth
  uint64_t tokens_ = 0;
  uint64_t accesses_ = 0;
};

}  // namespace sluice::inferd
