#include "weightd/dram_tier.h"

#include <algorithm>
#include <array>
#include <utility>

namespace sluice {
namespace {

// Segments of other classes looked at in one decision, and extents looked at in each.
constexpr size_t kForeignProbes = 4;
constexpr size_t kSamples = 8;
// Evictions that a client undoes before the decision is given up.
constexpr int kMaxAttempts = 1000;

}  // namespace

DramTier::DramTier(const Arena::Options& options, Arena::Listener listener)
    : arena_(options, std::move(listener)) {}

uint32_t DramTier::AddPack(const std::vector<uint64_t>& lengths, ResidencyEntry* table) {
  for (uint64_t length : lengths) {
    arena_.Declare(length, 1);
  }
  filled_.resize(filled_.size() + lengths.size());
  return store_.AddPack(lengths, table);
}

void DramTier::AddPins(uint32_t pack, uint64_t session, const PinEntry* pins, const StepTimeline* timeline) {
  store_.AddPins(pack, session, pins, timeline);
}

void DramTier::RemovePins(uint32_t pack, uint64_t session) {
  store_.RemovePins(pack, session, clock_, [this](Gid gid, UseKey use) {
    filled_[gid] = std::max(filled_[gid], use);
    policy(store_.length(gid)).Touch(gid, use);
  });
}

EvictionPolicy& DramTier::policy(uint64_t slot_bytes) {
  std::unique_ptr<EvictionPolicy>& found = policies_[slot_bytes];
  if (found == nullptr) {
    found = std::make_unique<LruPolicy>();
  }
  return *found;
}

ExtentUse DramTier::Look(Gid gid) const {
  if (store_.Held(gid)) {
    return ExtentUse{UseKey{clock_, UINT64_MAX}, false};
  }
  return ExtentUse{std::max(filled_[gid], store_.LastUse(gid, clock_)), true};
}

DramTier::Room DramTier::BeginFill(Gid gid, std::byte** dest) {
  Slot slot;
  const Room room = MakeRoom(store_.length(gid), gid, &slot);
  if (room == Room::kPlaced) {
    store_.BeginFill(gid, slot.segment, slot.offset);
    *dest = slot.data;
  }
  return room;
}

void DramTier::Publish(Gid gid) {
  filled_[gid] = UseKey{clock_, UINT64_MAX};
  policy(store_.length(gid)).Add(gid, filled_[gid]);
  store_.Publish(gid);
}

void DramTier::AbandonFill(Gid gid, bool bad) {
  arena_.Free(store_.segment(gid), store_.offset(gid));
  if (bad) {
    store_.MarkBad(gid);
  } else {
    store_.AbandonFill(gid);
  }
}

bool DramTier::EvictOne(Gid gid) {
  EvictionPolicy& owner = policy(store_.length(gid));
  if (!store_.Evict(gid)) {
    owner.Touch(gid, UseKey{clock_, UINT64_MAX});
    return false;
  }
  owner.Remove(gid);
  arena_.Free(store_.segment(gid), store_.offset(gid));
  ++evictions_;
  return true;
}

DramTier::Room DramTier::MakeRoom(uint64_t slot_bytes, Gid gid, Slot* slot) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    if (std::optional<Slot> free = arena_.Allocate(slot_bytes, gid)) {
      *slot = *free;
      return Room::kPlaced;
    }
    if (arena_.retired_bytes() != 0 && arena_.unspent_bytes() + arena_.retired_bytes() >= slot_bytes) {
      return Room::kRetiring;
    }
    if (arena_.RetirePooled()) {
      continue;
    }
    const auto victim = policy(slot_bytes).Coldest([this](uint32_t extent) { return Look(extent); });
    const auto foreign = ColdestForeign(slot_bytes, !victim.has_value());
    if (victim.has_value() && (!foreign.has_value() || victim->last <= foreign->median)) {
      EvictOne(victim->extent);
    } else if (foreign.has_value()) {
      Empty(arena_.active(foreign->index));
    } else {
      return Room::kNone;
    }
  }
  return Room::kNone;
}

std::optional<DramTier::ColdSegment> DramTier::ColdestForeign(uint64_t slot_bytes, bool exhaustive) {
  const size_t count = arena_.active_count();
  const size_t probes = exhaustive ? count : std::min(count, kForeignProbes);
  std::optional<ColdSegment> coldest;
  for (size_t i = 0; i < probes; ++i) {
    const size_t index = (probe_ + i) % count;
    const Arena::SegmentView segment = arena_.active(index);
    if (segment.slot_bytes == slot_bytes || !AllEvictable(segment)) {
      continue;
    }
    const std::optional<UseKey> median = MedianUse(segment);
    if (median.has_value() && (!coldest.has_value() || *median < coldest->median)) {
      coldest = ColdSegment{index, *median};
    }
  }
  probe_ = count == 0 ? 0 : (probe_ + probes) % count;
  return coldest;
}

std::optional<UseKey> DramTier::MedianUse(const Arena::SegmentView& segment) const {
  std::array<UseKey, kSamples> uses;
  size_t found = 0;
  const size_t step = std::max<size_t>(1, segment.owners->size() / kSamples);
  for (size_t i = 0; i < segment.owners->size() && found < kSamples; i += step) {
    const uint32_t owner = (*segment.owners)[i];
    if (owner != kNoOwner) {
      uses[found++] = Look(owner).last;
    }
  }
  if (found == 0) {
    return UseKey{};  // mostly empty: nothing is lost with it
  }
  std::sort(uses.begin(), uses.begin() + static_cast<ptrdiff_t>(found));
  return uses[found / 2];
}

bool DramTier::AllEvictable(const Arena::SegmentView& segment) const {
  return std::none_of(segment.owners->begin(), segment.owners->end(), [this](uint32_t owner) {
    return owner != kNoOwner && (store_.state(owner) != ExtentState::kResident || store_.Held(owner));
  });
}

bool DramTier::Empty(const Arena::SegmentView& segment) {
  const std::vector<uint32_t> owners = *segment.owners;  // the view dies with the last slot
  return std::all_of(owners.begin(), owners.end(),
                     [this](uint32_t owner) { return owner == kNoOwner || EvictOne(owner); });
}

}  // namespace sluice
