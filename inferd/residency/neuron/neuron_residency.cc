#include "inferd/residency/neuron/neuron_residency.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/status.h"

namespace sluice {
namespace {

// Landed tiles ring no bell: while some travel, they are looked for at this pace.
constexpr absl::Duration kTilePace = absl::Microseconds(300);

}  // namespace

void NeuronResidency::SetScores(absl::Span<const float> scores) {
  scores_.assign(scores.begin(), scores.begin() + std::min(scores.size(), scores_.capacity()));
}

void NeuronResidency::BeginStep(uint64_t step) {
  step_ = step;
  Poll();
}

void NeuronResidency::Poll() {
  fetches_->Poll([this](const FetchKey& key, const FetchCompletion& completion) { Handle(key, completion); });
}

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

// The layer before has been computed, or given up.
void NeuronResidency::EndLayer() {
  if (!in_layer_) {
    return;
  }
  in_layer_ = false;
  for (uint32_t i = 0; i < demands_; ++i) {
    demand_of_[entries_[i].expert] = 0;
  }
  demands_ = open_ = 0;
  ready_.clear();
  eviction_.EndLayer(layer_);
  slots_->table().TrimLayer(layer_, [this](uint32_t layer, absl::Span<const uint32_t> experts) {
    return eviction_.Victim(layer, experts);
  });
}

// A layer that streams tells the policy nothing: what it kept before is worth keeping still.
void NeuronResidency::TellEviction() {
  chosen_.clear();
  for (uint32_t i = 0; i < demands_; ++i) {
    chosen_.push_back(entries_[i].expert);
  }
  const bool scored = scores_.size() == pack_.expert_count(layer_) && !streams_;
  eviction_.BeginLayer(layer_, scored ? absl::MakeConstSpan(scores_) : absl::Span<const float>(),
                       streams_ ? absl::Span<const uint32_t>() : absl::MakeConstSpan(chosen_));
  scores_.clear();
}

absl::Status NeuronResidency::BeginLayer(uint32_t layer, absl::Span<const ExpertDemand> demands) {
  if (demands.size() > entries_.size()) {
    return absl::InternalError(
        absl::StrCat("layer ", layer, ": ", demands.size(), " demands for ", entries_.size(), " experts"));
  }
  EndLayer();
  layer_ = layer;
  failed_.clear();
  no_room_ = false;
  trouble_ = absl::OkStatus();
  if (demands.empty()) {
    return absl::OkStatus();
  }
  in_layer_ = true;
  width_ = pack_.config().layers[layer].moe.expert_width;
  std::fill(all_.begin(), all_.end(), uint64_t{0});
  for (uint32_t neuron = 0; neuron < width_; ++neuron) {
    all_[neuron / 64] |= uint64_t{1} << neuron % 64;
  }
  value_rows_ = 0;
  budget_ = {options_.budget_us * 1e-6, LoadSeconds(), options_.slots.link_latency_us * 1e-6};
  std::fill(begun_.begin(), begun_.end(), uint8_t{0});
  demands_ = static_cast<uint32_t>(demands.size());
  streams_ = prefill_ && demands_ > slots_->table().quota(layer);
  for (uint32_t i = 0; i < demands_; ++i) {
    BeginEntry(i, demands[i]);
  }
  TellEviction();
  const OneBell bell(client_);
  client_->CancelPrefetches(step_, layer);
  return AskForWaiting();
}

void NeuronResidency::FinishHandedOut() {
  for (const ReadyTile& tile : ready_) {
    Entry& entry = entries_[tile.demand];
    if (entry.state == State::kOut) {
      entry.state = State::kDone;
      --open_;
      if (entry.slot != NeuronSlots::kNoSlot) {
        slots_->table().slot(entry.slot).pinned = false;
      }
    }
  }
  ready_.clear();
}

absl::Status NeuronResidency::LeadsQueued() {
  if (ready_.empty() || !ready_.front().lead_only) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(queue_->Wait(queue_->Record()));
  DecideNeurons();
  ready_.clear();
  return AskForWaiting();
}

absl::StatusOr<absl::Span<const ReadyTile>> NeuronResidency::Next() {
  RETURN_IF_ERROR(LeadsQueued());
  if (!ready_.empty()) {
    RETURN_IF_ERROR(queue_->Wait(queue_->Record()));  // nothing reads the weights any more
    FinishHandedOut();
  }
  stall_.Restart(absl::Now());  // computing is no waiting
  while (open_ > 0) {
    Poll();
    if (std::exchange(leads_came_, false) && listener_ != nullptr) {
      const OneBell bell(client_);
      RETURN_IF_ERROR(listener_->OnLeads());
    }
    RETURN_IF_ERROR(trouble_);
    RETURN_IF_ERROR(AskForWaiting());
    HandOut();
    if (!ready_.empty()) {
      return absl::MakeConstSpan(ready_);
    }
    if (open_ == 0) {
      break;
    }
    if (stall_.Exceeded(absl::Now())) {
      return StallError();
    }
    RETURN_IF_ERROR(fetches_->Wait(stall_.EndOfWait(absl::Now(), WaitUntil())));
  }
  return absl::Span<const ReadyTile>();
}

absl::Time NeuronResidency::WaitUntil() const {
  if (no_room_ && slots_->demands_in_flight() == 0) {
    return retry_at_;
  }
  return slots_->TileOf(width_) < width_ ? absl::Now() + kTilePace : absl::InfiniteFuture();
}

absl::Status NeuronResidency::StallError() const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "layer ", layer_, ": neurons of ", open_, " experts did not come for ",
      absl::FormatDuration(options_.slots.stall_limit), ", ", slots_->in_flight(), " transfers in flight, ",
      counters_.total().no_room, " fills found no room in weightd's DRAM"));
}

