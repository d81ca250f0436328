// Requests of a layer: the neurons that its experts need, the neurons that travel, and the end of transfers.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "inferd/cache/neuron_residency.h"

namespace sluice::inferd {
namespace {

// Maximum rows of an expert with a lead check: more rows need nearly all of its neurons, at 90 % sparsity
// too.
constexpr uint32_t kMaxLeadCheckRows = 32;

}  // namespace

void NeuronResidency::BeginEntry(const ExpertDemand& demand, uint32_t lead_row) {
  const uint32_t index = demands();
  OpenDemand(demand.expert);
  Entry& entry = entries_[index];
  entry = {};
  entry.rows = demand.tokens;
  entry.slot = slots_->Find(layer_, demand.expert);
  entry.checks_lead = demand.tokens <= kMaxLeadCheckRows && value_rows_ + demand.tokens <= kValueRows;
  entry.made = lead_row != kNoRow;
  if (entry.made) {
    entry.checks_lead = true;
    entry.values_row = lead_row;
  } else if (entry.checks_lead) {
    entry.values_row = value_rows_;
    value_rows_ += demand.tokens;
  } else {
    std::copy(all_.begin(), all_.end(), Need(index));
  }
  CountDemand(demand.expert, entry);
  if (entry.slot == NeuronSlots::kNoSlot) {
    if (slots_->lead_resident()) {
      entry.state = entry.checks_lead ? State::kLeadReady : State::kNeedsNeurons;
    }
    return;
  }
  Slot& slot = slots_->table().slot(entry.slot);
  const uint64_t predicted = slots_->predicted(entry.slot);
  entry.predicted = predicted > 0 && predicted + 1 >= step_;
  slot.pinned = true;
  slot.fresh = slot.prefetched = false;
  slots_->Promote(step_, entry.slot);
  entry.state = !slots_->HasLead(layer_, demand.expert) ? State::kLeadComes
                : entry.checks_lead                     ? State::kLeadReady
                                                        : State::kNeedsNeurons;
}

void NeuronResidency::CountDemand(uint32_t expert, const Entry& entry) {
  counters_.Add(layer_, &ResidencyCounters::requests);
  if (entry.slot == NeuronSlots::kNoSlot) {
    return;
  }
  const bool there = slots_->HasLead(layer_, expert) && slots_->neurons().present_count(entry.slot) > 0;
  counters_.Add(layer_, there ? &ResidencyCounters::hits : &ResidencyCounters::late,
                there || slots_->IsBusy(entry.slot) ? 1 : 0);
  counters_.Add(layer_, &ResidencyCounters::prefetch_useful,
                there && slots_->table().slot(entry.slot).prefetched ? 1 : 0);
}

// Sends waiting requests as far as the window, the ring and the slots allow.
absl::Status NeuronResidency::RequestWaiting() {
  if (!window_.CanRequest(slots_->demands_in_flight(), SteadyNow())) {
    return absl::OkStatus();
  }
  const BatchSubmit batch_submit(client_);
  for (uint32_t i = 0; i < demands() && !window_.IsFull(slots_->demands_in_flight()); ++i) {
    absl::Status status;
    if (entries_[i].state == State::kNeedsSlot) {
      status = RequestSlot(i);
    } else if (entries_[i].state == State::kNeedsNeurons) {
      status = RequestNeurons(i);
    }
    if (absl::IsResourceExhausted(status)) {
      return absl::OkStatus();  // the ring is full: completions will make room
    }
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

uint32_t NeuronResidency::TakeSlot(uint32_t expert) {
  if (!slots_->CanTake(layer_, expert)) {
    return NeuronSlots::kNoSlot;  // weightd may still write there
  }
  const uint32_t slot =
      slots_->Take(layer_, expert, streams_ ? SlotTable::For::kStream : SlotTable::For::kDemand, keeper_);
  if (slot != NeuronSlots::kNoSlot) {
    slots_->table().slot(slot).pinned = true;
  }
  return slot;
}

// Lists every neuron that was not requested in list_; returns their number.
uint32_t NeuronResidency::ListAll(uint32_t slot) {
  return ListNeurons(all_, slots_->neurons().asked(slot), list_.data());
}

// OK without a request if there is no slot: an expert being computed will free one.
absl::Status NeuronResidency::RequestSlot(uint32_t index) {
  Entry& entry = entries_[index];
  const uint32_t expert = experts()[index];
  const uint32_t slot = TakeSlot(expert);
  if (slot == NeuronSlots::kNoSlot) {
    return absl::OkStatus();
  }
  const absl::Status sent = entry.checks_lead
                                ? slots_->FetchLead(RequestClass::kDemand, step_, layer_, expert, slot)
                                : slots_->FetchNeurons(RequestClass::kDemand, step_, slot,
                                                       absl::MakeConstSpan(list_.data(), ListAll(slot)));
  if (!sent.ok()) {
    slots_->FreeSlot(slot);
    return sent;
  }
  layer_counters().fetched += entry.checks_lead ? 0 : width_;
  layer_counters().copied_all += entry.checks_lead ? 0 : 1;
  entry.slot = slot;
  entry.state = entry.checks_lead ? State::kLeadComes : State::kNeuronsCome;
  return absl::OkStatus();
}

bool NeuronResidency::HasAll(uint32_t index) const {
  const Entry& entry = entries_[index];
  const uint32_t needed = CountNeurons(NeedOf(index));
  return needed == 0 || (entry.slot != NeuronSlots::kNoSlot &&
                         CountBoth(NeedOf(index), slots_->neurons().present(entry.slot)) == needed);
}

absl::Status NeuronResidency::RequestNeurons(uint32_t index) {
  Entry& entry = entries_[index];
  if (HasAll(index)) {
    entry.state = State::kReady;
    return absl::OkStatus();
  }
  entry.slot = entry.slot == NeuronSlots::kNoSlot ? TakeSlot(experts()[index]) : entry.slot;
  if (entry.slot == NeuronSlots::kNoSlot) {
    return absl::OkStatus();
  }
  uint32_t count = ListNeurons(NeedOf(index), slots_->neurons().asked(entry.slot), list_.data());
  if (count == 0) {
    entry.state = State::kNeuronsCome;
    return absl::OkStatus();
  }
  const bool all = CopiesAll(count, width_, options_.copy_all_share);
  count = all ? ListAll(entry.slot) : count;
  absl::Status sent = slots_->FetchNeurons(RequestClass::kDemand, step_, entry.slot,
                                           absl::MakeConstSpan(list_.data(), count));
  if (absl::IsOutOfRange(sent)) {
    if (!slots_->IsBusy(entry.slot) && slots_->table().IsIdle(entry.slot)) {
      slots_->neurons().Reset(entry.slot, width_);  // dropped records are free again
      return RequestNeurons(index);
    }
    return absl::OkStatus();  // freed once its transfers have ended and nothing reads it
  }
  RETURN_IF_ERROR(sent);
  layer_counters().fetched += count;
  layer_counters().copied_all += all ? 1 : 0;
  entry.state = State::kNeuronsCome;
  return absl::OkStatus();
}

BufferRef NeuronResidency::MaskOf(uint32_t index) const {
  const Entry& entry = entries_[index];
  const uint64_t place =
      entry.made ? uint64_t{entry.values_row} * ((width_ + 63) / 64) : uint64_t{index} * words_;
  return {leads_, active_offset_ + place * sizeof(uint64_t)};
}

// Processes leads that were computed before the layer began.
void NeuronResidency::ProcessEarlyLeads() {
  wants_.clear();
  for (uint32_t i = 0; i < demands(); ++i) {
    if (entries_[i].made) {
      DecideFor(i);
      entries_[i].state = State::kNeedsNeurons;
      counters_.Add(layer_, &ResidencyCounters::bytes_touched,
                    slots_->layout(layer_, experts()[i]).lead_bytes);
    }
  }
  ChooseWithinBudget();
}

// The leads handed out have been computed, so their masks tell the neurons that each expert needs.
void NeuronResidency::DecideNeurons() {
  wants_.clear();
  for (const uint32_t index : leads_out_) {
    if (entries_[index].state == State::kLeadOut) {
      DecideFor(index);
      entries_[index].state = State::kNeedsNeurons;
    }
  }
  leads_out_.clear();
  ChooseWithinBudget();
}

void NeuronResidency::DecideFor(uint32_t index) {
  const Entry& entry = entries_[index];
  const bool none = entry.slot == NeuronSlots::kNoSlot;
  const auto present = none ? absl::MakeConstSpan(none_) : slots_->neurons().present(entry.slot);
  const auto asked = none ? absl::MakeConstSpan(none_) : slots_->neurons().asked(entry.slot);
  const BufferRef mask = MaskOf(index);
  const uint32_t words = (width_ + 63) / 64;
  uint64_t* need = Need(index);
  std::fill_n(need, words_, uint64_t{0});
  std::memcpy(need, backend_->HostRead(mask, words * sizeof(uint64_t)), words * sizeof(uint64_t));
  const auto active = NeedOf(index);
  const uint32_t count = CountNeurons(active);
  layer_counters().requests += count;
  layer_counters().hits += CountBoth(active, present);
  if (needs_.exact || options_.miss == NeuronMiss::kLoad ||
      (options_.miss == NeuronMiss::kProceed && !entry.predicted)) {
    return;
  }
  if (options_.miss == NeuronMiss::kBudgeted) {
    WantNeurons(index, asked);
  }
  for (uint32_t word = 0; word < words_; ++word) {
    need[word] &= asked[word];
  }
  layer_counters().left_out += count - CountNeurons(active);
}

// Notes the demand's counting neurons that were not requested, with their sizes, for the shared budget.
void NeuronResidency::WantNeurons(uint32_t index, absl::Span<const uint64_t> asked) {
  const Entry& entry = entries_[index];
  const uint32_t count = ListNeurons(NeedOf(index), asked, list_.data());
  const size_t first = wants_.size();
  const auto bytes = static_cast<uint32_t>(slots_->layout(layer_, experts()[index]).record_bytes);
  for (uint32_t i = 0; i < count; ++i) {
    wants_.push_back({0, index, list_[i], bytes});
  }
  for (uint32_t row = 0; row < entry.rows; ++row) {
    const BufferRef place{leads_, (entry.values_row + row) * value_stride_ * sizeof(float)};
    const auto* values = reinterpret_cast<const float*>(backend_->HostRead(place, width_ * sizeof(float)));
    for (uint32_t i = 0; i < count; ++i) {
      const float size = std::fabs(values[list_[i]]);
      NeuronWant& want = wants_[first + i];
      want.size = std::isnan(size) ? std::numeric_limits<float>::infinity() : std::max(want.size, size);
    }
  }
}

// Adds the largest noted neurons to the needed ones, within the layer's link time.
void NeuronResidency::ChooseWithinBudget() {
  if (wants_.empty()) {
    return;
  }
  const size_t chosen = ChooseLargest(absl::MakeSpan(wants_), absl::MakeSpan(begun_), &budget_);
  for (size_t i = 0; i < chosen; ++i) {
    Need(wants_[i].demand)[wants_[i].neuron / 64] |= uint64_t{1} << wants_[i].neuron % 64;
  }
  layer_counters().left_out -= chosen;
}

// Completions between layers and of prefetches concern no demand.
void NeuronResidency::Handle(const FetchKey& key, const FetchCompletion& completion) {
  NeuronSlots::Ended ended;
  if (key.dense() || !slots_->Handle(completion, &ended)) {
    return;
  }
  const bool ok = completion.code == absl::StatusCode::kOk;
  leads_came_ = leads_came_ || (ok && ended.lead && key.request_class == RequestClass::kPrefetch);
  if (ended.slot == NeuronSlots::kNoSlot && completion.code == absl::StatusCode::kDataLoss) {
    start_error_ = absl::DataLossError(
        absl::StrCat(pack_.ExtentName(completion.extent), " of pack ", pack_.dir(), " is damaged"));
  }
  counters_.Add(ended.layer, &ResidencyCounters::bytes_link, completion.link_bytes);
  counters_.Add(ended.layer, &ResidencyCounters::bytes_ssd, completion.bytes);
  neuron_counters_[ended.layer].bytes += ended.neurons ? completion.link_bytes : 0;
  const uint32_t index =
      ended.slot != NeuronSlots::kNoSlot ? FindDemand(ended.layer, ended.expert) : kNoDemand;
  if (index == kNoDemand || entries_[index].slot != ended.slot) {
    return;
  }
  if (ended.counts) {
    ok ? CountArrival() : CountFailure(completion, index);
  }
  Reconsider(index, ended, ok);
}

void NeuronResidency::CountArrival() {
  stall_.Restart(SteadyNow());
  window_.OnCompleted();
  window_.OnRoomMade();
}

void NeuronResidency::CountFailure(const FetchCompletion& completion, uint32_t index) {
  Entry& entry = entries_[index];
  switch (completion.code) {
    case absl::StatusCode::kDataLoss:
      if (entry.state != State::kFailed && entry.state != State::kDone) {
        entry.state = State::kFailed;
        FailDemand(index, completion.extent);
      }
      return;
    case absl::StatusCode::kResourceExhausted:
      CountRefusal();
      return;
    case absl::StatusCode::kCancelled:  // a prefetch that had not begun
      return;
    default:
      unexpected_error_ =
          absl::Status(completion.code, absl::StrCat("weightd could not transfer neurons of expert ",
                                                     experts()[index], " of layer ", layer_));
  }
}

// A transfer into the entry's slot has ended.
void NeuronResidency::Reconsider(uint32_t index, const NeuronSlots::Ended& ended, bool ok) {
  Entry& entry = entries_[index];
  if (entry.state == State::kFailed || entry.state == State::kDone) {
    return;
  }
  if (ended.counts && ended.lead && !ok) {
    entry.slot = NeuronSlots::kNoSlot;
    entry.state = State::kNeedsSlot;
    entry.handed = 0;
  } else if (entry.state == State::kLeadComes && slots_->HasLead(layer_, experts()[index])) {
    entry.state = entry.checks_lead ? State::kLeadReady : State::kNeedsNeurons;
  } else if (entry.state == State::kNeuronsCome && HasAll(index)) {
    entry.state = State::kReady;
  } else if (entry.state == State::kNeuronsCome && ended.counts && !ok) {
    entry.state = State::kNeedsNeurons;
    entry.handed = 0;
  }
}

void NeuronResidency::Prefetch(uint32_t layer, uint32_t expert) { PrefetchNeurons(layer, expert, {}); }

void NeuronResidency::PrefetchNeurons(uint32_t layer, uint32_t expert, absl::Span<const uint32_t> neurons) {
  if (demands() > 0 && layer == layer_) {
    return;
  }
  uint32_t slot = slots_->Find(layer, expert);
  if (slot == NeuronSlots::kNoSlot && neurons.empty() && slots_->lead_resident()) {
    return;
  }
  if (slot == NeuronSlots::kNoSlot) {
    slot = slots_->CanTake(layer, expert) ? slots_->Take(layer, expert, SlotTable::For::kPrefetch, keeper_)
                                          : NeuronSlots::kNoSlot;
    if (slot == NeuronSlots::kNoSlot) {
      return;
    }
    if (!slots_->lead_resident() &&
        !slots_->FetchLead(RequestClass::kPrefetch, step_, layer, expert, slot).ok()) {
      slots_->FreeSlot(slot);
      return;
    }
    counters_.Add(layer, &ResidencyCounters::prefetch_issued, neurons.empty() ? 1 : 0);
  }
  slots_->table().slot(slot).fresh = true;
  if (neurons.empty()) {
    return;
  }
  const NeuronTable& table = slots_->neurons();
  const uint32_t width = table.width(slot);
  const auto asked = table.asked(slot);
  uint32_t count = 0;
  for (const uint32_t neuron : neurons) {
    if (neuron < width && !HasNeuron(asked, neuron)) {
      list_[count++] = neuron;
    }
  }
  if (CopiesAll(count, width, options_.copy_all_share)) {
    count = 0;
    for (uint32_t neuron = 0; neuron < width; ++neuron) {
      if (!HasNeuron(asked, neuron)) {
        list_[count++] = neuron;
      }
    }
  }
  if (count > 0 &&
      !slots_->FetchNeurons(RequestClass::kPrefetch, step_, slot, absl::MakeConstSpan(list_.data(), count))
           .ok()) {
    return;
  }
  counters_.Add(layer, &ResidencyCounters::prefetch_issued);
  neuron_counters_[layer].prefetched += count;
  slots_->SetPredicted(slot, step_);
}

}  // namespace sluice::inferd
