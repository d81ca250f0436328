#include "weightd/dram/store.h"

#include <algorithm>

#include "common/ring/lease.h"

namespace sluice {

uint32_t Store::AddPack(const std::vector<uint64_t>& lengths, ResidencyEntry* table) {
  const auto number = static_cast<uint32_t>(packs_.size());
  PackRecord pack;
  pack.first = static_cast<Gid>(extents_.size());
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

ExtentRef Store::RefOf(Gid gid) const {
  const uint32_t pack = extents_[gid].pack;
  return ExtentRef{pack, gid - packs_[pack].first};
}

void Store::AddPins(uint32_t pack, uint64_t session, const PinEntry* pins, const StepTimeline* timeline) {
  packs_[pack].sources.push_back(PinSource{session, pins, timeline});
}

void Store::RemovePins(uint32_t pack, uint64_t session, uint64_t now,
                       absl::FunctionRef<void(Gid, UseKey)> seen) {
  PackRecord& record = packs_[pack];
  auto source = std::find_if(record.sources.begin(), record.sources.end(),
                             [session](const PinSource& s) { return s.session == session; });
  if (source == record.sources.end()) {
    return;
  }
  for (uint32_t i = 0; i < record.count; ++i) {
    const Gid gid = record.first + i;
    const PinEntry& pin = source->pins[i];
    const bool held = PinsHeld(pin);
    extents_[gid].past_uses += pin.uses.load(std::memory_order_relaxed) + (held ? 1 : 0);
    if (extents_[gid].state != ExtentState::kResident) {
      continue;
    }
    const uint64_t stamp = pin.last_step.load(std::memory_order_relaxed);
    if (held) {
      seen(gid, UseKey{now, UINT64_MAX});  // leases of a killed client count as a use now
    } else if (stamp != 0) {
      seen(gid, UseKey{source->timeline->ClockOf(stamp, now), stamp});
    }
  }
  record.sources.erase(source);
}

void Store::BeginFill(Gid gid, uint32_t segment, uint64_t offset) {
  Extent& extent = extents_[gid];
  extent.state = ExtentState::kFilling;
  extent.segment = segment;
  extent.offset = offset;
  ++extent.generation;
  PublishState(entry(gid), ExtentState::kFilling, extent.generation);
}

void Store::Publish(Gid gid) {
  Extent& extent = extents_[gid];
  extent.state = ExtentState::kResident;
  resident_bytes_ += extent.length;
  ++resident_extents_;
  PublishResident(entry(gid), extent.segment, extent.offset, extent.generation);
}

void Store::SetAbsent(Gid gid) {
  Extent& extent = extents_[gid];
  extent.state = ExtentState::kAbsent;
  PublishState(entry(gid), ExtentState::kAbsent, extent.generation);
}

void Store::AbandonFill(Gid gid) { SetAbsent(gid); }

void Store::MarkBad(Gid gid) {
  Extent& extent = extents_[gid];
  extent.state = ExtentState::kBad;
  ++bad_extents_;
  PublishState(entry(gid), ExtentState::kBad, extent.generation);
}

bool Store::Held(Gid gid) const {
  const Extent& extent = extents_[gid];
  if (extent.internal_pins != 0) {
    return true;
  }
  const PackRecord& pack = packs_[extent.pack];
  for (const PinSource& source : pack.sources) {
    if (PinsHeld(source.pins[gid - pack.first])) {
      return true;
    }
  }
  return false;
}

bool Store::Evict(Gid gid) {
  Extent& extent = extents_[gid];
  if (extent.state != ExtentState::kResident || extent.internal_pins != 0) {
    return false;
  }
  if (!TryEvict(entry(gid), [this, gid] { return Held(gid); })) {
    return false;
  }
  extent.state = ExtentState::kAbsent;
  resident_bytes_ -= extent.length;
  --resident_extents_;
  return true;
}

void Store::Withdraw(Gid gid) {
  resident_bytes_ -= extents_[gid].length;
  --resident_extents_;
  SetAbsent(gid);
}

UseKey Store::LastUse(Gid gid, uint64_t now) const {
  const PackRecord& pack = packs_[extents_[gid].pack];
  UseKey last;
  for (const PinSource& source : pack.sources) {
    const uint64_t stamp = source.pins[gid - pack.first].last_step.load(std::memory_order_relaxed);
    if (stamp != 0) {
      last = std::max(last, UseKey{source.timeline->ClockOf(stamp, now), stamp});
    }
  }
  return last;
}

uint64_t Store::Uses(Gid gid) const {
  const PackRecord& pack = packs_[extents_[gid].pack];
  uint64_t uses = extents_[gid].past_uses;
  for (const PinSource& source : pack.sources) {
    uses += source.pins[gid - pack.first].uses.load(std::memory_order_relaxed);
  }
  return uses;
}

Store::Holdings Store::HeldBy(uint32_t pack, uint64_t session) const {
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

std::map<uint64_t, uint64_t> Store::BytesUsedIn(uint64_t session, uint64_t step) const {
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

uint64_t Store::UseMark(Gid gid) const {
  const PackRecord& pack = packs_[extents_[gid].pack];
  uint64_t mark = 0;
  for (const PinSource& source : pack.sources) {
    const PinEntry& pin = source.pins[gid - pack.first];
    mark += pin.last_step.load(std::memory_order_relaxed) + pin.uses.load(std::memory_order_relaxed) +
            (PinsHeld(pin) ? 1 : 0);
  }
  return mark;
}

}  // namespace sluice
