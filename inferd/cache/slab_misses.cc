// Handling of a layer's misses: the plan is made by numbers (miss_plan.h) and executed here, on slots and
// leases.

#include <algorithm>
#include <optional>

#include "inferd/cache/slab_residency.h"

namespace sluice::inferd {

bool SlabResidency::BalancesLayers() const {
  return Miss() == ExpertMiss::kBalance && device_seconds_ > 0 && costs_.known();
}

// Remaining link time of the demands in flight.
double SlabResidency::BacklogSeconds() const {
  double seconds = 0;
  for (uint32_t i = 0; in_flight_ > 0 && i < demands(); ++i) {
    seconds += entries_[i].state == State::kInFlight ? forecast_.ToCome(entries_[i].slot) : 0;
  }
  return seconds;
}

void SlabResidency::DecideMisses(absl::Span<const ExpertDemand> demands) {
  if (CanDeferLayer(layer_) || (!BalancesLayers() && (Miss() == ExpertMiss::kLoad || waiting_ == 0))) {
    return;
  }
  CollectDemands(demands);
  for (const MissPlan::Verdict& verdict : PlanMisses(demands)) {
    CarryOut(verdict);
  }
}

void SlabResidency::CollectDemands(absl::Span<const ExpertDemand> demands) {
  plan_.Clear();
  for (uint32_t i = 0; i < demands.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.state == State::kWaiting) {
      plan_.AddMissing(demands[i]);
    } else if (entry.state == State::kReady) {
      plan_.AddResident(demands[i]);
    } else if (entry.state == State::kLate) {
      const uint64_t request = table().slot(entry.slot).request;
      const auto before = [&](const Slot& slot) { return slot.request < request && IsOtherTraffic(slot); };
      plan_.AddLate(demands[i], {request, slots_->Landed(entry.slot), forecast_.ToCome(before)});
    }
  }
}

// True if the transfer into a slot is not for this layer's demands, and will not be cancelled.
bool SlabResidency::IsOtherTraffic(const Slot& slot) const {
  return slot.layer != layer_ || (!IsDemanded(slot.expert) && !options_.cancel_begun);
}

absl::Span<const MissPlan::Verdict> SlabResidency::PlanMisses(absl::Span<const ExpertDemand> demands) {
  const auto bytes = [this](uint32_t expert) { return BytesOf(expert); };
  const uint32_t first = demands.front().expert;
  const double shared = layer_ < options_.shared_bytes.size() ? options_.shared_bytes[layer_] : 0;
  const MissTimes times = {link_.SecondsPerByte(), device_seconds_, BacklogSeconds(), cpu_queued_,
                           shared * device_seconds_};
  if (BalancesLayers()) {
    const bool on = TravelsOn();
    const double wait =
        on ? forecast_.ToCome([this](const Slot& slot) { return IsOtherTraffic(slot); }) : times.backlog;
    const auto cpu = [this](const ExpertDemand& demand) {
      return costs_.Seconds(layer_, demand.expert, demand.tokens);
    };
    const uint32_t tile = MaySplit() ? slots_->TileOf(layer_) : width_;
    return plan_.SplitTiles(times, {tile, width_, wait, on}, bytes, cpu, BytesOf(first),
                            costs_.TableOf(layer_, first));
  }
  std::optional<CpuCostTable> assumed;
  const auto table = [&](uint32_t expert) -> const CpuCostTable& {
    if (costs_.known()) {
      return costs_.TableOf(layer_, expert);
    }
    return assumed.emplace(CpuCostTable::PerToken(costs_.SecondsPerByte() * BytesOf(expert)));
  };
  return plan_.SplitMisses(Miss(), times, bytes, table);
}

void SlabResidency::CarryOut(const MissPlan::Verdict& verdict) {
  const uint32_t index = FindDemand(layer_, verdict.expert);
  switch (verdict.action) {
    case MissPlan::Action::kToCpu:
      GiveToCpu(index, verdict.tokens);
      return;
    case MissPlan::Action::kResidentToCpu:
      GiveSlotToCpu(index, verdict.tokens);
      return;
    case MissPlan::Action::kAwait:
      Join(&entries_[index]);
      return;
    case MissPlan::Action::kSplit:
      Split(index, verdict.tokens, verdict.tiles);
      return;
  }
}

// Gives an expert in flight to the CPU if that ends sooner than the link; its transfer continues for later
// tokens.
bool SlabResidency::LateToCpu(uint32_t index, uint32_t tokens) {
  const Entry& entry = entries_[index];
  if (Miss() == ExpertMiss::kLoad || options_.fixed || table().slot(entry.slot).request == 0) {
    return false;
  }
  return cpu_queued_ + costs_.Seconds(layer_, experts()[index], tokens) < forecast_.ToCome(entry.slot) &&
         GiveSlotToCpu(index, tokens);
}

