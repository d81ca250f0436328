#include "inferd/residency/host/host_residency.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/status.h"

namespace sluice {
namespace {

// A layer that was not complete is looked at again after this many steps: a look costs one load per extent.
constexpr uint64_t kStepsBetweenLooks = 32;
// A request that found no room with nothing of ours in the way is repeated at once a few times: another
// session may just have moved. When others go on pinning weightd's DRAM, it is repeated at this pace.
constexpr uint32_t kQuickRetries = 3;
constexpr absl::Duration kRetryPace = absl::Milliseconds(1);

}  // namespace

HostResidency::HostResidency(const HostResidencyOptions& options, WeightClient* client, FetchQueue* fetches,
                             const SegmentBuffers* segments, Queue* queue)
    : options_(options),
      pack_(client->pack()),
      client_(client),
      fetches_(fetches),
      segments_(segments),
      queue_(queue),
      window_(options.max_in_flight),
      stall_(options.stall_limit),
      counters_(pack_.config().layers.size()) {
  const uint32_t layers = static_cast<uint32_t>(pack_.config().layers.size());
  uint32_t most = 0;
  uint64_t total = 0;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    first_expert_.push_back(total);
    total += pack_.expert_count(layer);
    most = std::max(most, pack_.expert_count(layer));
  }
  entries_.resize(most);
  demand_of_.assign(most, 0);
  ready_.reserve(most);
  failed_.reserve(most);
  complete_.resize(layers);
  asked_for_.assign(total, 0);
}

bool HostResidency::IsResident(uint32_t layer, uint32_t expert) const {
  const ExtentRange range = pack_.expert_extents(layer, expert);
  for (uint32_t extent = range.first; extent < range.first + range.count; ++extent) {
    if (!client_->IsResident(extent)) {
      return false;
    }
  }
  return true;
}

void HostResidency::LookAtLayer(uint32_t layer) {
  LayerState& state = complete_[layer];
  if (state.all_resident || step_ < state.next_look) {
    return;
  }
  state.next_look = step_ + kStepsBetweenLooks;
  for (uint32_t expert = 0; expert < pack_.expert_count(layer); ++expert) {
    if (!IsResident(layer, expert)) {
      return;
    }
  }
  state.all_resident = true;
}

void HostResidency::BeginStep(uint64_t step) {
  step_ = step;
  begun_ = 0;
  Poll();
}

void HostResidency::Poll() {
  fetches_->Poll([this](const FetchKey& key, const FetchCompletion& completion) { Handle(key, completion); });
}

absl::Status HostResidency::BeginLayer(uint32_t layer, absl::Span<const ExpertDemand> demands) {
  if (demands.size() > entries_.size()) {
    return absl::InternalError(
        absl::StrCat("layer ", layer, ": ", demands.size(), " demands for ", entries_.size(), " experts"));
  }
  for (uint32_t i = 0; i < demands_; ++i) {
    demand_of_[entries_[i].expert] = 0;
  }
  layer_ = layer;
  begun_ = layer + 1;
  demands_ = static_cast<uint32_t>(demands.size());
  failed_.clear();
  ready_.clear();
  in_flight_ = 0;
  no_room_ = false;
  refusals_ = 0;
  trouble_ = absl::OkStatus();
  open_ = waiting_ = demands_;
  for (uint32_t i = 0; i < demands_; ++i) {
    demand_of_[demands[i].expert] = i + 1;
    entries_[i].expert = demands[i].expert;
    entries_[i].state = State::kWaiting;
    const bool hit = LeaseExpert(i);
    counters_.Add(layer, &ResidencyCounters::requests);
    counters_.Add(layer, &ResidencyCounters::hits, hit ? 1 : 0);
    if (!hit) {
      complete_[layer] = {false, step_ + kStepsBetweenLooks};
    } else if (AskedFor(layer, demands[i].expert) == step_ + 1) {
      counters_.Add(layer, &ResidencyCounters::prefetch_useful);
    }
  }
  LookAtLayer(layer);
  const OneBell bell(client_);
  client_->CancelPrefetches(step_, layer);
  CancelDisproved();
  return AskForWaiting();
}

// Prefetches of this layer that nobody chose: what has not been read of them would delay what is wanted next.
void HostResidency::CancelDisproved() {
  for (const ComingExpert& coming : coming_) {
    if (coming.layer == layer_ && demand_of_[coming.expert] == 0) {
      client_->Cancel(coming.request);
    }
  }
}

