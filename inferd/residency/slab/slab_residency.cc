#include "inferd/residency/slab/slab_residency.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/status.h"

namespace sluice {
namespace {

constexpr uint32_t kNeuronBlock = 64;  // tiles end at its multiples (kernels/ops.h)
constexpr uint32_t kTilesOfAnExpert = 8;
// Landed tiles ring no bell: while some travel, they are looked for at this pace.
constexpr absl::Duration kTilePace = absl::Microseconds(300);
// Pause before a fill that found no room in weightd's DRAM is repeated.
constexpr absl::Duration kRetryPace = absl::Milliseconds(1);

}  // namespace

void SlabResidency::SetScores(absl::Span<const float> scores) {
  scores_.assign(scores.begin(), scores.begin() + std::min(scores.size(), scores_.capacity()));
}

void SlabResidency::BeginStep(uint64_t step) {
  step_ = step;
  Poll();
}

void SlabResidency::Poll() {
  fetches_->Poll([this](const FetchKey& key, const FetchCompletion& completion) { Handle(key, completion); });
}

// The layer before has been computed, or given up.
void SlabResidency::EndLayer() {
  if (!in_layer_) {
    return;
  }
  in_layer_ = false;
  for (uint32_t i = 0; i < demands_; ++i) {
    demand_of_[entries_[i].expert] = 0;
    ReleaseCpu(&entries_[i]);
  }
  demands_ = open_ = waiting_ = in_flight_ = 0;
  ready_.clear();
  eviction_.EndLayer(layer_);
  table_.TrimLayer(
      layer_, [this](uint32_t layer, absl::Span<const uint32_t> experts) { return Victim(layer, experts); });
}

// A layer that streams tells the policy nothing: what it kept before is worth keeping still.
void SlabResidency::TellEviction(absl::Span<const ExpertDemand> demands) {
  chosen_.clear();
  for (const ExpertDemand& demand : demands) {
    chosen_.push_back(demand.expert);
  }
  const bool scored = scores_.size() == pack_.expert_count(layer_) && !streams_;
  eviction_.BeginLayer(layer_, scored ? absl::MakeConstSpan(scores_) : absl::Span<const float>(),
                       streams_ ? absl::Span<const uint32_t>() : absl::MakeConstSpan(chosen_));
  scores_.clear();
}

absl::Status SlabResidency::BeginLayer(uint32_t layer, absl::Span<const ExpertDemand> demands) {
  if (demands.size() > entries_.size()) {
    return absl::InternalError(
        absl::StrCat("layer ", layer, ": ", demands.size(), " demands for ", entries_.size(), " experts"));
  }
  EndLayer();
  TimeLayer(layer);
  layer_ = layer;
  failed_.clear();
  no_room_ = false;
  cpu_queued_ = 0;
  trouble_ = absl::OkStatus();
  if (demands.empty()) {
    return absl::OkStatus();
  }
  in_layer_ = true;
  width_ = pack_.config().layers[layer].moe.expert_width;
  demands_ = static_cast<uint32_t>(demands.size());
  streams_ = options_.fixed || (prefill_ && demands_ > table_.quota(layer));
  for (uint32_t i = 0; i < demands_; ++i) {
    BeginEntry(i, demands[i], /*idle=*/false);
  }
  if (options_.whole_layers) {
    AddIdle();
  }
  DecideMisses(demands);
  TellEviction(demands);
  const OneBell bell(client_);
  client_->CancelPrefetches(step_, layer);
  if (options_.cancel_begun) {
    CancelDisproved();
  }
  return AskForWaiting();
}

// Experts of this layer that are on their way and that nobody chose. Their slots are free once weightd says
// so.
void SlabResidency::CancelDisproved() {
  for (uint32_t expert = 0; table_.filling() > in_flight_ && expert < pack_.expert_count(layer_); ++expert) {
    const uint32_t index = table_.Find(layer_, expert);
    if (index == SlotTable::kNoSlot || demand_of_[expert] != 0) {
      continue;
    }
    const Slot& slot = table_.slot(index);
    if (slot.state == SlotState::kFilling && slot.request != 0 && slot.joined == 0) {
      client_->Cancel(slot.request);
    }
  }
}

// The experts that nobody chose come after those that somebody did.
void SlabResidency::AddIdle() {
  for (uint32_t expert = 0; expert < pack_.expert_count(layer_); ++expert) {
    if (demand_of_[expert] == 0) {
      BeginEntry(demands_, {expert, 0}, /*idle=*/true);
      ++demands_;
    }
  }
}

void SlabResidency::BeginEntry(uint32_t index, const ExpertDemand& demand, bool idle) {
  const uint32_t expert = demand.expert;
  Entry& entry = entries_[index];
  entry.expert = expert;
  entry.slot = table_.Find(layer_, expert);
  entry.state = State::kWaiting;
  entry.handed = entry.shared = 0;
  entry.leased = false;
  entry.idle = idle;
  demand_of_[expert] = index + 1;
  ++open_;
  counters_.Add(layer_, &ResidencyCounters::requests, idle ? 0 : 1);
  if (entry.slot == SlotTable::kNoSlot) {
    ++waiting_;
    return;
  }
  Slot& slot = table_.slot(entry.slot);
  slot.pinned = true;
  if (slot.state == SlotState::kReady) {
    entry.state = State::kReady;
    counters_.Add(layer_, &ResidencyCounters::hits, idle ? 0 : 1);
    counters_.Add(layer_, &ResidencyCounters::prefetch_useful, slot.prefetched ? 1 : 0);
  } else {
    counters_.Add(layer_, &ResidencyCounters::late);
    if (!idle && BalancesLayers() && slot.request != 0) {
      entry.state = State::kLate;  // until DecideShares()
    } else if (idle || !LateToCpu(index, demand.tokens)) {
      Join(&entry);
    }
  }
  slot.fresh = slot.prefetched = false;
}

// A prefetch that is under way becomes a demand: the same bytes asked for again overtake. If they cannot be
// asked for now, the prefetch goes on as it is.
void SlabResidency::Join(Entry* entry) {
  Slot& slot = table_.slot(entry->slot);
  if (slot.request == 0) {  // it failed; the slot is free once nobody writes into it
    entry->slot = SlotTable::kNoSlot;
    ++waiting_;
    return;
  }
  entry->state = State::kInFlight;
  ++in_flight_;
  const absl::StatusOr<uint64_t> id = Transfer(FetchKind::kDemand, layer_, entry->expert, entry->slot);
  if (id.ok()) {
    slot.joined = slot.request;
    slot.request = *id;
  }
}

// Sends transfers for waiting demands as far as the window, the ring and the slots go.
absl::Status SlabResidency::AskForWaiting() {
  if (no_room_ && (in_flight_ > 0 || absl::Now() < retry_at_)) {
    return absl::OkStatus();
  }
  const OneBell bell(client_);
  for (uint32_t i = 0; i < demands_ && waiting_ > 0 && in_flight_ < window_; ++i) {
    if (entries_[i].state != State::kWaiting) {
      continue;
    }
    const absl::Status status = Ask(&entries_[i]);
    if (absl::IsResourceExhausted(status)) {
      return absl::OkStatus();  // the ring is full: completions will make room
    }
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// OK without a request if there is no slot: what is being computed will give one up.
absl::Status SlabResidency::Ask(Entry* entry) {
  if (table_.Find(layer_, entry->expert) != SlotTable::kNoSlot) {
    return absl::OkStatus();  // weightd may still write there
  }
  const uint32_t slot = table_.TakeSlot(
      layer_, entry->expert, streams_ ? SlotTable::For::kStream : SlotTable::For::kDemand,
      [this](uint32_t layer, absl::Span<const uint32_t> experts) { return Victim(layer, experts); });
  if (slot == SlotTable::kNoSlot) {
    return absl::OkStatus();
  }
  // What the CPU shares travels on after this layer, which must not delay the next one's demands.
  const FetchKind kind = entry->shared > 0 && TravelsOn() ? FetchKind::kPrefetch : FetchKind::kDemand;
  const absl::StatusOr<uint64_t> id = Transfer(kind, layer_, entry->expert, slot);
  if (!id.ok()) {
    table_.SetFree(slot);
    return id.status();
  }
  table_.slot(slot).request = *id;
  table_.slot(slot).pinned = true;
  entry->slot = slot;
  entry->state = State::kInFlight;
  entry->handed = 0;
  --waiting_;
  ++in_flight_;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SlabResidency::Transfer(FetchKind kind, uint32_t layer, uint32_t expert,
                                                 uint32_t slot) {
  TransferTarget target;
  target.slab = slab_;
  target.tile_neurons = TileOf(pack_.config().layers[layer].moe.expert_width);
  const ExtentRange range = pack_.expert_extents(layer, expert);
  const uint64_t start = pack_.extents()[range.first].offset;
  for (int part = 0; part < kPartCount; ++part) {
    const PartView view = pack_.part(layer, expert, static_cast<Part>(part));
    target.base[part] = table_.slot(slot).offset + pack_.extents()[view.extent].offset - start + view.base;
    target.stride[part] = view.stride;
  }
  return fetches_->TransferExpert(kind, step_, layer, expert, kAllParts, target);
}

uint32_t SlabResidency::TileOf(uint32_t width) const {
  if (options_.tile_neurons > 0) {
    return options_.tile_neurons;
  }
  const uint32_t eighth = (width + kTilesOfAnExpert - 1) / kTilesOfAnExpert;
  return std::max(1u, (eighth + kNeuronBlock - 1) / kNeuronBlock) * kNeuronBlock;
}

uint32_t SlabResidency::FindDemand(uint32_t expert) const {
  return in_layer_ && expert < demand_of_.size() ? demand_of_[expert] - 1 : ~0u;
}

// Also called between layers and for prefetches.
void SlabResidency::Handle(const FetchKey& key, const FetchCompletion& completion) {
  if (key.kind == FetchKind::kDense) {
    return;
  }
  counters_.Add(key.layer, &ResidencyCounters::bytes_link, completion.link_bytes);
  counters_.Add(key.layer, &ResidencyCounters::bytes_ssd, completion.bytes);
  const uint32_t index = table_.Find(key.layer, key.expert);
  if (index == SlotTable::kNoSlot) {
    return;
  }
  Slot& slot = table_.slot(index);
  if (slot.joined == completion.id) {
    slot.joined = 0;
    if (slot.state == SlotState::kFilling && slot.request == 0) {
      table_.SetFree(index);
    }
    return;
  }
  if (slot.state != SlotState::kFilling || slot.request != completion.id) {
    return;
  }
  if (completion.code == absl::StatusCode::kOk) {
    table_.SetReady(index);
  } else if (slot.joined == 0) {
    table_.SetFree(index);
  } else {
    slot.request = 0;
  }
  const uint32_t demand = key.layer == layer_ ? FindDemand(key.expert) : ~0u;
  if (demand < demands_ && entries_[demand].state == State::kInFlight) {
    HandleForDemand(demand, key, completion);
  }
}

void SlabResidency::HandleForDemand(uint32_t index, const FetchKey& key, const FetchCompletion& completion) {
  Entry& entry = entries_[index];
  --in_flight_;
  switch (completion.code) {
    case absl::StatusCode::kOk:
      entry.state = State::kReady;
      window_ = std::min(options_.max_in_flight, window_ + 1);
      no_room_ = false;
      stall_.Restart(absl::Now());
      return;
    case absl::StatusCode::kDataLoss:
      entry.state = State::kFailed;
      --open_;
      if (!entry.idle) {
        failed_.push_back({index, completion.extent});
      }
      return;
    case absl::StatusCode::kResourceExhausted:
      no_room_ = true;
      window_ = std::max(1u, in_flight_);
      retry_at_ = absl::Now() + kRetryPace;
      counters_.Add(layer_, &ResidencyCounters::no_room);
      break;
    case absl::StatusCode::kCancelled:  // a prefetch that had not begun
      break;
    default:
      trouble_ = FetchTrouble(key, completion.code);
  }
  entry.state = State::kWaiting;
  entry.slot = SlotTable::kNoSlot;
  entry.handed = 0;
  ++waiting_;
}

void SlabResidency::FinishHandedOut() {
  for (const ReadyTile& tile : ready_) {
    Entry& entry = entries_[tile.demand];
    if (entry.shared > 0 && entry.handed >= entry.shared && entry.slot != SlotTable::kNoSlot) {
      LeaveToCpu(&entry);
    } else if (entry.state == State::kReady && entry.handed >= width_) {
      entry.state = State::kDone;
      --open_;
      table_.slot(entry.slot).pinned = false;
    } else if (entry.state == State::kCpuHandedOut) {
      ReleaseCpu(&entry);
      entry.state = State::kDone;
      --open_;
    }
  }
  ready_.clear();
}

absl::StatusOr<absl::Span<const ReadyTile>> SlabResidency::Next() {
  if (!ready_.empty()) {
    RETURN_IF_ERROR(queue_->Wait(queue_->Record()));  // nothing reads the weights any more
  }
  FinishHandedOut();
  stall_.Restart(absl::Now());  // computing is no waiting
  while (open_ > 0) {
    Poll();
    RETURN_IF_ERROR(trouble_);
    RETURN_IF_ERROR(AskForWaiting());
    HandOut();
    if (!ready_.empty()) {
      return absl::MakeConstSpan(ready_);
    }
    FinishHandedOut();
    if (open_ == 0) {
      break;
    }
    if (stall_.Exceeded(absl::Now())) {
      return StallError();
    }
    if (!AwaitCpu()) {
      const absl::Status waited = fetches_->Wait(stall_.EndOfWait(absl::Now(), WaitUntil()));
      if (clock_ != nullptr) {
        clock_->cpu().SetNextResult(INT64_MAX);
      }
      RETURN_IF_ERROR(waited);
    }
  }
  return absl::Span<const ReadyTile>();
}

absl::Time SlabResidency::WaitUntil() const {
  if (in_flight_ == 0) {  // for a fill to try again, or for a slot that a prefetch holds
    return no_room_ ? retry_at_ : absl::Now() + kRetryPace;
  }
  return TileOf(width_) < width_ ? absl::Now() + kTilePace : absl::InfiniteFuture();
}

absl::Status SlabResidency::StallError() const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "layer ", layer_, ": ", open_, " experts did not come for ", absl::FormatDuration(options_.stall_limit),
      ", ", in_flight_, " in flight, ", counters_.total().no_room, " fills found no room in weightd's DRAM"));
}

bool SlabResidency::NextWaits() const {
  for (uint32_t i = 0; i < demands_; ++i) {
    const bool computed =
        entries_[i].state == State::kCpu && (!CpuBeside() || clock_->NowNanos() >= entries_[i].cpu_ends);
    if ((entries_[i].state == State::kReady && entries_[i].handed < width_) || computed ||
        (entries_[i].state == State::kInFlight && LandedNeurons(entries_[i]) > entries_[i].handed)) {
      return false;
    }
  }
  return open_ > 0;
}

// Of an entry in flight: the neurons whose tiles have landed.
uint32_t SlabResidency::LandedNeurons(const Entry& entry) const {
  const uint64_t tiles = client_->LandedTiles(table_.slot(entry.slot).request);
  return static_cast<uint32_t>(std::min<uint64_t>(width_, tiles * TileOf(width_)));
}

// Everything that is there and was not handed out. The last tile of an expert waits for its completion, so
// that a slot is never given up while weightd still has it.
void SlabResidency::HandOut() {
  for (uint32_t i = 0; i < demands_; ++i) {
    Entry& entry = entries_[i];
    if (entry.state == State::kReady && entry.idle) {
      entry.state = State::kDone;
      --open_;
      table_.slot(entry.slot).pinned = false;
    } else if (entry.state == State::kReady) {
      HandOutRange(i, entry.shared > 0 ? entry.shared : width_);
    } else if (entry.state == State::kCpu && (!CpuBeside() || clock_->NowNanos() >= entry.cpu_ends)) {
      HandOutCpu(i);
    } else if (entry.state == State::kInFlight && !entry.idle) {
      const uint32_t landed = LandedNeurons(entry);
      if (landed > entry.handed && (landed < width_ || entry.shared > 0)) {
        HandOutRange(i, entry.shared > 0 ? std::min(landed, entry.shared) : landed);
      }
    }
  }
}

void SlabResidency::HandOutRange(uint32_t index, uint32_t end) {
  Entry& entry = entries_[index];
  if (end <= entry.handed) {
    return;
  }
  ReadyTile tile;
  tile.demand = index;
  tile.up = PartOf(layer_, entry.expert, entry.slot, Part::kUp);
  tile.gate = PartOf(layer_, entry.expert, entry.slot, Part::kGate);
  tile.down = PartOf(layer_, entry.expert, entry.slot, Part::kDown);
  tile.neuron_begin = entry.handed;
  tile.neuron_end = end;
  counters_.Add(layer_, &ResidencyCounters::bytes_touched,
                pack_.expert_bytes(layer_, entry.expert) * (end - entry.handed) / width_);
  entry.handed = end;
  ready_.push_back(tile);
}

WeightView SlabResidency::PartOf(uint32_t layer, uint32_t expert, uint32_t slot, Part part) const {
  const PartView view = pack_.part(layer, expert, part);
  const uint32_t first = pack_.expert_extents(layer, expert).first;
  const uint64_t offset = table_.slot(slot).offset + pack_.extents()[view.extent].offset -
                          pack_.extents()[first].offset + view.base;
  return WeightView{view.encoding, {buffer_, offset}, view.stride, view.rows, view.cols, {}};
}

std::optional<WeightView> SlabResidency::Lead(uint32_t layer, uint32_t expert) const {
  if (!table_.IsReady(layer, expert)) {
    return {};
  }
  return PartOf(layer, expert, table_.Find(layer, expert), options_.lead);
}

void SlabResidency::Prefetch(uint32_t layer, uint32_t expert) {
  if (in_layer_ && layer == layer_) {
    return;
  }
  if (const uint32_t there = table_.Find(layer, expert); there != SlotTable::kNoSlot) {
    table_.slot(there).fresh = true;  // it is going to be used: not to be given up for another prefetch
    return;
  }
  if (waiting_ > 0 && !streams_) {
    return;  // the room is a demand's
  }
  const uint32_t slot = table_.TakeSlot(
      layer, expert, SlotTable::For::kPrefetch,
      [this](uint32_t of, absl::Span<const uint32_t> experts) { return Victim(of, experts); });
  if (slot == SlotTable::kNoSlot) {
    return;
  }
  const absl::StatusOr<uint64_t> id = Transfer(FetchKind::kPrefetch, layer, expert, slot);
  if (!id.ok()) {
    table_.SetFree(slot);
    return;
  }
  table_.slot(slot).request = *id;
  counters_.Add(layer, &ResidencyCounters::prefetch_issued);
}

bool SlabResidency::LinkIdle() {
  Poll();
  return waiting_ == 0 && fetches_->outstanding(FetchKind::kDemand) == 0 &&
         fetches_->outstanding(FetchKind::kPrefetch) == 0;
}

void SlabResidency::Abandon() {
  EndLayer();
  if (!client_->connected()) {
    table_.LoseFilling();
  }
}

}  // namespace sluice
