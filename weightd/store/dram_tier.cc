#include "weightd/store/dram_tier.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace sluice::weightd {
namespace {

// Number of other classes' segments sampled per decision, and of extents sampled in each.
constexpr size_t kOtherClassProbes = 4;
constexpr size_t kSamples = 8;
// Maximum number of evictions that clients undo in one decision.
constexpr int kMaxAttempts = 1000;
// Trust ends when this many times the bytes of all packs have been filled without a use.
constexpr double kTrustTurnovers = 1.25;
// Probation ends for a class when a step uses at least this share of its resident bytes, and not more than
// all.
constexpr double kPlainFrom = 0.7;
// A class evicts from others when its share of all reads exceeds its share of the memory by this fraction.
constexpr double kUnderservedMargin = 1.0 / 16;

}  // namespace

DramTier::DramTier(const Arena::Options& options, Arena::Listener listener, const TierPolicy& policy)
    : policy_(policy), arena_(options, std::move(listener)) {}

double DramTier::turnovers() const {
  return static_cast<double>(filled_bytes_) / static_cast<double>(std::max<uint64_t>(1, arena_.budget()));
}

uint32_t DramTier::AddPack(const std::vector<uint64_t>& lengths, ResidencyEntry* table) {
  for (uint64_t length : lengths) {
    arena_.Declare(length, 1);
    pack_bytes_ += length;
  }
  filled_.resize(filled_.size() + lengths.size());
  return store_.AddPack(lengths, table);
}

void DramTier::AddPins(uint32_t pack, uint64_t session, const PinEntry* pins, const StepTimeline* timeline) {
  store_.AddPins(pack, session, pins, timeline);
}

void DramTier::RemovePins(uint32_t pack, uint64_t session) {
  store_.RemovePins(pack, session, clock_, [this](ExtentId extent_id, UseKey use) {
    filled_[extent_id] = std::max(filled_[extent_id], use);
    policy(store_.length(extent_id)).Touch(extent_id, use);
  });
}

DramTier::SizeClass& DramTier::size_class(uint64_t slot_bytes) {
  SizeClass& found = classes_[slot_bytes];
  if (found.policy == nullptr) {
    if (policy_.admission) {
      auto probation = std::make_unique<ProbationPolicy>(policy_.eviction);
      found.probation = probation.get();
      found.policy = std::move(probation);
    } else {
      found.policy = NewEvictionPolicy(policy_.eviction);
    }
  }
  if (found.probation != nullptr) {
    found.probation->set_trust_turnovers(kTrustTurnovers * static_cast<double>(pack_bytes_) /
                                         static_cast<double>(std::max<uint64_t>(1, arena_.budget())));
    const StepUses::Range used = step_uses_.OfLength(slot_bytes);
    found.probation->set_plain(static_cast<double>(used.least) >=
                                   kPlainFrom * static_cast<double>(found.resident_bytes) &&
                               used.most != 0 && used.most <= found.resident_bytes);
  }
  return found;
}

ExtentUse DramTier::Look(ExtentId extent_id) const {
  if (store_.Held(extent_id)) {
    return ExtentUse{UseKey{clock_, UINT64_MAX}, false, store_.Uses(extent_id), turnovers(), false};
  }
  ExtentUse use;
  use.last = std::max(filled_[extent_id], store_.LastUse(extent_id, clock_));
  use.evictable = true;
  use.uses = store_.Uses(extent_id);
  use.at = static_cast<double>(fill_bytes_.ClockOf(use.last.clock, filled_bytes_)) /
           static_cast<double>(std::max<uint64_t>(1, arena_.budget()));
  return use;
}

void DramTier::NoteUse(ExtentId extent_id) {
  store_.CountUse(extent_id);
  filled_[extent_id] = std::max(filled_[extent_id], UseKey{clock_, UINT64_MAX});
}

uint64_t DramTier::trusted_extents() const {
  uint64_t trusted = 0;
  for (const auto& [slot_bytes, size_class] : classes_) {
    trusted += size_class.probation == nullptr ? 0 : size_class.probation->trusted();
  }
  return trusted;
}

