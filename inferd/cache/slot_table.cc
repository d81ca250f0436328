#include "inferd/cache/slot_table.h"

#include <algorithm>
#include <atomic>
#include <bit>

namespace sluice::inferd {
namespace {

// Slots of a stream: one being computed and one in flight.
constexpr uint32_t kStreamWidth = 2;

// Unique among all tables of the process.
uint64_t NextNumber() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

SlotTable::SlotTable(const SlabPlan& plan, Queue* queue)
    : queue_(queue), classes_(plan.classes), class_of_(plan.class_of), first_expert_(plan.first_expert) {
  const size_t layers = first_expert_.size();
  first_expert_.push_back(class_of_.size());
  slots_.resize(plan.slots);
  free_.assign(plan.slots / 64 + 1, 0);
  for (uint16_t c = 0; c < classes_.size(); ++c) {
    for (uint32_t i = 0; i < classes_[c].slots; ++i) {
      Slot& slot = slots_[classes_[c].first + i];
      slot.offset = classes_[c].offset + i * classes_[c].bytes;
      slot.size_class = c;
      SetState(classes_[c].first + i, SlotState::kFree);
    }
  }
  slot_of_.assign(class_of_.size(), kNoSlot);
  held_.assign(layers * classes_.size(), 0);
  ready_.assign(layers, 0);
  filled_.assign(layers, 0);
  uint32_t most = 0;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    most = std::max(most, Experts(layer));
  }
  candidates_.reserve(most);
}

uint32_t SlotTable::quota(uint32_t layer) const {
  uint32_t sum = 0;
  for (const SlotClass& c : classes_) {
    sum += c.quota[layer];
  }
  return sum;
}

uint32_t SlotTable::FindFree(uint16_t size_class) const {
  const SlotClass& c = classes_[size_class];
  const uint32_t end = c.first + c.slots;
  for (uint32_t i = c.first; i < end; ++i) {
    const uint64_t bits = free_[i / 64] >> i % 64;
    if (bits == 0) {
      i = (i / 64 + 1) * 64 - 1;
      continue;
    }
    i += static_cast<uint32_t>(std::countr_zero(bits));
    if (i < end && IsIdle(i)) {
      return i;
    }
  }
  return kNoSlot;
}

void SlotTable::SetState(uint32_t index, SlotState state) {
  const uint64_t bit = uint64_t{1} << index % 64;
  slots_[index].state = state;
  free_[index / 64] = state == SlotState::kFree ? free_[index / 64] | bit : free_[index / 64] & ~bit;
}

// The policy's victim among the layer's ready experts of the class: passing ones if there are any, else usual
// ones; kAny: also experts that the policy would keep. Never one that has yet to be computed.
uint32_t SlotTable::VictimOf(uint32_t layer, uint16_t size_class, Tier tier, Victim victim) {
  if (held(layer, size_class) == 0) {
    return kNoSlot;
  }
  const bool any = tier == Tier::kAny || tier == Tier::kTrim;
  for (const bool passing : {true, false}) {
    if (!passing && tier == Tier::kPassing) {
      break;
    }
    candidates_.clear();
    for (uint32_t expert = 0; expert < Experts(layer); ++expert) {
      const uint32_t index = Find(layer, expert);
      if (index == kNoSlot) {
        continue;
      }
      const Slot& slot = slots_[index];
      if (slot.size_class == size_class && slot.state == SlotState::kReady && !slot.pinned &&
          slot.joined == 0 && (!slot.fresh || any) && (slot.passing || !passing) &&
          (tier == Tier::kTrim || IsIdle(index))) {
        candidates_.push_back(expert);
      }
    }
    if (candidates_.empty()) {
      continue;
    }
    uint32_t place = victim(layer, candidates_);
    if (place >= candidates_.size() && (passing || any)) {
      place = 0;  // the policy would keep all of them
    }
    if (place < candidates_.size()) {
      return Find(layer, candidates_[place]);
    }
  }
  return kNoSlot;
}

// Searches the layers backwards from `layer`: those are needed last.
uint32_t SlotTable::VictimOfOthers(uint32_t layer, uint16_t size_class, bool over_quota, Tier tier,
                                   Victim victim) {
  const uint32_t layers = static_cast<uint32_t>(ready_.size());
  for (uint32_t back = 1; back < layers; ++back) {
    const uint32_t other = (layer + layers - back) % layers;
    if (!over_quota || OverQuota(other, size_class)) {
      const uint32_t index = VictimOf(other, size_class, tier, victim);
      if (index != kNoSlot) {
        return index;
      }
    }
  }
  return kNoSlot;
}

// Number of the layer's passing experts whose slots the next streamed ones can wait for: they travel, or have
// yet to be computed. An expert kept only because it was predicted meanwhile would never free its slot.
uint32_t SlotTable::Passing(uint32_t layer, uint16_t size_class) const {
  uint32_t passing = 0;
  for (uint32_t expert = 0; expert < Experts(layer); ++expert) {
    const uint32_t index = Find(layer, expert);
    if (index == kNoSlot || !slots_[index].passing || slots_[index].size_class != size_class) {
      continue;
    }
    const Slot& slot = slots_[index];
    passing += slot.state != SlotState::kReady || slot.pinned || slot.joined != 0 ? 1 : 0;
  }
  return passing;
}

// Chooses among the slots whose experts need not be kept.
uint32_t SlotTable::ChooseUsual(uint32_t layer, uint16_t size_class, For purpose, Victim victim) {
  const bool full = held(layer, size_class) >= quota(layer, size_class);
  uint32_t index = kNoSlot;
  if (purpose == For::kStream) {
    index = VictimOf(layer, size_class, Tier::kPassing, victim);
  } else if (purpose == For::kDemand && full) {
    index = VictimOf(layer, size_class, Tier::kUsual, victim);
  }
  if (index == kNoSlot) {
    index = FindFree(size_class);
  }
  if (index == kNoSlot) {
    index = VictimOfOthers(layer, size_class, /*over_quota=*/true, Tier::kUsual, victim);
  }
  return index;
}

uint32_t SlotTable::Choose(uint32_t layer, uint16_t size_class, For purpose, Victim victim) {
  uint32_t index = ChooseUsual(layer, size_class, purpose, victim);
  if (index != kNoSlot) {
    return index;
  }
  if (purpose == For::kPrefetch) {
    return held(layer, size_class) >= quota(layer, size_class)
               ? VictimOf(layer, size_class, Tier::kUsual, victim)
               : kNoSlot;
  }
  if (purpose == For::kStream &&
      Passing(layer, size_class) >= std::min(kStreamWidth, std::max(1u, classes_[size_class].passing))) {
    return kNoSlot;
  }
  for (const Tier tier : {Tier::kUsual, Tier::kAny}) {
    index = index == kNoSlot ? VictimOf(layer, size_class, tier, victim) : index;
  }
  return index == kNoSlot ? VictimOfOthers(layer, size_class, /*over_quota=*/false, Tier::kAny, victim)
                          : index;
}

uint32_t SlotTable::TakeSlot(uint32_t layer, uint32_t expert, For purpose, Victim victim) {
  const uint32_t index = Choose(layer, class_of(layer, expert), purpose, victim);
  if (index == kNoSlot) {
    return kNoSlot;
  }
  Slot& slot = slots_[index];
  if (slot.state == SlotState::kReady) {
    ++evictions_;
    SetFree(index);
  }
  slot.layer = layer;
  slot.expert = expert;
  SetState(index, SlotState::kFilling);
  slot.fresh = slot.prefetched = purpose == For::kPrefetch;
  slot.passing = purpose == For::kStream;
  slot_of_[Place(layer, expert)] = index;
  ++Held(slot);
  ++filling_;
  return index;
}

void SlotTable::SetReady(uint32_t index) {
  SetState(index, SlotState::kReady);
  ++ready_[slots_[index].layer];
  filled_[slots_[index].layer] = NextNumber();
  --filling_;
}

void SlotTable::SetFree(uint32_t index) {
  Slot& slot = slots_[index];
  if (slot.state == SlotState::kFree) {
    return;
  }
  if (slot.state == SlotState::kReady) {
    --ready_[slot.layer];
  } else if (slot.state == SlotState::kFilling) {
    --filling_;
  }
  if (slot.state != SlotState::kLost) {
    --Held(slot);
    slot_of_[Place(slot.layer, slot.expert)] = kNoSlot;
  }
  SetState(index, SlotState::kFree);
  slot.request = slot.joined = 0;
  slot.pinned = slot.fresh = slot.prefetched = slot.passing = false;
}

void SlotTable::SetUsed(uint32_t layer, Event used) {
  for (uint32_t expert = 0; expert < Experts(layer); ++expert) {
    if (const uint32_t index = Find(layer, expert); index != kNoSlot) {
      slots_[index].last_use = used;
    }
  }
}

void SlotTable::LoseFilling() {
  for (uint32_t i = 0; i < slots_.size() && filling_ > 0; ++i) {
    if (slots_[i].state == SlotState::kFilling) {
      SetFree(i);
      SetState(i, SlotState::kLost);
    }
  }
}

void SlotTable::FreeLost() {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state == SlotState::kLost) {
      SetFree(i);
    }
  }
}

