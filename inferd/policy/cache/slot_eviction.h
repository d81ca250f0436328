// Which of a layer's cached experts makes room for another one: pure bookkeeping, shared by the devices'
// slots and by the replay of traces (bench/cache_replay).
//
// A layer goes: BeginLayer(scores, chosen), then Victim() for each chosen expert that needs a slot and is not
// resident, then EndLayer(). Experts chosen in this layer are shielded in between: they are no victims
// (importance-driven 5.3).
//
// `lru`: the one whose last use is longest ago. Of experts chosen in the same layer the one that stands later
// in `chosen` counts as used later. `lfru`: the one used least often, where a use counts half as much
// `half_life` layer passes later. `score`: the one with the lowest mean router probability over the last
// `window` passes, whether it was chosen or not. Ties go to the one used longest ago, then to the lower id.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "inferd/policy/preset/policy_kinds.h"

namespace sluice {

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

  // The router of `layer` has run. `scores`: p of every expert, the batch's mean, [experts]; may be empty
  // unless NeedsScores(). `chosen`: distinct experts of the layer, in the order of use.
  void BeginLayer(uint32_t layer, absl::Span<const float> scores, absl::Span<const uint32_t> chosen);
  // Its experts have been computed: none is shielded any more.
  void EndLayer(uint32_t layer);
  // The place in `candidates` (experts of the layer that may go) of the one that goes; kNoVictim if every one
  // is shielded.
  uint32_t Victim(uint32_t layer, absl::Span<const uint32_t> candidates) const;

  bool NeedsScores() const { return options_.kind == SlotEviction::kScore; }
  bool Shielded(uint32_t layer, uint32_t expert) const;
  // Mean of the last passes' scores; 0 before the first.
  double MeanScore(uint32_t layer, uint32_t expert) const;

 private:
  struct Use {
    uint64_t last = 0;      // running number of uses over all experts; 0: never
    uint64_t pass = 0;      // of its layer, when `count` was right
    double count = 0;       // uses, those of earlier passes discounted
    uint64_t shielded = 0;  // pass + 1 in which it is
  };
  struct Layer {
    uint64_t first = 0;  // place of its first expert
    uint32_t experts = 0;
    uint64_t passes = 0;    // begun
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
  std::vector<uint64_t> sums_;  // by layer and expert, of the last passes
  std::vector<uint32_t> past_;  // [experts of all layers][window], a ring for each expert
};

}  // namespace sluice
