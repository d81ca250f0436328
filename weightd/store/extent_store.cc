#include "weightd/store/extent_store.h"

#include <algorithm>

#include "common/protocol/lease.h"

namespace sluice::weightd {

uint32_t ExtentStore::AddPack(const std::vector<uint64_t>& lengths, ResidencyEntry* table) {
  const auto number = static_cast<uint32_t>(packs_.size());
  PackRecord pack;
  pack.first = static_cast<ExtentId>(extents_.size());
  pack.count = static_cast<uint32_t>(lengths.size());
  pack.table = table;
  packs_.push_back(pack);
  for (uint64_t length : lengths) {
    Extent extent;
    extent.length = length;
    extent.pack = number;
    extents_.push_back(extent);
  }
  return number;
}

ExtentRef ExtentStore::RefOf(ExtentId extent_id) const {
  const uint32_t pack = extents_[extent_id].pack;
  return ExtentRef{pack, extent_id - packs_[pack].first};
}

void ExtentStore::AddPins(uint32_t pack, uint64_t session, const PinEntry* pins,
                          const StepTimeline* timeline) {
  packs_[pack].sources.push_back(PinSource{session, pins, timeline});
}

void ExtentStore::RemovePins(uint32_t pack, uint64_t session, uint64_t now,
                             absl::FunctionRef<void(ExtentId, UseKey)> seen) {
  PackRecord& record = packs_[pack];
  auto source = std::find_if(record.sources.begin(), record.sources.end(),
                             [session](const PinSource& s) { return s.session == session; });
  if (source == record.sources.end()) {
    return;
  }
  for (uint32_t i = 0; i < record.count; ++i) {
    const ExtentId extent_id = record.first + i;
    const PinEntry& pin = source->pins[i];
    const bool held = PinsHeld(pin);
    extents_[extent_id].past_uses += pin.uses.load(std::memory_order_relaxed) + (held ? 1 : 0);
    if (extents_[extent_id].state != ExtentState::kResident) {
      continue;
    }
    const uint64_t stamp = pin.last_step.load(std::memory_order_relaxed);
    if (held) {
      seen(extent_id, UseKey{now, UINT64_MAX});  // leases of a killed client count as a use now
    } else if (stamp != 0) {
      seen(extent_id, UseKey{source->timeline->ClockOf(stamp, now), stamp});
    }
  }
  record.sources.erase(source);
}

void ExtentStore::BeginFill(ExtentId extent_id, uint32_t segment, uint64_t offset) {
  Extent& extent = extents_[extent_id];
  extent.state = ExtentState::kFilling;
  extent.segment = segment;
  extent.offset = offset;
  ++extent.generation;
  PublishState(entry(extent_id), ExtentState::kFilling, extent.generation);
}

void ExtentStore::Publish(ExtentId extent_id) {
  Extent& extent = extents_[extent_id];
  extent.state = ExtentState::kResident;
  resident_bytes_ += extent.length;
  ++resident_extents_;
  PublishResident(entry(extent_id), extent.segment, extent.offset, extent.generation);
}

void ExtentStore::SetAbsent(ExtentId extent_id) {
  Extent& extent = extents_[extent_id];
  extent.state = ExtentState::kAbsent;
  PublishState(entry(extent_id), ExtentState::kAbsent, extent.generation);
}

void ExtentStore::AbandonFill(ExtentId extent_id) { SetAbsent(extent_id); }

void ExtentStore::MarkBad(ExtentId extent_id) {
  Extent& extent = extents_[extent_id];
  extent.state = ExtentState::kBad;
  ++bad_extents_;
  PublishState(entry(extent_id), ExtentState::kBad, extent.generation);
}

bool ExtentStore::Held(ExtentId extent_id) const {
  const Extent& extent = extents_[extent_id];
  if (extent.internal_pins != 0) {
    return true;
  }
  const PackRecord& pack = packs_[extent.pack];
  for (const PinSource& source : pack.sources) {
    if (PinsHeld(source.pins[extent_id - pack.first])) {
      return true;
    }
  }
  return false;
}

bool ExtentStore::Evict(ExtentId extent_id) {
  Extent& extent = extents_[extent_id];
  if (extent.state != ExtentState::kResident || extent.internal_pins != 0) {
    return false;
  }
  if (!TryEvict(entry(extent_id), [this, extent_id] { return Held(extent_id); })) {
    return false;
  }
  extent.state = ExtentState::kAbsent;
  resident_bytes_ -= extent.length;
  --resident_extents_;
  return true;
}

void ExtentStore::Withdraw(ExtentId extent_id) {
  resident_bytes_ -= extents_[extent_id].length;
  --resident_extents_;
  SetAbsent(extent_id);
}

UseKey ExtentStore::LastUse(ExtentId extent_id, uint64_t now) const {
  const PackRecord& pack = packs_[extents_[extent_id].pack];
  UseKey last;
  for (const PinSource& source : pack.sources) {
    const uint64_t stamp = source.pins[extent_id - pack.first].last_step.load(std::memory_order_relaxed);
    if (stamp != 0) {
      last = std::max(last, UseKey{source.timeline->ClockOf(stamp, now), stamp});
    }
  }
  return last;
}

uint64_t ExtentStore::Uses(ExtentId extent_id) const {
  const PackRecord& pack = packs_[extents_[extent_id].pack];
  uint64_t uses = extents_[extent_id].past_uses;
  for (const PinSource& source : pack.sources) {
    uses += source.pins[extent_id - pack.first].uses.load(std::memory_order_relaxed);
  }
  return uses;
}

ExtentStore::Holdings ExtentStore::HeldBy(uint32_t pack, uint64_t session) const {
  const PackRecord& record = packs_[pack];
  Holdings held;
  for (const PinSource& source : record.sources) {
    for (uint32_t i = 0; source.session == session && i < record.count; ++i) {
      if (PinsHeld(source.pins[i])) {
        ++held.extents;
        held.bytes += extents_[record.first + i].length;
      }
    }
  }
  return held;
}

std::map<uint64_t, uint64_t> ExtentStore::BytesUsedIn(uint64_t session, uint64_t step) const {
  std::map<uint64_t, uint64_t> used;
  for (const PackRecord& pack : packs_) {
    for (const PinSource& source : pack.sources) {
      for (uint32_t i = 0; source.session == session && i < pack.count; ++i) {
        const uint64_t stamp = source.pins[i].last_step.load(std::memory_order_relaxed);
        if (stamp != 0 && stamp >> kStampOrderBits == step) {
          const uint64_t length = extents_[pack.first + i].length;
          used[length] += length;
        }
      }
    }
  }
  return used;
}

uint64_t ExtentStore::UseVersion(ExtentId extent_id) const {
  const PackRecord& pack = packs_[extents_[extent_id].pack];
  uint64_t mark = 0;
  for (const PinSource& source : pack.sources) {
    const PinEntry& pin = source.pins[extent_id - pack.first];
    mark += pin.last_step.load(std::memory_order_relaxed) + pin.uses.load(std::memory_order_relaxed) +
            (PinsHeld(pin) ? 1 : 0);
  }
  return mark;
}

}  // namespace sluice::weightd
