// Chooses the cached expert of a layer that is evicted for another one: pure bookkeeping, shared by the
// devices' slots and by the replay of traces (bench/cache_replay).
//
// Calls of a layer: BeginLayer(scores, chosen), then Victim() for each chosen expert that needs a slot and is
// not resident, then EndLayer(). Experts chosen in this layer are shielded in between: they are no victims
// (importance-driven 5.3).
//
// `lru`: evicts the least recently used expert. Among experts chosen in the same layer, a later one in
// `chosen` counts as used later. `lfru`: evicts the least frequently used one; a use counts half as much
// `half_life` layer passes later. `score`: evicts the one with the lowest mean router probability over the
// last `window` passes, chosen or not. Ties go to the least recently used expert, then to the lower id.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "inferd/policy/policies.h"

namespace sluice::inferd {

struct SlotEvictionOptions {
  SlotEviction kind = SlotEviction::kLru;
  uint32_t score_window = 32;    // passes of a layer; at least 1
  uint32_t lfru_half_life = 64;  // passes of a layer; at least 1
};

class SlotEvictionPolicy {
 public:
  static constexpr uint32_t kNoVictim = 0xffffffffu;

  // `experts`: routed experts by layer, 0 for a layer without.
  SlotEvictionPolicy(const SlotEvictionOptions& options, absl::Span<const uint32_t> experts);

  // Reports the result of the router of `layer`. `scores`: p of every expert, the batch's mean, [experts];
  // may be empty unless NeedsScores(). `chosen`: distinct experts of the layer, in the order of use.
  void BeginLayer(uint32_t layer, absl::Span<const float> scores, absl::Span<const uint32_t> chosen);
  // Ends the layer after its experts were computed: none is shielded any more.
  void EndLayer(uint32_t layer);
  // Index in `candidates` (evictable experts of the layer) of the victim; kNoVictim if every one is shielded.
  uint32_t Victim(uint32_t layer, absl::Span<const uint32_t> candidates) const;

  bool NeedsScores() const { return options_.kind == SlotEviction::kScore; }
  bool Shielded(uint32_t layer, uint32_t expert) const;
  // Mean of the last passes' scores; 0 before the first.
  double MeanScore(uint32_t layer, uint32_t expert) const;

 private:
  struct Use {
    uint64_t last = 0;      // sequence number of the last use over all experts; 0: never used
    uint64_t pass = 0;      // layer pass at which `count` was updated
    double count = 0;       // uses, discounted by age
    uint64_t shielded = 0;  // pass + 1 in which it is shielded
  };
  struct Layer {
    uint64_t first = 0;  // index of its first expert
    uint32_t experts = 0;
    uint64_t passes = 0;    // passes begun
    uint64_t observed = 0;  // passes with scores
    bool open = false;
  };

  bool Before(const Layer& layer, uint32_t a, uint32_t b) const;
  double CountNow(const Layer& layer, const Use& use) const;
  void Observe(const Layer& layer, absl::Span<const float> scores);

  const SlotEvictionOptions options_;
  std::vector<Layer> layers_;
  std::vector<Use> uses_;  // by layer and expert
  uint64_t clock_ = 0;     // uses so far
  // Scores in units of 2^-32, so that sums neither drift nor depend on the order of passes.
  std::vector<uint64_t> sums_;  // by layer and expert, over the last passes
  std::vector<uint32_t> past_;  // [experts of all layers][window], a ring buffer for each expert
};

}  // namespace sluice::inferd
