#include "inferd/cache/neuron_residency.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"

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

absl::Status NeuronResidency::BeginLayer(const LayerDemands& begun) {
  EndLayer();
  RETURN_IF_ERROR(OpenLayer(begun));
  const uint32_t layer = begun.layer;
  const absl::Span<const ExpertDemand> demands = begun.demands;
  if (demands.empty()) {
    return absl::OkStatus();
  }
  width_ = pack_.config().layers[layer].moe.expert_width;
  std::fill(all_.begin(), all_.end(), uint64_t{0});
  for (uint32_t neuron = 0; neuron < width_; ++neuron) {
    all_[neuron / 64] |= uint64_t{1} << neuron % 64;
  }
  // Rows with precomputed values are the first ones.
  value_rows_ = begun.lead_rows.empty() ? 0 : LargestTopKOf(pack_);
  budget_ = {options_.budget_us * 1e-6, link_.SecondsPerByte(), options_.slots.link_latency_us * 1e-6};
  std::fill(begun_.begin(), begun_.end(), uint8_t{0});
  streams_ = needs_.prefill && demands.size() > slots_->table().quota(layer);
  for (size_t i = 0; i < demands.size(); ++i) {
    BeginEntry(demands[i], i < begun.lead_rows.size() ? begun.lead_rows[i] : kNoRow);
  }
  ProcessEarlyLeads();
  keeper_.BeginLayer(layer, experts(), begun.scores, streams_);
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
    return SteadyNow() + kDevicePace;
  }
  if (window_.no_room() && slots_->demands_in_flight() == 0) {
    return window_.retry_at();
  }
  if (slots_->demands_in_flight() == 0) {  // waits for a slot that is still read, or that a prefetch holds
    return SteadyNow() + FetchWindow::kRetryPace;
  }
  return slots_->TileOf(width_) < width_ ? SteadyNow() + kNeuronTilePace : absl::InfiniteFuture();
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

// One-time and per-session setup: memory, resident leads, the first fill.

NeuronResidency::NeuronResidency(const NeuronResidencyOptions& options, std::unique_ptr<NeuronSlots> slots,
                                 WeightClient* client, FetchQueue* fetches, Backend* backend)
    : LayerResidency(client, fetches, &backend->queue(), FetchWindow(options.slots.max_in_flight),
                     options.slots.stall_limit, options.slots.watch),
      options_(options),
      backend_(backend),
      slots_(std::move(slots)),
      keeper_(options.slots.eviction, ExpertsByLayer(pack_), &slots_->table()),
      fill_(options.slots.stall_limit, fetches, {[this] { Poll(); }, [this] { return slots_->in_flight(); }}),
      link_(options.slots.load_seconds, fetches),
      gaps_(slots_->plan(), queue_),
      entries_(most_experts()),
      words_(slots_->neurons().words()) {
  const uint64_t most = most_experts();
  need_.assign(most * words_, 0);
  all_.assign(words_, 0);
  none_.assign(words_, 0);
  list_.assign(uint64_t{words_} * 64, 0);
  if (options_.miss == NeuronMiss::kBudgeted) {
    wants_.reserve(most * words_ * 64);
  }
  begun_.assign(most, 0);
  leads_out_.reserve(most);
  layer_leads_.reserve(most);
  used_experts_.reserve(most);
  neuron_counters_.resize(pack_.config().layers.size());
}

NeuronResidency::~NeuronResidency() {
  if (leads_ != kNoBuffer) {
    backend_->Free(leads_).IgnoreError();  // the id is valid
  }
}

absl::StatusOr<std::unique_ptr<NeuronResidency>> NeuronResidency::Create(
    const NeuronResidencyOptions& options, WeightClient* client, FetchQueue* fetches, Backend* backend) {
  NeuronSlotsOptions slots;
  slots.budget = options.slots.budget;
  slots.lead = options.slots.lead;
  slots.lead_resident = options.lead_resident;
  slots.fetch_ahead = options.fetch_ahead;
  slots.link_gbps = options.slots.link_gbps;
  slots.link_latency_us = options.slots.link_latency_us;
  slots.tile_neurons = options.slots.tile_neurons;
  slots.allocate = options.slots.allocate;
  ASSIGN_OR_RETURN(std::unique_ptr<NeuronSlots> made, NeuronSlots::Create(slots, client, fetches, backend));
  std::unique_ptr<NeuronResidency> residency(
      new NeuronResidency(options, std::move(made), client, fetches, backend));
  RETURN_IF_ERROR(residency->AllocateLeads());
  return residency;
}

