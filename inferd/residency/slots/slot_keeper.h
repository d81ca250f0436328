// Connects slots and eviction policy: passes the layers' choices and their routers' scores to the policy, and
// picks victims when the table must evict.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "inferd/policy/cache/slot_eviction.h"
#include "inferd/residency/slots/slot_table.h"

namespace sluice::inferd {

class SlotKeeper {
 public:
  // `experts`: by layer. `table` outlives this object.
  SlotKeeper(const SlotEvictionOptions& options, const std::vector<uint32_t>& experts, SlotTable* table);

  // Scores of the next layer, of all its experts; copied. Used only by policies that need them.
  bool NeedsScores() const { return policy_.NeedsScores(); }
  void SetScores(absl::Span<const float> scores);

  // A layer of `experts` experts has chosen these. A layer that streams more than it may keep reports nothing
  // to the policy, so its kept experts stay.
  void BeginLayer(uint32_t layer, absl::Span<const uint32_t> chosen, bool streams);
  // A deferred choice: a fully resident layer has used these experts.
  void NoteUse(uint32_t layer, absl::Span<const uint32_t> used);
  // The layer has been computed: experts beyond its quota are evicted.
  void EndLayer(uint32_t layer);

  // SlotTable::Victim.
  uint32_t operator()(uint32_t layer, absl::Span<const uint32_t> experts) const {
    return policy_.Victim(layer, experts);
  }

 private:
  SlotTable* const table_;
  const std::vector<uint32_t> experts_;
  SlotEvictionPolicy policy_;
  std::vector<float> scores_;  // [most experts], of the next layer
};

// Evicts nothing: for callers that use free slots only.
inline uint32_t NoVictim(uint32_t /*layer*/, absl::Span<const uint32_t> /*experts*/) { return ~0u; }

}  // namespace sluice::inferd
