// How many slots each layer gets of a device's cache: `uniform`, `dp`, `dp_measured` and `dp_timed` (AdapMoE
// 4.4), and `layers` (FloE: all experts of the first layers).
//
// Pure functions of a total of slots, counted over all layers; slots that experts only pass through are
// outside of it. Every result sums to min(total, all experts), and no layer gets more slots than it has
// experts. Layers without experts get none.
//
// Thread safety: plain values and pure functions; StackDistances is thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice {

// One layer as AdapMoE's cost sees it (its Table 1).
struct LayerDemand {
  uint32_t experts = 0;          // N
  uint32_t top_k = 0;            // K
  double single_share = 0;       // alpha: share of tokens that use one expert
  double prefetch_accuracy = 0;  // beta: chance that an expert is prefetched rightly
};

// Expected loads on demand of one token at `slots` slots (AdapMoE eq. 10-15). With M missing experts, spread
// as if the cache held any of the N equally likely, a token of K experts costs E[M] without a right prefetch
// and E[max(M - 1, 0)] with one: for K = 2 that is the sum of the paper's eq. 12 to 14, and it is taken for
// K > 2 as it stands.
double DemandCost(const LayerDemand& layer, uint32_t slots);

// Times of one expert and of what comes before a layer, in one unit.
struct LayerTimes {
  double load = 0;     // of an expert over the link
  double compute = 0;  // of it on the device
  double before = 0;   // computing from the prediction to the layer: its experts travel meanwhile
};

// Expected time by which a layer ends later than with all experts resident, if a token misses `misses` of its
// K: each of them is missing with the same chance, and each missing one was prefetched rightly with chance
// beta. M missing ones of k, P of them prefetched, delay it by max(0, M load - min(P load, before) - k
// compute): while the link works the layer computes what is there and each load as it lands. A token has one
// expert with chance alpha, else K.
double WaitingCost(const LayerDemand& layer, double misses, const LayerTimes& times);

// The same number of slots each; a rest that does not divide goes one by one to the first layers. What a
// layer cannot use is divided among the others.
std::vector<uint32_t> AllocateUniform(absl::Span<const uint32_t> experts, uint64_t total);

// The allocation of the least sum of DemandCost (eq. 16-19). Ties give a layer fewer slots, later ones first.
std::vector<uint32_t> AllocateDp(absl::Span<const LayerDemand> layers, uint64_t total);

// The same from costs[layer][slots], slots 0..experts: any measured curve.
std::vector<uint32_t> AllocateByCost(absl::Span<const std::vector<double>> costs, uint64_t total);

// The first layers whole, as far as the total reaches; the layer at the edge gets the rest.
std::vector<uint32_t> AllocateLayers(absl::Span<const uint32_t> experts, uint64_t total);

// A layer's misses by cache size, from one pass over its choices: an access hits in every LRU cache that is
// larger than the number of distinct experts used since (Mattson's stack distance). A token's experts are
// judged on the state before it.
class StackDistances {
 public:
  explicit StackDistances(uint32_t experts);

  // One token's distinct experts, the one to count as used last at the end. REQUIRES: each < experts.
  void Add(absl::Span<const uint32_t> chosen);

  uint64_t tokens() const { return tokens_; }
  uint64_t accesses() const { return accesses_; }
  uint64_t Hits(uint32_t slots) const;
  // Misses per token at 0, 1, .., experts slots: a row of AllocateByCost.
  std::vector<double> MissCurve() const;

 private:
  std::vector<uint32_t> stack_;  // experts seen, latest first
  std::vector<uint64_t> at_;     // [experts]: accesses found at this depth
  uint64_t tokens_ = 0;
  uint64_t accesses_ = 0;
};

}  // namespace sluice
