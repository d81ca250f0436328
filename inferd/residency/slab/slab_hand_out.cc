// Hand-out of a layer: the experts to be computed, their order, and their return.
#include <algorithm>
#include <utility>

#include "inferd/residency/slab/slab_residency.h"

namespace sluice::inferd {

bool SlabResidency::NextWaits() const {
  const bool held_back = FillsGaps() && gaps_.HoldsBack();
  for (uint32_t i = 0; i < demands(); ++i) {
    const Entry& entry = entries_[i];
    if ((entry.state == State::kReady && entry.handed < width_ && !(held_back && Stays(i))) ||
        (entry.state == State::kCpu && cpu_.IsComputed(i)) ||
        (entry.state == State::kInFlight && slots_->Landed(entry.slot) > entry.handed)) {
      return false;
    }
  }
  return open_ > 0;
}

absl::Status SlabResidency::HandOut() {
  gaps_.HandOut(
      demands(), FillsGaps(), [this](uint32_t i) { return Stays(i); },
      [this](uint32_t i) { return HandOutEntry(i); });
  return absl::OkStatus();
}

// The last tile of an expert waits for its completion, so that a slot is never freed while weightd still
// writes to it.
bool SlabResidency::HandOutEntry(uint32_t index) {
  const size_t before = ready_.size();
  Entry& entry = entries_[index];
  if (entry.state == State::kReady && entry.idle) {
    entry.state = State::kDone;
    CloseDemand();
    table().slot(entry.slot).pinned = false;
  } else if (entry.state == State::kReady) {
    HandOutRange(index, entry.shared > 0 ? entry.shared : width_);
  } else if (entry.state == State::kCpu && cpu_.IsComputed(index)) {
    HandOutCpu(index);
  } else if (entry.state == State::kInFlight && !entry.idle) {
    const uint32_t landed = slots_->Landed(entry.slot);
    if (landed > entry.handed && (landed < width_ || entry.shared > 0)) {
      HandOutRange(index, entry.shared > 0 ? std::min(landed, entry.shared) : landed);
    }
  }
  return ready_.size() > before;
}

void SlabResidency::HandOutRange(uint32_t index, uint32_t end) {
  Entry& entry = entries_[index];
  if (end <= entry.handed) {
    return;
  }
  ReadyTile tile;
  tile.demand = index;
  tile.up = slots_->PartOf(entry.slot, Part::kUp);
  tile.gate = slots_->PartOf(entry.slot, Part::kGate);
  tile.down = slots_->PartOf(entry.slot, Part::kDown);
  tile.neuron_begin = entry.handed;
  tile.neuron_end = end;
  counters_.Add(layer_, &ResidencyCounters::bytes_touched,
                pack_.expert_bytes(layer_, experts()[index]) * (end - entry.handed) / width_);
  entry.handed = end;
  ready_.push_back(tile);
}

absl::Status SlabResidency::ReturnTiles(Event used) {
  gaps_.Queued(used);
  for (const ReadyTile& tile : ready_) {
    Entry& entry = entries_[tile.demand];
    if (entry.slot != ExpertSlots::kNoSlot) {
      table().slot(entry.slot).last_use = used;
    }
    if (entry.shared > 0 && entry.handed >= entry.shared && entry.slot != ExpertSlots::kNoSlot) {
      LeaveToCpu(&entry);
    } else if (entry.state == State::kReady && entry.handed >= width_) {
      entry.state = State::kDone;
      CloseDemand();
      table().slot(entry.slot).pinned = false;
    } else if (entry.state == State::kCpuHandedOut) {
      entry.state = State::kDone;
      cpu_used_ = cpu_place_->queue().Record();
      cpu_measured_ = clock_ != nullptr;
      CloseDemand();
    }
  }
  ReleaseRead();
  return absl::OkStatus();
}

// A released lease may be overwritten at once. The measured CPU time corrects later forecasts.
void SlabResidency::ReleaseRead() {
  if (cpu_.held() == 0 || !cpu_place_->queue().IsDone(cpu_used_)) {
    return;
  }
  if (!std::exchange(cpu_measured_, true)) {
    if (const auto took = cpu_place_->queue().Seconds(cpu_began_, cpu_used_); took.ok()) {
      costs_.ReportTime(*took, cpu_queued_);
    }
  }
  for (uint32_t i = 0; i < demands(); ++i) {
    if (entries_[i].state == State::kDone) {
      cpu_.Release(i, step_);
    }
  }
}

}  // namespace sluice::inferd