uint64_t DramTier::promotions() const {
  uint64_t promotions = 0;
  for (const auto& [slot_bytes, size_class] : classes_) {
    promotions += size_class.probation == nullptr ? 0 : size_class.probation->promotions();
  }
  return promotions;
}

double DramTier::Recent(const SizeClass& size_class) const {
  return size_class.recent_bytes * std::exp2(size_class.recent_at - turnovers());
}

bool DramTier::IsUnderserved(uint64_t slot_bytes) {
  double read = 0;
  double held = 0;
  for (const auto& [bytes, size_class] : classes_) {
    read += Recent(size_class);
    held += static_cast<double>(size_class.resident_bytes);
  }
  const SizeClass& own = size_class(slot_bytes);
  return Recent(own) * held > (static_cast<double>(own.resident_bytes) + kUnderservedMargin * held) * read;
}

void DramTier::SetQuota(uint64_t session, uint64_t quota) {
  SessionQuota& tenant = session_quotas_[session];
  tenant.quota = quota;
  tenant.policy = NewEvictionPolicy(policy_.eviction);
}

void DramTier::RemoveSession(uint64_t session) {
  step_uses_.Remove(session);
  if (session_quotas_.erase(session) != 0) {
    absl::erase_if(charged_to_, [session](const auto& charge) { return charge.second == session; });
  }
}

uint64_t DramTier::charged_bytes(uint64_t session) const {
  const auto found = session_quotas_.find(session);
  return found == session_quotas_.end() ? 0 : found->second.charged;
}

void DramTier::NoteScanned(ExtentId extent_id, uint64_t step) {
  size_class(store_.length(extent_id)).scan.NoteScanUse(extent_id, step);
  filled_[extent_id] = std::max(filled_[extent_id], UseKey{clock_, UINT64_MAX});
}

std::optional<EvictionCandidate> DramTier::ScanVictim(uint64_t session, const ScanPlace& scan) {
  const auto look = [&](uint32_t extent) {
    ExtentUse use = Look(extent);
    const auto charge = charged_to_.find(extent);
    use.evictable = use.evictable && charge != charged_to_.end() && charge->second == session;
    return use;
  };
  for (auto& [slot_bytes, size_class] : classes_) {
    if (const auto victim = size_class.scan.NextVictim(scan, look); victim.has_value()) {
      return victim;
    }
  }
  return std::nullopt;
}

bool DramTier::IsWorthKeeping(const ScanPlace& scan, ExtentId extent_id) const {
  return scan.optional && scan.IsNear(extent_id) && !ScanOrder::UsedIn(scan.step, Look(extent_id));
}

bool DramTier::MakeQuota(uint64_t session, uint64_t bytes, const ScanPlace* scan) {
  const auto found = session_quotas_.find(session);
  if (found == session_quotas_.end()) {
    return true;
  }
  SessionQuota& tenant = found->second;
  for (int attempt = 0; tenant.charged + bytes > tenant.quota; ++attempt) {
    auto victim = scan == nullptr ? std::nullopt : ScanVictim(session, *scan);
    if (!victim.has_value()) {
      victim = tenant.policy->Coldest(turnovers(), [this](uint32_t extent) { return Look(extent); });
    }
    if (!victim.has_value() || attempt == kMaxAttempts ||
        (scan != nullptr && IsWorthKeeping(*scan, victim->extent))) {
      return false;
    }
    if (!EvictOne(victim->extent)) {
      tenant.policy->Touch(victim->extent, UseKey{clock_, UINT64_MAX});
    }
  }
  return true;
}

void DramTier::Uncharge(ExtentId extent_id) {
  const auto charge = charged_to_.find(extent_id);
  if (charge == charged_to_.end()) {
    return;
  }
  SessionQuota& tenant = session_quotas_.at(charge->second);
  tenant.charged -= store_.length(extent_id);
  tenant.policy->Remove(extent_id, turnovers());
  charged_to_.erase(charge);
}

