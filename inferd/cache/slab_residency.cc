#include "inferd/cache/slab_residency.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

// Poll interval while tiles travel; landed tiles send no signal.
constexpr absl::Duration kTilePace = absl::Microseconds(300);

}  // namespace

SlabResidency::SlabResidency(const SlabResidencyOptions& options, std::unique_ptr<ExpertSlots> slots,
                             WeightClient* client, FetchQueue* fetches, const SegmentBuffers* segments,
                             Backend* backend, Backend* cpu, VirtualClock* clock)
    : LayerResidency(client, fetches, &backend->queue(), FetchWindow(options.max_in_flight),
                     options.stall_limit, options.watch),
      options_(options),
      backend_(backend),
      cpu_place_(cpu),
      clock_(clock),
      slots_(std::move(slots)),
      keeper_(options.eviction, ExpertsByLayer(pack_), &slots_->table()),
      fill_(options.stall_limit, fetches, {[this] { Poll(); }, [this] { return table().filling(); }}),
      link_(options.load_seconds, fetches),
      forecast_(&link_, slots_.get(), &pack_),
      costs_(options.cpu_seconds, &link_, slots_.get(), &pack_),
      cpu_(client, segments, clock, most_experts()),
      plan_(most_experts()),
      gaps_(slots_->plan(), queue_),
      entries_(most_experts()) {
  used_experts_.reserve(most_experts());
}

absl::StatusOr<std::unique_ptr<SlabResidency>> SlabResidency::Create(
    const SlabResidencyOptions& options, WeightClient* client, FetchQueue* fetches,
    const SegmentBuffers* segments, Backend* backend, Backend* cpu, VirtualClock* clock) {
  ASSIGN_OR_RETURN(std::unique_ptr<ExpertSlots> slots,
                   ExpertSlots::Create(options, client, fetches, backend));
  return std::unique_ptr<SlabResidency>(
      new SlabResidency(options, std::move(slots), client, fetches, segments, backend, cpu, clock));
}

absl::Status SlabResidency::Attach() {
  RETURN_IF_ERROR(slots_->Offer(options_.link_gbps, options_.link_latency_us));
  if (filled_) {
    return absl::OkStatus();  // experts loaded before weightd was lost are still in their slots
  }
  RETURN_IF_ERROR(Fill());
  filled_ = true;
  return LearnCosts();
}

absl::Status SlabResidency::Fill() {
  fill_.Restart();
  RETURN_IF_ERROR(fill_.Fill(
      pack_, table(), options_.fill_order, [this](uint32_t layer, uint32_t expert) -> absl::Status {
        RETURN_IF_ERROR(fill_.Send([&] {
          return slots_->Fetch(RequestClass::kDemand, step_, layer, expert, SlotTable::For::kDemand, NoVictim)
              .status();
        }));
        if (clock_ != nullptr) {
          fill_.Restart();  // in virtual time the bytes arrived during the requests
        }
        return absl::OkStatus();
      }));
  return fill_.Drain(0);
}

