#include "inferd/cache/host_residency.h"

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "inferd/model/weight_client.h"

namespace sluice::inferd {
namespace {

// Steps between two checks of a layer that was not complete: a check costs one load per extent.
constexpr uint64_t kStepsBetweenLooks = 32;
// Immediate retries of a request that found no room while this session holds nothing: another session may
// just have released memory. If others keep weightd's DRAM pinned, retries wait for a pause.
constexpr uint32_t kQuickRetries = 3;

}  // namespace

HostResidency::HostResidency(const HostResidencyOptions& options, WeightClient* client, FetchQueue* fetches,
                             const SegmentBuffers* segments, Queue* queue)
    : LayerResidency(client, fetches, queue, FetchWindow(options.max_in_flight, kQuickRetries),
                     options.stall_limit),
      segments_(segments),
      entries_(most_experts()),
      complete_(pack_.config().layers.size()) {
  uint64_t total = 0;
  for (const uint32_t experts : ExpertsByLayer(pack_)) {
    first_expert_.push_back(total);
    total += experts;
  }
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

void HostResidency::BeginStep(const StepNeeds& step) {
  begun_ = 0;
  LayerResidency::BeginStep(step);
}

ResidencyStats HostResidency::stats() const {
  ResidencyStats stats = LayerResidency::stats();
  stats.held = held_;
  return stats;
}

absl::Status HostResidency::BeginLayer(const LayerDemands& begun) {
  RETURN_IF_ERROR(OpenLayer(begun));
  const uint32_t layer = begun.layer;
  const absl::Span<const ExpertDemand> demands = begun.demands;
  begun_ = layer + 1;
  in_flight_ = 0;
  waiting_ = static_cast<uint32_t>(demands.size());
  for (const ExpertDemand& demand : demands) {
    const uint32_t index = this->demands();
    OpenDemand(demand.expert);
    entries_[index].state = State::kWaiting;
    const bool hit = LeaseExpert(index);
    counters_.Add(layer, &ResidencyCounters::requests);
    counters_.Add(layer, &ResidencyCounters::hits, hit ? 1 : 0);
    if (!hit) {
      complete_[layer] = {false, step_ + kStepsBetweenLooks};
    } else if (AskedFor(layer, demand.expert) == step_ + 1) {
      counters_.Add(layer, &ResidencyCounters::prefetch_useful);
    }
  }
  LookAtLayer(layer);
  const BatchSubmit batch_submit(client_);
  client_->CancelPrefetches(step_, layer);
  CancelDisproved();
  return RequestWaiting();
}

// Cancels prefetches of this layer that no row chose: their remaining reads would delay the next demands.
void HostResidency::CancelDisproved() {
  for (const ComingExpert& coming : coming_) {
    if (coming.layer == layer_ && !IsDemanded(coming.expert)) {
      client_->Cancel(coming.request);
    }
  }
}

// Leases all extents of the expert, or none. REQUIRES: kWaiting or kRequested.
bool HostResidency::LeaseExpert(uint32_t index) {
  Entry& entry = entries_[index];
  const ExtentRange range = pack_.expert_extents(layer_, experts()[index]);
  if (!LeaseExtents(range, step_, client_, entry.leases.data())) {
    return false;
  }
  held_ += range.count;
  waiting_ -= entry.state == State::kWaiting ? 1 : 0;
  entry.state = State::kReady;
  return true;
}

void HostResidency::GiveBack(uint32_t index) {
  const ExtentRange range = pack_.expert_extents(layer_, experts()[index]);
  ReleaseExtents(range, step_, client_);
  held_ -= range.count;
  window_.OnRoomMade();
}

// A lease that was released may be overwritten at once.
absl::Status HostResidency::ReturnTiles(Event used) {
  RETURN_IF_ERROR(queue_->Wait(used));
  for (const ReadyTile& tile : ready_) {
    GiveBack(tile.demand);
    entries_[tile.demand].state = State::kDone;
    CloseDemand();
  }
  return absl::OkStatus();
}

// Also called between layers for late completions; then no demand matches.
void HostResidency::Handle(const FetchKey& key, const FetchCompletion& completion) {
  if (key.dense()) {
    return;
  }
  counters_.Add(key.layer, &ResidencyCounters::bytes_ssd, completion.bytes);
  if (key.request_class == RequestClass::kPrefetch) {
    std::erase_if(coming_, [&](const ComingExpert& coming) { return coming.request == completion.id; });
  }
  const uint32_t index = FindDemand(key.layer, key.expert);
  if (index == kNoDemand) {
    return;
  }
  Entry& entry = entries_[index];
  if (key.request_class ==
      RequestClass::kPrefetch) {  // a failed prefetch costs nothing: the demand reports the error
    if (entry.state == State::kWaiting && completion.code == absl::StatusCode::kOk && LeaseExpert(index)) {
      stall_.Restart(SteadyNow());
    }
    return;
  }
  if (entry.state != State::kRequested) {
    return;
  }
  --in_flight_;
  if (completion.code == absl::StatusCode::kOk && LeaseExpert(index)) {
    window_.OnCompleted();
    stall_.Restart(SteadyNow());
    return;
  }
  switch (completion.code) {
    case absl::StatusCode::kDataLoss:
      entry.state = State::kFailed;
      FailDemand(index, completion.extent);
      return;
    case absl::StatusCode::kResourceExhausted:
      CountRefusal();
      break;
    case absl::StatusCode::kOk:         // evicted before it could be leased
    case absl::StatusCode::kCancelled:  // coalesced with a prefetch that was dropped
      break;
    default:
      unexpected_error_ = FetchError(key, completion.code);
  }
  entry.state = State::kWaiting;
  ++waiting_;
}

// Sends requests for waiting demands as far as the window, the ring and weightd's room allow. After a refusal
// one request goes out alone.
absl::Status HostResidency::RequestWaiting() {
  const absl::Time now = SteadyNow();
  const BatchSubmit batch_submit(client_);
  for (uint32_t i = 0; i < demands() && waiting_ > 0; ++i) {
    if (window_.IsFull(in_flight_) || !window_.CanRequest(in_flight_, now)) {
      return absl::OkStatus();
    }
    if (entries_[i].state != State::kWaiting) {
      continue;
    }
    const absl::Status status =
        fetches_->FetchExpert(RequestClass::kDemand, step_, layer_, experts()[i]).status();
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

absl::Time HostResidency::WaitUntil() const {
  return window_.no_room() && in_flight_ == 0 ? window_.retry_at() : absl::InfiniteFuture();
}

bool HostResidency::NextWaits() const {
  const auto ready = [](const Entry& entry) { return entry.state == State::kReady; };
  return open_ > 0 && std::none_of(entries_.begin(), entries_.begin() + demands(), ready);
}

absl::Status HostResidency::HandOut() {
  for (uint32_t i = 0; i < demands(); ++i) {
    if (entries_[i].state != State::kReady) {
      continue;
    }
    ReadyTile tile;
    tile.demand = i;
    ASSIGN_OR_RETURN(tile.up, PartOf(i, Part::kUp));
    ASSIGN_OR_RETURN(tile.gate, PartOf(i, Part::kGate));
    ASSIGN_OR_RETURN(tile.down, PartOf(i, Part::kDown));
    const uint64_t bytes = pack_.expert_bytes(layer_, experts()[i]);
    counters_.Add(layer_, &ResidencyCounters::bytes_touched, bytes);
    counters_.Add(layer_, &ResidencyCounters::bytes_dram, bytes);
    entries_[i].state = State::kHandedOut;
    ready_.push_back(tile);
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightView> HostResidency::PartOf(uint32_t index, Part part) const {
  const uint32_t expert = experts()[index];
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
  const absl::StatusOr<uint64_t> id = fetches_->FetchExpert(RequestClass::kPrefetch, step, layer, expert);
  if (id.ok()) {
    asked = step + 1;
    coming_.push_back({layer, expert, *id});
    counters_.Add(layer, &ResidencyCounters::prefetch_issued);
  }
}

void HostResidency::Abandon() {
  for (uint32_t i = 0; i < demands(); ++i) {
    if (entries_[i].state == State::kReady || entries_[i].state == State::kHandedOut) {
      GiveBack(i);
    }
  }
  CloseLayer();
  coming_.clear();
  waiting_ = in_flight_ = 0;
  for (LayerState& state : complete_) {
    state = {};
  }
}

}  // namespace sluice::inferd