DramTier::AllocResult DramTier::BeginFill(ExtentId extent_id, std::byte** dest, uint64_t session,
                                          uint64_t step, const ScanPlace* scan) {
  if (!MakeQuota(session, store_.length(extent_id), scan)) {
    return AllocResult::kNone;
  }
  Slot slot;
  const AllocResult room = AllocateSlot(store_.length(extent_id), extent_id, &slot, scan);
  if (room == AllocResult::kAllocated) {
    if (scan != nullptr) {
      scanning_.insert(extent_id);
    }
    const auto tenant = session_quotas_.find(session);
    if (tenant != session_quotas_.end()) {
      tenant->second.charged += store_.length(extent_id);
      charged_to_[extent_id] = session;
    }
    step_uses_.Note(session, step, [&](uint64_t ended) { return store_.BytesUsedIn(session, ended); });
    store_.BeginFill(extent_id, slot.segment, slot.offset);
    *dest = slot.data;
  }
  return room;
}

DramTier::AllocResult DramTier::AllocateHedgeSlot(ExtentId extent_id, Slot* slot) {
  return AllocateSlot(store_.length(extent_id), kBadSlotOwner, slot, nullptr);
}

Slot DramTier::MoveFill(ExtentId extent_id, const Slot& second) {
  const Slot former{store_.segment(extent_id), store_.offset(extent_id), nullptr};
  arena_.SetOwner(former.segment, former.offset, kBadSlotOwner);
  arena_.SetOwner(second.segment, second.offset, extent_id);
  store_.BeginFill(extent_id, second.segment, second.offset);
  return former;
}

void DramTier::Publish(ExtentId extent_id) {
  const uint64_t length = store_.length(extent_id);
  filled_[extent_id] = UseKey{clock_, UINT64_MAX};
  filled_bytes_ += length;
  SizeClass& own = size_class(length);
  own.recent_bytes = Recent(own) + static_cast<double>(length);
  own.recent_at = turnovers();
  own.resident_bytes += length;
  const bool scanned = scanning_.erase(extent_id) != 0;
  const ExtentUse use{filled_[extent_id], true, store_.Uses(extent_id), turnovers(), scanned};
  own.policy->Add(extent_id, use);
  if (scanned) {
    own.scan.Add(extent_id, use.uses);
  }
  if (const auto charge = charged_to_.find(extent_id); charge != charged_to_.end()) {
    session_quotas_.at(charge->second).policy->Add(extent_id, use);
  }
  store_.Publish(extent_id);
}

void DramTier::AbandonFill(ExtentId extent_id, bool bad) {
  arena_.Free(store_.segment(extent_id), store_.offset(extent_id));
  scanning_.erase(extent_id);
  Uncharge(extent_id);
  if (bad) {
    store_.MarkBad(extent_id);
  } else {
    store_.AbandonFill(extent_id);
  }
}

bool DramTier::EvictOne(ExtentId extent_id) {
  SizeClass& owner = size_class(store_.length(extent_id));
  if (!store_.Evict(extent_id)) {
    owner.policy->Touch(extent_id, UseKey{clock_, UINT64_MAX});
    return false;
  }
  owner.policy->Remove(extent_id, turnovers());
  owner.scan.Remove(extent_id);
  owner.resident_bytes -= store_.length(extent_id);
  Uncharge(extent_id);
  arena_.Free(store_.segment(extent_id), store_.offset(extent_id));
  ++evictions_;
  return true;
}

void DramTier::DiscardCorrupt(ExtentId extent_id) {
  if (store_.state(extent_id) != ExtentState::kResident) {
    return;
  }
  SizeClass& owner = size_class(store_.length(extent_id));
  owner.policy->Remove(extent_id, turnovers());
  owner.scan.Remove(extent_id);
  owner.resident_bytes -= store_.length(extent_id);
  Uncharge(extent_id);
  store_.Withdraw(extent_id);
  arena_.SetOwner(store_.segment(extent_id), store_.offset(extent_id), kBadSlotOwner);
  bad_slots_.push_back(BadSlot{extent_id, store_.segment(extent_id), store_.offset(extent_id)});
  ReclaimBadSlots();
}

void DramTier::ReclaimBadSlots() {
  // Once the slot was seen free after the withdrawal, nobody reads it: later leases find the new slot.
  std::erase_if(bad_slots_, [this](const BadSlot& slot) {
    const bool free = !store_.Held(slot.extent_id);
    if (free) {
      arena_.Free(slot.segment, slot.offset);
    }
    return free;
  });
}