absl::Status NeuronResidency::AllocateLeads() {
  value_stride_ = uint64_t{words_} * 64;
  active_offset_ = kValueRows * value_stride_ * sizeof(float);
  const uint64_t bytes = active_offset_ + entries_.size() * words_ * sizeof(uint64_t);
  ASSIGN_OR_RETURN(leads_, backend_->Allocate(bytes, BufferKind::kStaging));
  if (backend_->HostRead({leads_, 0}, bytes) == nullptr) {
    return absl::InternalError("the leads' values cannot be read by the host");
  }
  return absl::OkStatus();
}

absl::Status NeuronResidency::Attach() {
  RETURN_IF_ERROR(slots_->Offer());
  if (filled_) {
    return absl::OkStatus();  // slots filled before weightd was lost are still valid
  }
  fill_.Restart();
  RETURN_IF_ERROR(FillLeads());
  RETURN_IF_ERROR(FillSlots());
  RETURN_IF_ERROR(fill_.Drain(0));
  filled_ = true;
  return absl::OkStatus();
}

// Waits until all leads have arrived: no mask can be computed without them.
absl::Status NeuronResidency::FillLeads() {
  if (!slots_->lead_resident()) {
    return absl::OkStatus();
  }
  uint64_t missing = pack_.expert_total();
  absl::Time limit = SteadyNow() + options_.slots.stall_limit;
  for (;;) {
    ASSIGN_OR_RETURN(const uint64_t asked, RequestLeads());
    RETURN_IF_ERROR(fill_.Drain(0));
    RETURN_IF_ERROR(start_error_);
    if (asked == 0) {
      return absl::OkStatus();
    }
    if (asked < missing) {
      limit = SteadyNow() + options_.slots.stall_limit;
    } else if (SteadyNow() >= limit) {
      return absl::ResourceExhaustedError(absl::StrCat(asked, " of ", pack_.expert_total(),
                                                       " experts' leads did not come for ",
                                                       absl::FormatDuration(options_.slots.stall_limit)));
    }
    missing = asked;
    Poll();
  }
}

// Requests missing leads; returns their number, though the ring may have accepted fewer.
absl::StatusOr<uint64_t> NeuronResidency::RequestLeads() {
  uint64_t asked = 0;
  for (uint32_t layer = 0; layer < pack_.config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack_.expert_count(layer); ++expert) {
      if (slots_->HasLead(layer, expert)) {
        continue;
      }
      ++asked;
      RETURN_IF_ERROR(fill_.Drain(SlotFill::kWindow - 1));
      const absl::Status sent =
          slots_->FetchLead(RequestClass::kDemand, step_, layer, expert, NeuronSlots::kNoSlot);
      if (!sent.ok() && !absl::IsResourceExhausted(sent)) {
        return sent;
      }
    }
  }
  return asked;
}

absl::Status NeuronResidency::FillSlots() {
  return fill_.Fill(pack_, slots_->table(), options_.slots.fill_order,
                    [this](uint32_t layer, uint32_t expert) { return FillSlot(layer, expert); });
}

absl::Status NeuronResidency::FillSlot(uint32_t layer, uint32_t expert) {
  if (!slots_->CanTake(layer, expert)) {
    return absl::OkStatus();
  }
  const uint32_t slot = slots_->Take(layer, expert, SlotTable::For::kDemand, NoVictim);
  if (slot == NeuronSlots::kNoSlot) {
    return absl::OkStatus();
  }
  const uint32_t width = slots_->layout(layer, expert).width;
  for (uint32_t neuron = 0; neuron < width; ++neuron) {
    list_[neuron] = neuron;
  }
  const absl::Status sent = fill_.Send([&] {
    return slots_->FetchNeurons(RequestClass::kDemand, step_, slot, absl::MakeConstSpan(list_.data(), width));
  });
  if (!sent.ok()) {
    slots_->FreeSlot(slot);
  }
  return sent;
}

ResidencyStats NeuronResidency::stats() const {
  ResidencyStats stats = LayerResidency::stats();
  stats.neurons = neuron_counters_;
  stats.neuron_cache = {slots_->plan().slots, slots_->lead_resident(), options_.copy_all_share};
  return stats;
}

std::string NeuronResidency::Describe() const {
  const uint64_t leads = slots_->lead_resident() ? LeadBytes(pack_, slots_->lead()) : 0;
  return absl::StrCat("neurons in ", slots_->plan().slots, " slots of ", slots_->plan().bytes, " bytes, ",
                      slots_->lead() == Part::kUp ? "up" : "gate", " parts ",
                      leads > 0 ? absl::StrCat("stay (", leads, " bytes)") : std::string("in the slots"),
                      ", all of an expert's copied above ", options_.copy_all_share, " of them",
                      HasRoomAhead() ? "" : ", no room for neurons of the next layer");
}

}  // namespace sluice::inferd
