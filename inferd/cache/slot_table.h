// Table of the experts in a slab's slots, and choice of the slot for another expert. Flat arrays, pure
// bookkeeping: it is independent of requests and bytes, and calls the policy only for a victim.
//
// A slot is free, being filled, ready or lost (weightd owns its bytes until it is known to be dead). Ready
// experts leave only through TakeSlot(). Rules, in this order:
// for a demand: an expert of the layer's own if it is at its quota; else a free slot; else one that another
// layer holds beyond its quota; else, for guaranteed progress, any evictable one.
// for a prefetch: a free slot, one beyond a quota, one of the layer's own.
// for a stream (a layer that uses more experts than it may keep, as prefill does): an expert that passed
// before it, a free slot, one beyond a quota; while two of the layer's experts are passing it waits for them.
// So the experts that the layer keeps survive.
// No expert is evicted that the current layer has yet to compute (pinned), nor one that was prefetched for a
// layer which has not run since (fresh), unless nothing else would be left for a demand. No slot is reused
// before its last queued reader is done.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/policy/slot_eviction.h"
#include "kernels/backend.h"

namespace sluice::inferd {

enum class SlotState : uint8_t { kFree = 0, kFilling = 1, kReady = 2, kLost = 3 };

struct Slot {
  uint64_t offset = 0;   // in the slab
  uint64_t request = 0;  // kFilling: the transfer's id; 0: it failed, `joined` has not ended
  uint64_t joined = 0;   // a prefetch of the same bytes, coalesced with a demand; the slot is
                         // not reused before its end
  Event last_use;        // behind the last queued reader
  uint32_t layer = 0;
  uint32_t expert = 0;
  SlotState state = SlotState::kFree;
  bool pinned = false;      // the current layer has yet to compute it
  bool fresh = false;       // predicted, its layer has not run since
  bool prefetched = false;  // taken for a prefetch, and not demanded by its layer since
  bool passing = false;     // of a layer that streamed more experts than it may keep: evicted first
  uint16_t size_class = 0;
};

class SlotTable {
 public:
  static constexpr uint32_t kNoSlot = 0xffffffffu;
  // Index of the victim in a list of the layer's experts; at least the list's size: none.
  using Victim = absl::FunctionRef<uint32_t(uint32_t layer, absl::Span<const uint32_t> experts)>;
  enum class For : uint8_t { kDemand, kPrefetch, kStream };

  // `queue`: runs the events; outlives the table. Null: every reader of a slot is done.
  explicit SlotTable(const SlabPlan& plan, Queue* queue = nullptr);

  // The expert's slot, being filled or ready; kNoSlot if it has none.
  uint32_t Find(uint32_t layer, uint32_t expert) const { return slot_of_[Place(layer, expert)]; }
  bool IsReady(uint32_t layer, uint32_t expert) const {
    const uint32_t slot = Find(layer, expert);
    return slot != kNoSlot && slots_[slot].state == SlotState::kReady;
  }
  // True if no queued work reads the slot any more.
  bool IsIdle(uint32_t index) const { return queue_ == nullptr || queue_->IsDone(slots_[index].last_use); }
  // All work that may read any expert of the layer was queued before `used`.
  void SetUsed(uint32_t layer, Event used);
  Slot& slot(uint32_t index) { return slots_[index]; }
  const Slot& slot(uint32_t index) const { return slots_[index]; }
  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t ready(uint32_t layer) const { return ready_[layer]; }
  // A number that no table had for the state of the layer's ready slots before: of its last SetReady().
  uint64_t filled(uint32_t layer) const { return filled_[layer]; }
  uint32_t filling() const { return filling_; }
  uint64_t evictions() const { return evictions_; }

