// Who keeps a slot: passes what layers choose, and their routers' scores, to the eviction policy, and picks
// the victims when the table must give a slot up.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "inferd/policy/cache/slot_eviction.h"
#include "inferd/residency/slots/slot_table.h"

namespace sluice {

class SlotKeeper {
 public:
  // `experts`: by layer. `table` outlives this object.
  SlotKeeper(const SlotEvictionOptions& options, const std::vector<uint32_t>& experts, SlotTable* table);

  // Scores of the layer that begins next, of all its experts; copied. Only policies that ask look at them.
  bool NeedsScores() const { return policy_.NeedsScores(); }
  void SetScores(absl::Span<const float> scores);

  // A layer of `experts` experts has chosen these. One that streams more than it may keep tells the policy
  // nothing: what it kept before is worth keeping still.
  void BeginLayer(uint32_t layer, absl::Span<const uint32_t> chosen, bool streams);
  // A layer whose experts are all there has used these, as was heard afterwards.
  void NoteUse(uint32_t layer, absl::Span<const uint32_t> used);
  // The layer has been computed: what it holds beyond its quota leaves.
  void EndLayer(uint32_t layer);

  // SlotTable::Victim.
  uint32_t operator()(uint32_t layer, absl::Span<const uint32_t> experts) const {
    return policy_.Victim(layer, experts);
  }

 private:
  SlotTable* const table_;
  const std::vector<uint32_t> experts_;
  SlotEvictionPolicy policy_;
  std::vector<float> scores_;  // [most experts], of the layer that begins next
};

// Nobody goes: for who takes free slots only.
inline uint32_t NoVictim(uint32_t /*layer*/, absl::Span<const uint32_t> /*experts*/) { return ~0u; }

}  // namespace sluice