bool NeuronResidency::NextWaits() const {
  for (uint32_t i = 0; i < demands_; ++i) {
    const Entry& entry = entries_[i];
    if (entry.state == State::kLeadReady || entry.state == State::kReady ||
        (entry.state == State::kNeuronsCome && slots_->LandedNeurons(entry.slot) > entry.handed)) {
      return false;
    }
  }
  return open_ > 0;
}

// Leads first: the sooner they are computed, the sooner all that the layer lacks is asked for.
void NeuronResidency::HandOut() {
  for (uint32_t i = 0; i < demands_; ++i) {
    if (entries_[i].state == State::kLeadReady) {
      HandOutLead(i);
    }
  }
  for (uint32_t i = 0; i < demands_ && (ready_.empty() || !ready_.front().lead_only); ++i) {
    Entry& entry = entries_[i];
    if (entry.state == State::kReady) {
      HandOutRange(i, width_);
      entry.state = State::kOut;
    } else if (entry.state == State::kNeuronsCome) {
      const uint32_t landed = slots_->LandedNeurons(entry.slot);
      if (landed > entry.handed && landed < width_) {  // the last tile waits for the completion
        HandOutRange(i, landed);
      }
    }
  }
}

void NeuronResidency::HandOutLead(uint32_t index) {
  Entry& entry = entries_[index];
  const WeightView lead = slots_->LeadView(layer_, entry.expert);
  ReadyTile tile;
  tile.demand = index;
  (slots_->lead() == Part::kUp ? tile.up : tile.gate) = lead;
  tile.lead_only = true;
  tile.lead_values = {{leads_, entry.values_row * value_stride_ * sizeof(float)}, value_stride_};
  tile.lead_active = {leads_, active_offset_ + uint64_t{index} * words_ * sizeof(uint64_t)};
  counters_.Add(layer_, &ResidencyCounters::bytes_touched, slots_->layout(layer_, entry.expert).lead_bytes);
  entry.state = State::kLeadOut;
  ready_.push_back(tile);
}

void NeuronResidency::HandOutRange(uint32_t index, uint32_t end) {
  Entry& entry = entries_[index];
  const NeuronLayout& layout = slots_->layout(layer_, entry.expert);
  const bool none = entry.slot == NeuronSlots::kNoSlot;
  const bool by_list = none || (end == width_ && !slots_->neurons().InOrder(entry.slot));
  const auto part = [&](Part p) {
    return p == slots_->lead() ? slots_->LeadView(layer_, entry.expert)
                               : slots_->RecordView(layer_, entry.expert, entry.slot, p, by_list);
  };
  ReadyTile tile;
  tile.demand = index;
  tile.up = part(Part::kUp);
  tile.gate = part(Part::kGate);
  tile.down = part(Part::kDown);
  tile.neuron_begin = entry.handed;
  tile.neuron_end = end;
  uint64_t records = end - entry.handed;
  if (entry.looks) {
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

}  // namespace sluice