// Leases all extents of the expert, or none. REQUIRES: kWaiting or kRequested.
bool HostResidency::LeaseExpert(uint32_t index) {
  Entry& entry = entries_[index];
  const ExtentRange range = pack_.expert_extents(layer_, entry.expert);
  for (uint32_t i = 0; i < range.count; ++i) {
    if (!client_->TryLease(range.first + i, &entry.leases[i])) {
      while (i > 0) {
        client_->Release(range.first + --i, step_);
      }
      return false;
    }
  }
  held_ += range.count;
  waiting_ -= entry.state == State::kWaiting ? 1 : 0;
  entry.state = State::kReady;
  return true;
}

void HostResidency::GiveBack(uint32_t index) {
  const ExtentRange range = pack_.expert_extents(layer_, entries_[index].expert);
  for (uint32_t i = 0; i < range.count; ++i) {
    client_->Release(range.first + i, step_);
  }
  held_ -= range.count;
  no_room_ = false;
  refusals_ = 0;
}

void HostResidency::GiveBackHandedOut() {
  for (const ReadyTile& tile : ready_) {
    GiveBack(tile.demand);
    entries_[tile.demand].state = State::kDone;
    --open_;
  }
  ready_.clear();
}

// Also called between layers, for what came too late: then no demand matches.
void HostResidency::Handle(const FetchKey& key, const FetchCompletion& completion) {
  if (key.kind == FetchKind::kDense) {
    return;
  }
  counters_.Add(key.layer, &ResidencyCounters::bytes_ssd, completion.bytes);
  if (key.kind == FetchKind::kPrefetch) {
    std::erase_if(coming_, [&](const ComingExpert& coming) { return coming.request == completion.id; });
  }
  const uint32_t index = key.layer == layer_ ? FindDemand(key.expert) : ~0u;
  if (index >= demands_) {
    return;
  }
  Entry& entry = entries_[index];
  if (key.kind == FetchKind::kPrefetch) {  // one that failed costs nothing: the demand finds out for itself
    if (entry.state == State::kWaiting && completion.code == absl::StatusCode::kOk && LeaseExpert(index)) {
      stall_.Restart(absl::Now());
    }
    return;
  }
  if (entry.state != State::kRequested) {
    return;
  }
  --in_flight_;
  if (completion.code == absl::StatusCode::kOk && LeaseExpert(index)) {
    window_ = std::min(options_.max_in_flight, window_ + 1);
    refusals_ = 0;
    stall_.Restart(absl::Now());
    return;
  }
  switch (completion.code) {
    case absl::StatusCode::kDataLoss:
      entry.state = State::kFailed;
      --open_;
      failed_.push_back({index, completion.extent});
      return;
    case absl::StatusCode::kResourceExhausted:
      no_room_ = true;
      window_ = std::max(1u, in_flight_);
      ++refusals_;
      retry_at_ = refusals_ > kQuickRetries ? absl::Now() + kRetryPace : absl::InfinitePast();
      counters_.Add(layer_, &ResidencyCounters::no_room);
      break;
    case absl::StatusCode::kOk:         // gone again before it could be leased
    case absl::StatusCode::kCancelled:  // joined a prefetch that was dropped
      break;
    default:
      trouble_ = FetchTrouble(key, completion.code);
  }
  entry.state = State::kWaiting;
  ++waiting_;
}

uint32_t HostResidency::FindDemand(uint32_t expert) const {
  return expert < demand_of_.size() ? demand_of_[expert] - 1 : ~0u;
}