  // Allocates a slot for the expert, in state kFilling. kNoSlot: nothing may be evicted now. REQUIRES: it has
  // none.
  uint32_t TakeSlot(uint32_t layer, uint32_t expert, For purpose, Victim victim);
  // The bytes have arrived. REQUIRES: kFilling.
  void SetReady(uint32_t index);
  // Empties the slot.
  void SetFree(uint32_t index);
  // Marks every slot being filled as lost; lost slots become free.
  void LoseFilling();
  void FreeLost();

  // The layer has been computed: experts beyond its quota are evicted. None of its experts is fresh or pinned
  // any more.
  void TrimLayer(uint32_t layer, Victim victim);
  // Number of the layer's slots with experts of `size_class`, being filled or ready.
  uint32_t held(uint32_t layer, uint32_t size_class) const {
    return held_[uint64_t{layer} * classes_.size() + size_class];
  }
  uint32_t quota(uint32_t layer, uint32_t size_class) const { return classes_[size_class].quota[layer]; }
  uint16_t class_of(uint32_t layer, uint32_t expert) const { return class_of_[Place(layer, expert)]; }
  // Maximum number of experts that the layer may keep, over all classes.
  uint32_t quota(uint32_t layer) const;

 private:
  // Experts that qualify as victims.
  enum class Tier : uint8_t { kPassing, kUsual, kAny, kTrim };  // kTrim: kAny, even with readers

  uint64_t Place(uint32_t layer, uint32_t expert) const { return first_expert_[layer] + expert; }
  uint32_t Experts(uint32_t layer) const {
    return static_cast<uint32_t>(first_expert_[layer + 1] - first_expert_[layer]);
  }
  uint32_t& Held(const Slot& slot) { return held_[uint64_t{slot.layer} * classes_.size() + slot.size_class]; }
  bool OverQuota(uint32_t layer, uint16_t size_class) const {
    return held(layer, size_class) > quota(layer, size_class);
  }
  void SetState(uint32_t index, SlotState state);
  uint32_t FindFree(uint16_t size_class) const;
  uint32_t VictimOf(uint32_t layer, uint16_t size_class, Tier tier, Victim victim);
  uint32_t VictimOfOthers(uint32_t layer, uint16_t size_class, bool over_quota, Tier tier, Victim victim);
  uint32_t ChooseUsual(uint32_t layer, uint16_t size_class, For purpose, Victim victim);
  uint32_t Choose(uint32_t layer, uint16_t size_class, For purpose, Victim victim);
  uint32_t Passing(uint32_t layer, uint16_t size_class) const;

  Queue* const queue_;
  std::vector<SlotClass> classes_;
  std::vector<uint16_t> class_of_;      // by layer and expert
  std::vector<uint64_t> first_expert_;  // by layer, one more at the end
  std::vector<Slot> slots_;
  std::vector<uint64_t> free_;        // a bit per slot
  std::vector<uint32_t> slot_of_;     // by layer and expert
  std::vector<uint32_t> held_;        // by layer and class
  std::vector<uint32_t> ready_;       // by layer
  std::vector<uint64_t> filled_;      // by layer
  std::vector<uint32_t> candidates_;  // experts
  uint32_t filling_ = 0;
  uint64_t evictions_ = 0;
};

// Connects slots and eviction policy: passes the layers' choices and their routers' scores to the policy, and
// picks victims when the table must evict.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.

class SlotKeeper {
 public:
  // `experts`: by layer. `table` outlives this object.
  SlotKeeper(const SlotEvictionOptions& options, const std::vector<uint32_t>& experts, SlotTable* table);

  bool NeedsScores() const { return policy_.NeedsScores(); }

  // A layer of `experts` experts has chosen these. A layer that streams more than it may keep reports nothing
  // to the policy, so its kept experts stay.
  void BeginLayer(uint32_t layer, absl::Span<const uint32_t> chosen, absl::Span<const float> scores,
                  bool streams);
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
};

// Evicts nothing: for callers that use free slots only.
inline uint32_t NoVictim(uint32_t /*layer*/, absl::Span<const uint32_t> /*experts*/) { return ~0u; }

}  // namespace sluice::inferd