void SlotTable::TrimLayer(uint32_t layer, Victim victim) {
  for (uint32_t expert = 0; expert < Experts(layer); ++expert) {
    const uint32_t index = Find(layer, expert);
    if (index != kNoSlot) {
      slots_[index].pinned = slots_[index].fresh = slots_[index].prefetched = false;
    }
  }
  for (uint16_t c = 0; c < classes_.size(); ++c) {
    while (OverQuota(layer, c)) {
      const uint32_t index = VictimOf(layer, c, Tier::kTrim, victim);
      if (index == kNoSlot) {
        break;  // the others are still being filled
      }
      ++evictions_;
      SetFree(index);
    }
  }
}

SlotKeeper::SlotKeeper(const SlotEvictionOptions& options, const std::vector<uint32_t>& experts,
                       SlotTable* table)
    : table_(table), experts_(experts), policy_(options, experts) {}

void SlotKeeper::BeginLayer(uint32_t layer, absl::Span<const uint32_t> chosen, absl::Span<const float> scores,
                            bool streams) {
  const bool scored = scores.size() == experts_[layer] && !streams;
  policy_.BeginLayer(layer, scored ? scores : absl::Span<const float>(),
                     streams ? absl::Span<const uint32_t>() : chosen);
}

void SlotKeeper::NoteUse(uint32_t layer, absl::Span<const uint32_t> used) {
  policy_.BeginLayer(layer, {}, used);
  policy_.EndLayer(layer);
}

void SlotKeeper::EndLayer(uint32_t layer) {
  policy_.EndLayer(layer);
  table_->TrimLayer(layer, *this);
}

}  // namespace sluice::inferd