DramTier::AllocResult DramTier::AllocateSlot(uint64_t slot_bytes, ExtentId extent_id, Slot* slot,
                                             const ScanPlace* scan) {
  const auto look = [this](uint32_t extent) { return Look(extent); };
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    if (std::optional<Slot> free = arena_.Allocate(slot_bytes, extent_id)) {
      *slot = *free;
      return AllocResult::kAllocated;
    }
    if (RetirementSuffices(slot_bytes, arena_.retired_bytes() - slow_bytes_)) {
      return AllocResult::kRetiring;
    }
    // While a session does not unmap retired segments they are lost to the budget: pooled ones are kept, and
    // serve this class though much of them is wasted.
    if (slow_bytes_ == 0 ? arena_.RetirePooled() : arena_.AllowWaste(slot_bytes)) {
      continue;
    }
    if (scan != nullptr) {
      const auto passed = size_class(slot_bytes).scan.NextVictim(*scan, look);
      if (passed.has_value()) {
        EvictOne(passed->extent);
        continue;
      }
    }
    const auto victim = policy(slot_bytes).Coldest(turnovers(), look);
    if (scan != nullptr && victim.has_value() && IsWorthKeeping(*scan, victim->extent)) {
      return AllocResult::kNone;
    }
    std::optional<ColdSegment> foreign;
    if (!victim.has_value() || !policy_.admission || IsUnderserved(slot_bytes)) {
      foreign = ColdestOfOtherClasses(slot_bytes, !victim.has_value(), slow_bytes_ == 0 ? 0 : slot_bytes);
    }
    if (victim.has_value() && (!foreign.has_value() || victim->last <= foreign->median)) {
      EvictOne(victim->extent);
    } else if (foreign.has_value()) {
      Empty(arena_.active(foreign->index));
    } else {
      return RetirementSuffices(slot_bytes, arena_.retired_bytes() - lost_bytes_) ? AllocResult::kRetiring
                                                                                  : AllocResult::kNone;
    }
  }
  return AllocResult::kNone;
}

bool DramTier::Shrink(int segments) {
  while (arena_.total_bytes() - arena_.retired_bytes() > arena_.budget()) {
    if (arena_.RetirePooled()) continue;
    // No class has slots of 0 bytes, so every class counts as foreign here.
    const std::optional<ColdSegment> coldest =
        ColdestOfOtherClasses(/*slot_bytes=*/0, /*exhaustive=*/true, 0);
    if (segments-- == 0 || !coldest.has_value()) return false;
    Empty(arena_.active(coldest->index));
  }
  return true;
}

std::optional<DramTier::ColdSegment> DramTier::ColdestOfOtherClasses(uint64_t slot_bytes, bool exhaustive,
                                                                     uint64_t least_bytes) {
  const size_t count = arena_.active_count();
  const size_t probes = exhaustive ? count : std::min(count, kOtherClassProbes);
  std::optional<ColdSegment> coldest;
  for (size_t i = 0; i < probes; ++i) {
    const size_t index = (probe_ + i) % count;
    const Arena::SegmentView segment = arena_.active(index);
    if (segment.slot_bytes == slot_bytes || segment.slot_bytes * segment.owners->size() < least_bytes ||
        !AllEvictable(segment)) {
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
    if (owner != kNoOwner && owner != kBadSlotOwner) {
      uses[found++] = Look(owner).last;
    }
  }
  if (found == 0) {
    return UseKey{};  // mostly empty: evicting it loses nothing
  }
  std::sort(uses.begin(), uses.begin() + static_cast<ptrdiff_t>(found));
  return uses[found / 2];
}

bool DramTier::AllEvictable(const Arena::SegmentView& segment) const {
  return std::none_of(segment.owners->begin(), segment.owners->end(), [this](uint32_t owner) {
    if (owner == kNoOwner) {
      return false;
    }
    return owner == kBadSlotOwner || store_.state(owner) != ExtentState::kResident || store_.Held(owner);
  });
}

bool DramTier::Empty(const Arena::SegmentView& segment) {
  const std::vector<uint32_t> owners = *segment.owners;  // the view dies with the last slot
  return std::all_of(owners.begin(), owners.end(),
                     [this](uint32_t owner) { return owner == kNoOwner || EvictOne(owner); });
}

}  // namespace sluice::weightd