// Sends requests for waiting demands as far as the window, the ring and weightd's room go.
absl::Status HostResidency::AskForWaiting() {
  if (no_room_ && absl::Now() < retry_at_) {
    return absl::OkStatus();
  }
  const OneBell bell(client_);
  for (uint32_t i = 0; i < demands_ && waiting_ > 0; ++i) {
    if (in_flight_ >= window_ || (no_room_ && in_flight_ > 0)) {
      return absl::OkStatus();
    }
    if (entries_[i].state != State::kWaiting) {
      continue;
    }
    const absl::Status status =
        fetches_->FetchExpert(FetchKind::kDemand, step_, layer_, entries_[i].expert).status();
    if (absl::IsResourceExhausted(status)) {
      return absl::OkStatus();  // the ring is full: completions will make room
    }
    RETURN_IF_ERROR(status);
    entries_[i].state = State::kRequested;
    --waiting_;
    ++in_flight_;
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const ReadyTile>> HostResidency::Next() {
  if (!ready_.empty()) {
    RETURN_IF_ERROR(queue_->Wait(queue_->Record()));  // nothing reads the weights any more
    GiveBackHandedOut();
  }
  stall_.Restart(absl::Now());  // computing is no waiting
  while (open_ > 0) {
    Poll();
    RETURN_IF_ERROR(trouble_);
    RETURN_IF_ERROR(AskForWaiting());
    RETURN_IF_ERROR(HandOutReady());
    if (!ready_.empty()) {
      return absl::MakeConstSpan(ready_);
    }
    if (open_ == 0) {
      break;
    }
    if (stall_.Exceeded(absl::Now())) {
      return absl::ResourceExhaustedError(
          absl::StrCat("layer ", layer_, ": ", open_, " experts did not come for ",
                       absl::FormatDuration(options_.stall_limit), ", ", counters_.total().no_room,
                       " fills found no room in weightd's DRAM"));
    }
    const absl::Time until = no_room_ && in_flight_ == 0 ? retry_at_ : absl::InfiniteFuture();
    RETURN_IF_ERROR(fetches_->Wait(stall_.EndOfWait(absl::Now(), until)));
  }
  return absl::Span<const ReadyTile>();
}

bool HostResidency::NextWaits() const {
  const auto ready = [](const Entry& entry) { return entry.state == State::kReady; };
  return open_ > 0 && std::none_of(entries_.begin(), entries_.begin() + demands_, ready);
}

absl::Status HostResidency::HandOutReady() {
  for (uint32_t i = 0; i < demands_; ++i) {
    if (entries_[i].state != State::kReady) {
      continue;
    }
    ReadyTile tile;
    tile.demand = i;
    ASSIGN_OR_RETURN(tile.up, PartOf(i, Part::kUp));
    ASSIGN_OR_RETURN(tile.gate, PartOf(i, Part::kGate));
    ASSIGN_OR_RETURN(tile.down, PartOf(i, Part::kDown));
    const uint64_t bytes = pack_.expert_bytes(layer_, entries_[i].expert);
    counters_.Add(layer_, &ResidencyCounters::bytes_touched, bytes);
    counters_.Add(layer_, &ResidencyCounters::bytes_dram, bytes);
    entries_[i].state = State::kHandedOut;
    ready_.push_back(tile);
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightView> HostResidency::PartOf(uint32_t index, Part part) const {
  const uint32_t expert = entries_[index].expert;
  const PartView view = pack_.part(layer_, expert, part);
  const ExtentLease& lease = entries_[index].leases[view.extent - pack_.expert_extents(layer_, expert).first];
  const BufferRef place = segments_->Place(lease);
  if (!place) {
    return absl::InternalError(absl::StrCat(pack_.ExtentName(view.extent), " is leased in segment ",
                                            lease.segment, ", which was never announced"));
  }
  return WeightView{view.encoding, place + view.base, view.stride, view.rows, view.cols};
}

void HostResidency::Prefetch(uint32_t layer, uint32_t expert) {
  if (IsResident(layer, expert)) {
    return;
  }
  uint64_t& asked = asked_for_[first_expert_[layer] + expert];
  const uint64_t step = StepOf(layer);
  if (asked == step + 1) {
    return;
  }
  const absl::StatusOr<uint64_t> id = fetches_->FetchExpert(FetchKind::kPrefetch, step, layer, expert);
  if (id.ok()) {
    asked = step + 1;
    coming_.push_back({layer, expert, *id});
    counters_.Add(layer, &ResidencyCounters::prefetch_issued);
  }
}

void HostResidency::Abandon() {
  for (uint32_t i = 0; i < demands_; ++i) {
    if (entries_[i].state == State::kReady || entries_[i].state == State::kHandedOut) {
      GiveBack(i);
    }
    entries_[i].state = State::kDone;
    demand_of_[entries_[i].expert] = 0;
  }
  ready_.clear();
  coming_.clear();
  demands_ = 0;
  open_ = waiting_ = in_flight_ = 0;
  for (LayerState& state : complete_) {
    state = {};
  }
}

}  // namespace sluice