// Costs are modelled, or measured by the devices' own clocks.
absl::Status SlabResidency::LearnCosts() {
  device_seconds_ = options_.device_seconds;
  if (Miss() == ExpertMiss::kLoad) {
    return absl::OkStatus();
  }
  if (options_.cpu_seconds > 0 || clock_ != nullptr) {
    costs_.Assume();
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(costs_.Measure(options_.max_rows, cpu_place_));
  if (Miss() == ExpertMiss::kBalance && device_seconds_ <= 0) {
    ASSIGN_OR_RETURN(device_seconds_, costs_.MeasureDevice(backend_));
  }
  return absl::OkStatus();
}

ResidencyStats SlabResidency::stats() const {
  ResidencyStats stats = LayerResidency::stats();
  stats.held = cpu_.held();
  return stats;
}

absl::Status SlabResidency::BeginLayer(const LayerDemands& begun) {
  EndLayer();
  RETURN_IF_ERROR(OpenLayer(begun));
  const uint32_t layer = begun.layer;
  const absl::Span<const ExpertDemand> demands = begun.demands;
  pace_.Begin(layer, needs_.prefill, clock_ != nullptr ? clock_->NowNanos() : real_clock_.NowNanos());
  cpu_queued_ = 0;
  cpu_measured_ = true;
  if (cpu_place_ != nullptr) {
    cpu_began_ = cpu_place_->queue().Record();
  }
  if (demands.empty()) {
    return absl::OkStatus();
  }
  width_ = slots_->WidthOf(layer);
  streams_ = options_.fixed || (needs_.prefill && demands.size() > table().quota(layer));
  for (const ExpertDemand& demand : demands) {
    BeginEntry(demand, /*idle=*/false);
  }
  if (options_.whole_layers) {
    AddUnchosen();
  }
  DecideMisses(demands);
  keeper_.BeginLayer(layer, experts().first(demands.size()), begun.scores, streams_);
  const BatchSubmit batch_submit(client_);
  client_->CancelPrefetches(step_, layer);
  if (options_.cancel_begun) {
    CancelDisproved();
  }
  return RequestWaiting();
}

// Adds experts that no row chose, behind the chosen ones.
void SlabResidency::AddUnchosen() {
  for (uint32_t expert = 0; expert < pack_.expert_count(layer_); ++expert) {
    if (!IsDemanded(expert)) {
      BeginEntry({expert, 0}, /*idle=*/true);
    }
  }
}

void SlabResidency::BeginEntry(const ExpertDemand& demand, bool idle) {
  const uint32_t index = demands();
  OpenDemand(demand.expert);
  Entry& entry = entries_[index];
  entry = {};
  entry.slot = table().Find(layer_, demand.expert);
  entry.idle = idle;
  counters_.Add(layer_, &ResidencyCounters::requests, idle ? 0 : 1);
  if (entry.slot == ExpertSlots::kNoSlot) {
    ++waiting_;
    return;
  }
  Slot& slot = table().slot(entry.slot);
  slot.pinned = true;
  if (slot.state == SlotState::kReady) {
    entry.state = State::kReady;
    counters_.Add(layer_, &ResidencyCounters::hits, idle ? 0 : 1);
    counters_.Add(layer_, &ResidencyCounters::prefetch_useful, slot.prefetched ? 1 : 0);
  } else {
    counters_.Add(layer_, &ResidencyCounters::late);
    if (!idle && BalancesLayers() && slot.request != 0) {
      entry.state = State::kLate;  // until DecideMisses()
    } else if (idle || !LateToCpu(index, demand.tokens)) {
      Join(&entry);
    }
  }
  slot.fresh = slot.prefetched = false;
}

// Turns a prefetch in flight into a demand.
void SlabResidency::Join(Entry* entry) {
  if (slots_->Join(step_, entry->slot)) {
    entry->state = State::kInFlight;
    ++in_flight_;
  } else {
    entry->state = State::kWaiting;
    entry->slot = ExpertSlots::kNoSlot;
    ++waiting_;
  }
}

// Cancels experts of this layer in flight that no row chose. Their slots are free at weightd's completion.
void SlabResidency::CancelDisproved() {
  for (uint32_t expert = 0; table().filling() > in_flight_ && expert < pack_.expert_count(layer_); ++expert) {
    const uint32_t index = table().Find(layer_, expert);
    if (index == ExpertSlots::kNoSlot || IsDemanded(expert)) {
      continue;
    }
    const Slot& slot = table().slot(index);
    if (slot.state == SlotState::kFilling && slot.request != 0 && slot.joined == 0) {
      client_->Cancel(slot.request);
    }
  }
}

// The previous layer has been computed or abandoned.
void SlabResidency::EndLayer() {
  if (demands() == 0) {
    return;
  }
  if (cpu_.held() > 0 && cpu_place_ != nullptr) {
    Queue& queue = cpu_place_->queue();
    queue.Wait(queue.Record()).IgnoreError();  // sticky: reported to the reader of the results
    ReleaseRead();
  }
  for (uint32_t i = 0; i < demands(); ++i) {
    cpu_.Release(i, step_);
  }
  waiting_ = in_flight_ = 0;
  CloseLayer();
  keeper_.EndLayer(layer_);
}

absl::Status SlabResidency::RequestWaiting() {
  if (!window_.CanRequest(in_flight_, SteadyNow())) {
    return absl::OkStatus();
  }
  const BatchSubmit batch_submit(client_);
  for (uint32_t i = 0; i < demands() && waiting_ > 0 && !window_.IsFull(in_flight_); ++i) {
    if (entries_[i].state != State::kWaiting) {
      continue;
    }
    const absl::Status status = Ask(i);
    if (absl::IsResourceExhausted(status)) {
      return absl::OkStatus();  // the ring is full: completions will make room
    }
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// OK without a request if there is no slot: an expert being computed will free one.
absl::Status SlabResidency::Ask(uint32_t index) {
  Entry& entry = entries_[index];
  const uint32_t expert = experts()[index];
  if (table().Find(layer_, expert) != ExpertSlots::kNoSlot) {
    return absl::OkStatus();  // weightd may still write there
  }
  // An expert shared with the CPU travels on after this layer, and must not delay the next one's demands.
  const RequestClass request_class =
      entry.shared > 0 && TravelsOn() ? RequestClass::kPrefetch : RequestClass::kDemand;
  ASSIGN_OR_RETURN(const uint32_t slot,
                   slots_->Fetch(request_class, step_, layer_, expert,
                                 streams_ ? SlotTable::For::kStream : SlotTable::For::kDemand, keeper_));
  if (slot == ExpertSlots::kNoSlot) {
    return absl::OkStatus();
  }
  table().slot(slot).pinned = true;
  entry.slot = slot;
  entry.state = State::kInFlight;
  entry.handed = 0;
  --waiting_;
  ++in_flight_;
  return absl::OkStatus();
}

// Completions between layers and of prefetches concern no demand.
void SlabResidency::Handle(const FetchKey& key, const FetchCompletion& completion) {
  if (key.dense()) {
    return;
  }
  counters_.Add(key.layer, &ResidencyCounters::bytes_link, completion.link_bytes);
  counters_.Add(key.layer, &ResidencyCounters::bytes_ssd, completion.bytes);
  if (slots_->Handle(key, completion) == ExpertSlots::kNoSlot) {
    return;
  }
  const uint32_t demand = FindDemand(key.layer, key.expert);
  if (demand != kNoDemand && entries_[demand].state == State::kInFlight) {
    HandleForDemand(demand, key, completion);
  }
}

void SlabResidency::HandleForDemand(uint32_t index, const FetchKey& key, const FetchCompletion& completion) {
  Entry& entry = entries_[index];
  --in_flight_;
  switch (completion.code) {
    case absl::StatusCode::kOk:
      entry.state = State::kReady;
      window_.OnCompleted();
      window_.OnRoomMade();
      stall_.Restart(SteadyNow());
      return;
    case absl::StatusCode::kDataLoss:
      entry.state = State::kFailed;
      if (entry.idle) {
        CloseDemand();
      } else {
        FailDemand(index, completion.extent);
      }
      return;
    case absl::StatusCode::kResourceExhausted:
      CountRefusal();
      break;
    case absl::StatusCode::kCancelled:  // a prefetch that had not begun
      break;
    default:
      unexpected_error_ = FetchError(key, completion.code);
  }
  entry.state = State::kWaiting;
  entry.slot = ExpertSlots::kNoSlot;
  entry.handed = 0;
  ++waiting_;
}

absl::Status SlabResidency::WaitForMore() {
  if (AwaitCpu()) {
    return absl::OkStatus();
  }
  const absl::Status waited = LayerResidency::WaitForMore();
  if (clock_ != nullptr) {
    clock_->cpu().SetNextResult(INT64_MAX);
  }
  return waited;
}

absl::Time SlabResidency::WaitUntil() const {
  if (in_flight_ == 0) {  // waits for a retry of a fill, or for a slot that a prefetch holds
    return window_.no_room() ? window_.retry_at() : SteadyNow() + FetchWindow::kRetryPace;
  }
  return slots_->TileOf(layer_) < width_ ? SteadyNow() + kTilePace : absl::InfiniteFuture();
}

std::optional<WeightView> SlabResidency::Lead(uint32_t layer, uint32_t expert) const {
  if (!table().IsReady(layer, expert)) {
    return {};
  }
  return slots_->PartOf(table().Find(layer, expert), options_.lead);
}

ReadyTile SlabResidency::Whole(uint32_t layer, uint32_t expert) const {
  const uint32_t slot = table().Find(layer, expert);
  ReadyTile tile;
  tile.up = slots_->PartOf(slot, Part::kUp);
  tile.gate = slots_->PartOf(slot, Part::kGate);
  tile.down = slots_->PartOf(slot, Part::kDown);
  return tile;
}

void SlabResidency::CountDeferred(uint32_t layer, absl::Span<const ExpertDemand> demands) {
  used_experts_.clear();
  for (const ExpertDemand& demand : demands) {
    used_experts_.push_back(demand.expert);
    counters_.Add(layer, &ResidencyCounters::requests);
    counters_.Add(layer, &ResidencyCounters::hits);
    counters_.Add(layer, &ResidencyCounters::bytes_touched, pack_.expert_bytes(layer, demand.expert));
    if (const uint32_t there = table().Find(layer, demand.expert); there != ExpertSlots::kNoSlot) {
      Slot& slot = table().slot(there);  // it was read, and may have been evicted since
      counters_.Add(layer, &ResidencyCounters::prefetch_useful, slot.prefetched ? 1 : 0);
      slot.fresh = slot.prefetched = false;
    }
  }
  keeper_.NoteUse(layer, used_experts_);
}

void SlabResidency::LeadRead(uint32_t layer, uint32_t expert, Event used) {
  if (const uint32_t slot = table().Find(layer, expert); slot != ExpertSlots::kNoSlot) {
    table().slot(slot).last_use = used;
  }
}

void SlabResidency::Prefetch(uint32_t layer, uint32_t expert) {
  if (demands() > 0 && layer == layer_) {
    return;
  }
  if (const uint32_t there = table().Find(layer, expert); there != ExpertSlots::kNoSlot) {
    table().slot(there).fresh = true;  // it will be used: not to be evicted for another prefetch
    return;
  }
  if (waiting_ > 0 && !streams_) {
    return;  // the room belongs to a demand
  }
  const absl::StatusOr<uint32_t> slot =
      slots_->Fetch(RequestClass::kPrefetch, step_, layer, expert, SlotTable::For::kPrefetch, keeper_);
  if (slot.ok() && *slot != ExpertSlots::kNoSlot) {
    counters_.Add(layer, &ResidencyCounters::prefetch_issued);
  }
}

bool SlabResidency::LinkIdle() {
  Poll();
  return waiting_ == 0 && fetches_->outstanding_experts() == 0;
}

uint32_t SlabResidency::LayersToFetch() {
  Poll();
  const double layer = pace_.Seconds(needs_.prefill);
  if (!(layer > 0)) {
    return 1;
  }
  const double all = forecast_.ToCome([](const Slot&) { return true; });
  return LayersIn(all + (1.0 + waiting_) * forecast_.LargestSeconds(), layer);
}

void SlabResidency::Abandon() {
  EndLayer();
  if (!client_->connected()) {
    slots_->Lose();
  }
}

// Hand-out of a layer: the experts to be computed, their order, and their return.

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
