#include "inferd/residency/neuron/neuron_residency.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/status.h"

namespace sluice::inferd {
namespace {

// Poll interval while tiles travel; landed tiles send no signal.
constexpr absl::Duration kNeuronTilePace = absl::Microseconds(300);

}  // namespace

bool NeuronResidency::AllResident(uint32_t layer) const {
  const uint32_t experts = pack_.expert_count(layer);
  if (slots_->table().ready(layer) != experts) {
    return false;
  }
  for (uint32_t expert = 0; expert < experts; ++expert) {
    if (!slots_->IsFull(layer, expert)) {
      return false;
    }
  }
  return true;
}

double NeuronResidency::NeuronShare(uint32_t layer, uint32_t expert) const {
  const uint32_t slot = slots_->Find(layer, expert);
  if (slot == NeuronSlots::kNoSlot) {
    return 0;
  }
  return static_cast<double>(slots_->neurons().asked_count(slot)) / slots_->neurons().width(slot);
}

std::optional<WeightView> NeuronResidency::Lead(uint32_t layer, uint32_t expert) const {
  if (!slots_->HasLead(layer, expert)) {
    return std::nullopt;
  }
  return slots_->LeadView(layer, expert);
}

// The previous layer has been computed or abandoned.
void NeuronResidency::EndLayer() {
  leads_out_.clear();
  if (demands() > 0) {
    CloseLayer();
    keeper_.EndLayer(layer_);
  }
}

absl::Status NeuronResidency::BeginLayer(uint32_t layer, absl::Span<const ExpertDemand> demands) {
  EndLayer();
  RETURN_IF_ERROR(OpenLayer(layer, demands));
  if (demands.empty()) {
    return absl::OkStatus();
  }
  width_ = pack_.config().layers[layer].moe.expert_width;
  std::fill(all_.begin(), all_.end(), uint64_t{0});
  for (uint32_t neuron = 0; neuron < width_; ++neuron) {
    all_[neuron / 64] |= uint64_t{1} << neuron % 64;
  }
  // Rows with precomputed values are the first ones.
  value_rows_ = early_rows_.empty() ? 0 : LargestTopKOf(pack_);
  budget_ = {options_.budget_us * 1e-6, link_.SecondsPerByte(), options_.slots.link_latency_us * 1e-6};
  std::fill(begun_.begin(), begun_.end(), uint8_t{0});
  streams_ = prefill_ && demands.size() > slots_->table().quota(layer);
  for (const ExpertDemand& demand : demands) {
    BeginEntry(demand);
  }
  early_rows_.clear();
  ProcessEarlyLeads();
  keeper_.BeginLayer(layer, experts(), streams_);
  const BatchSubmit batch_submit(client_);
  client_->CancelPrefetches(step_, layer);
  return RequestWaiting();
}

absl::Status NeuronResidency::ReturnTiles(Event used) {
  gaps_.Queued(used);
  for (const ReadyTile& tile : ready_) {
    Entry& entry = entries_[tile.demand];
    if (entry.slot != NeuronSlots::kNoSlot) {
      slots_->table().slot(entry.slot).last_use = used;
    }
    if (entry.state == State::kOut) {
      entry.state = State::kDone;
      CloseDemand();
      if (entry.slot != NeuronSlots::kNoSlot) {
        slots_->table().slot(entry.slot).pinned = false;
      }
    }
  }
  return absl::OkStatus();
}

// Only if no lead may have to be fetched first, and the values of all ranks have a row.
std::optional<LayerLeads> NeuronResidency::LeadsAhead(uint32_t layer, uint32_t rows) {
  if (!slots_->lead_resident() || rows > 1 || LargestTopKOf(pack_) > kValueRows) {
    return std::nullopt;
  }
  layer_leads_.clear();
  for (uint32_t expert = 0; expert < pack_.expert_count(layer); ++expert) {
    if (!slots_->HasLead(layer, expert)) {
      return std::nullopt;
    }
    layer_leads_.push_back(slots_->LeadView(layer, expert));
  }
  return LayerLeads{layer_leads_, {{leads_, 0}, value_stride_}, {leads_, active_offset_}};
}

ReadyTile NeuronResidency::Whole(uint32_t layer, uint32_t expert) const {
  const uint32_t slot = slots_->Find(layer, expert);
  const bool by_list = !slots_->neurons().InOrder(slot);
  const auto part = [&](Part p) {
    return p == slots_->lead() ? slots_->LeadView(layer, expert)
                               : slots_->RecordView(layer, expert, slot, p, by_list);
  };
  ReadyTile tile;
  tile.up = part(Part::kUp);
  tile.gate = part(Part::kGate);
  tile.down = part(Part::kDown);
  return tile;
}

void NeuronResidency::CountDeferred(uint32_t layer, absl::Span<const ExpertDemand> demands) {
  used_experts_.clear();
  for (const ExpertDemand& demand : demands) {
    used_experts_.push_back(demand.expert);
    counters_.Add(layer, &ResidencyCounters::requests);
    counters_.Add(layer, &ResidencyCounters::hits);
    const NeuronLayout& layout = slots_->layout(layer, demand.expert);
    counters_.Add(layer, &ResidencyCounters::bytes_touched,
                  layout.lead_bytes + layout.width * layout.record_bytes);
    if (const uint32_t there = slots_->Find(layer, demand.expert); there != NeuronSlots::kNoSlot) {
      Slot& slot = slots_->table().slot(there);  // it was read, and may have been evicted since
      counters_.Add(layer, &ResidencyCounters::prefetch_useful, slot.prefetched ? 1 : 0);
      slot.fresh = slot.prefetched = false;
    }
  }
  keeper_.NoteUse(layer, used_experts_);
}

void NeuronResidency::LeadRead(uint32_t layer, uint32_t expert, Event used) {
  if (const uint32_t slot = slots_->Find(layer, expert); slot != NeuronSlots::kNoSlot) {
    slots_->table().slot(slot).last_use = used;
  }
}

absl::Status NeuronResidency::LeadsQueued() {
  if (ready_.empty() || !ready_.front().lead_only) {
    return absl::OkStatus();
  }
  leads_queued_ = queue_->Record();
  for (const ReadyTile& tile : ready_) {
    leads_out_.push_back(tile.demand);
    if (const uint32_t slot = entries_[tile.demand].slot; slot != NeuronSlots::kNoSlot) {
      slots_->table().slot(slot).last_use = leads_queued_;
    }
  }
  ready_.clear();
  return TakeLeads();
}

// Lead values are processed once they are done; other experts arrive or are computed meanwhile.
absl::Status NeuronResidency::TakeLeads() {
  if (leads_out_.empty() || !queue_->IsDone(leads_queued_)) {
    return absl::OkStatus();
  }
  DecideNeurons();
  return RequestWaiting();
}

// Predictors read prefetched leads, and request neurons, while a layer waits for its own.
absl::Status NeuronResidency::Arrived() {
  RETURN_IF_ERROR(TakeLeads());
  if (!std::exchange(leads_came_, false) || listener_ == nullptr) {
    return absl::OkStatus();
  }
  const BatchSubmit batch_submit(client_);
  return listener_->OnLeads();
}

absl::Time NeuronResidency::WaitUntil() const {
  if (!leads_out_.empty()) {
    return absl::Now() + kDevicePace;
  }
  if (window_.no_room() && slots_->demands_in_flight() == 0) {
    return window_.retry_at();
  }
  if (slots_->demands_in_flight() == 0) {  // waits for a slot that is still read, or that a prefetch holds
    return absl::Now() + FetchWindow::kRetryPace;
  }
  return slots_->TileOf(width_) < width_ ? absl::Now() + kNeuronTilePace : absl::InfiniteFuture();
}

bool NeuronResidency::NextWaits() const {
  const bool held_back = FillsGaps() && gaps_.HoldsBack();
  for (uint32_t i = 0; i < demands(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.state == State::kLeadReady || (entry.state == State::kReady && !(held_back && Stays(i))) ||
        (entry.state == State::kNeuronsCome && slots_->LandedNeurons(entry.slot) > entry.handed)) {
      return false;
    }
  }
  return open_ > 0;
}

// Leads first: the sooner they are computed, the sooner all missing neurons are requested.
absl::Status NeuronResidency::HandOut() {
  for (uint32_t i = 0; i < demands(); ++i) {
    if (entries_[i].state == State::kLeadReady) {
      HandOutLead(i);
    }
  }
  if (ready_.empty()) {
    gaps_.HandOut(
        demands(), FillsGaps(), [this](uint32_t i) { return Stays(i); },
        [this](uint32_t i) { return HandOutEntry(i); });
  }
  return absl::OkStatus();
}

// Experts of a prompt that have no slot and need neurons wait for slots.
bool NeuronResidency::FillsGaps() const {
  if (!streams_) {
    return false;
  }
  return std::any_of(entries_.begin(), entries_.begin() + demands(), [](const Entry& entry) {
    return entry.slot == NeuronSlots::kNoSlot && entry.state < State::kReady;
  });
}

// The last tile of an expert waits for its completion.
bool NeuronResidency::HandOutEntry(uint32_t index) {
  Entry& entry = entries_[index];
  if (entry.state == State::kReady) {
    HandOutRange(index, width_);
    entry.state = State::kOut;
    return true;
  }
  const uint32_t landed = entry.state == State::kNeuronsCome ? slots_->LandedNeurons(entry.slot) : 0;
  if (landed <= entry.handed || landed >= width_) {
    return false;
  }
  HandOutRange(index, landed);
  return true;
}

void NeuronResidency::HandOutLead(uint32_t index) {
  Entry& entry = entries_[index];
  const uint32_t expert = experts()[index];
  const WeightView lead = slots_->LeadView(layer_, expert);
  ReadyTile tile;
  tile.demand = index;
  (slots_->lead() == Part::kUp ? tile.up : tile.gate) = lead;
  tile.lead_only = true;
  tile.lead_values = {{leads_, entry.values_row * value_stride_ * sizeof(float)}, value_stride_};
  tile.lead_active = MaskOf(index);
  counters_.Add(layer_, &ResidencyCounters::bytes_touched, slots_->layout(layer_, expert).lead_bytes);
  entry.state = State::kLeadOut;
  ready_.push_back(tile);
}

void NeuronResidency::HandOutRange(uint32_t index, uint32_t end) {
  Entry& entry = entries_[index];
  const uint32_t expert = experts()[index];
  const NeuronLayout& layout = slots_->layout(layer_, expert);
  const bool none = entry.slot == NeuronSlots::kNoSlot;
  const bool by_list = none || (end == width_ && !slots_->neurons().InOrder(entry.slot));
  const auto part = [&](Part p) {
    return p == slots_->lead() ? slots_->LeadView(layer_, expert)
                               : slots_->RecordView(layer_, expert, entry.slot, p, by_list);
  };
  ReadyTile tile;
  tile.demand = index;
  tile.up = part(Part::kUp);
  tile.gate = part(Part::kGate);
  tile.down = part(Part::kDown);
  tile.neuron_begin = entry.handed;
  tile.neuron_end = end;
  uint64_t records = end - entry.handed;
  if (entry.checks_lead) {
    tile.lead_values = {{leads_, entry.values_row * value_stride_ * sizeof(float)}, value_stride_};
    records = CountNeurons(NeedOf(index)) * records / width_;
  } else {
    counters_.Add(layer_, &ResidencyCounters::bytes_touched,
                  layout.lead_bytes * (end - entry.handed) / width_);
  }
  counters_.Add(layer_, &ResidencyCounters::bytes_touched, records * layout.record_bytes);
  entry.handed = end;
  ready_.push_back(tile);
}

void NeuronResidency::Abandon() {
  EndLayer();
  if (!client_->connected()) {
    slots_->Lose();
  }
}

}  // namespace sluice::inferd