// The slot keeps its expert, or continues to be filled with it, for later tokens.
bool SlabResidency::GiveSlotToCpu(uint32_t index, uint32_t tokens) {
  Entry& entry = entries_[index];
  ++waiting_;
  GiveToCpu(index, tokens);
  if (entry.state != State::kCpu) {
    --waiting_;
    return false;
  }
  table().slot(entry.slot).pinned = false;
  entry.slot = ExpertSlots::kNoSlot;
  return true;
}

// Succeeds if weightd has it in DRAM; else it travels like the others.
void SlabResidency::GiveToCpu(uint32_t index, uint32_t tokens) {
  if (!cpu_.Lease(index, layer_, experts()[index], step_)) {
    return;
  }
  entries_[index].state = State::kCpu;
  --waiting_;
  counters_.Add(layer_, &ResidencyCounters::cpu);
  QueueOnCpu(index, tokens, 1);
}

// `tiles` more tiles come over the link, and the CPU computes the neurons after them.
void SlabResidency::Split(uint32_t index, uint32_t tokens, uint32_t tiles) {
  Entry& entry = entries_[index];
  const bool late = entry.state == State::kLate;
  const uint32_t split =
      MaySplit() ? (late ? slots_->Landed(entry.slot) : 0) + tiles * slots_->TileOf(layer_) : 0;
  if (split == 0) {
    if (!late) {
      GiveToCpu(index, tokens);
    } else if (!GiveSlotToCpu(index, tokens)) {
      Join(&entry);
    }
    return;
  }
  if (split >= width_ || !cpu_.Lease(index, layer_, experts()[index], step_)) {
    if (late) {
      Join(&entry);
    }
    return;
  }
  entry.shared = split;
  counters_.Add(layer_, &ResidencyCounters::cpu);
  QueueOnCpu(index, tokens, 1 - static_cast<double>(split) / width_);
  if (late) {
    entry.state = State::kInFlight;
    ++in_flight_;
  }
}

// `share`: share of the expert's neurons.
void SlabResidency::QueueOnCpu(uint32_t index, uint32_t tokens, double share) {
  const uint32_t expert = experts()[index];
  cpu_queued_ += share * costs_.Seconds(layer_, expert, tokens);
  cpu_.Queue(index, share * costs_.SecondsPerByte() * BytesOf(expert) * tokens);
}

void SlabResidency::HandOutCpu(uint32_t index) {
  Entry& entry = entries_[index];
  ReadyTile tile;
  tile.demand = index;
  tile.up = cpu_.PartOf(index, Part::kUp);
  tile.gate = cpu_.PartOf(index, Part::kGate);
  tile.down = cpu_.PartOf(index, Part::kDown);
  tile.on_cpu = true;
  if (entry.handed > 0) {  // earlier tiles came over the link
    tile.neuron_begin = entry.handed;
    tile.neuron_end = width_;
  }
  const uint64_t bytes = pack_.expert_bytes(layer_, experts()[index]) * (width_ - entry.handed) / width_;
  counters_.Add(layer_, &ResidencyCounters::bytes_touched, bytes);
  counters_.Add(layer_, &ResidencyCounters::bytes_dram, bytes);
  entry.state = State::kCpuHandedOut;
  ready_.push_back(tile);
}

// The expert's first tiles have been computed. The others travel on for later tokens, except into a passing
// slot.
void SlabResidency::LeaveToCpu(Entry* entry) {
  Slot& slot = table().slot(entry->slot);
  if (entry->state == State::kInFlight) {
    --in_flight_;
  }
  if (!TravelsOn() && slot.state == SlotState::kFilling && slot.request != 0) {
    client_->Cancel(slot.request);
  }
  slot.pinned = false;
  entry->slot = ExpertSlots::kNoSlot;
  entry->state = State::kCpu;
}

// In virtual time, if only the CPU is awaited: advances the clock to its next result.
bool SlabResidency::AwaitCpu() {
  if (!cpu_.is_virtual()) {
    return false;
  }
  int64_t next = INT64_MAX;
  for (uint32_t i = 0; i < demands(); ++i) {
    if (entries_[i].state == State::kCpu) {
      next = std::min(next, cpu_.ends(i));
    }
  }
  if (next == INT64_MAX || in_flight_ > 0) {
    clock_->cpu().SetNextResult(next);
    return false;
  }
  fetches_->CountStall(std::max<int64_t>(0, next - clock_->NowNanos()));
  clock_->AdvanceTo(next);
  return true;
}

}  // namespace sluice::inferd
