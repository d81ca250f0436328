#include "inferd/cache/residency.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice::inferd {
LayerResidency::LayerResidency(WeightClient* client, FetchQueue* fetches, Queue* queue, FetchWindow window,
                               absl::Duration stall_limit, bool watch)
    : pack_(client->pack()),
      client_(client),
      fetches_(fetches),
      queue_(queue),
      window_(window),
      stall_(stall_limit),
      counters_(pack_.config().layers.size()),
      stall_limit_(stall_limit),
      poller_(watch) {
  const std::vector<uint32_t> experts = ExpertsByLayer(pack_);
  const uint32_t most = experts.empty() ? 0 : *std::max_element(experts.begin(), experts.end());
  demand_of_.assign(most, 0);
  experts_.reserve(most);
  ready_.reserve(most);
  failed_.reserve(most);
}

void LayerResidency::BeginStep(const StepNeeds& step) {
  needs_ = step;
  step_ = step.number;
  Poll();
}

void LayerResidency::Poll() { TakeCompletions(); }

size_t LayerResidency::TakeCompletions() {
  ReleaseRead();
  return fetches_->Poll(
      [this](const FetchKey& key, const FetchCompletion& completion) { Handle(key, completion); });
}

absl::Status LayerResidency::OpenLayer(const LayerDemands& layer) {
  if (layer.demands.size() > demand_of_.size()) {
    return absl::InternalError(absl::StrCat("layer ", layer.layer, ": ", layer.demands.size(),
                                            " demands for ", demand_of_.size(), " experts"));
  }
  CloseLayer();
  layer_ = layer.layer;
  failed_.clear();
  window_.OnRoomMade();
  unexpected_error_ = absl::OkStatus();
  return absl::OkStatus();
}

void LayerResidency::OpenDemand(uint32_t expert) {
  experts_.push_back(expert);
  demand_of_[expert] = demands();
  ++open_;
}

void LayerResidency::CloseLayer() {
  for (const uint32_t expert : experts_) {
    demand_of_[expert] = 0;
  }
  experts_.clear();
  ready_.clear();
  open_ = 0;
}

void LayerResidency::CountRefusal() {
  window_.OnRefused(in_flight(), SteadyNow());
  counters_.Add(layer_, &ResidencyCounters::no_room);
}

// Leads that were handed out are processed first, so that missing neurons are requested before any wait.
absl::StatusOr<absl::Span<const ReadyTile>> LayerResidency::Next() {
  RETURN_IF_ERROR(LeadsQueued());
  if (!ready_.empty()) {
    RETURN_IF_ERROR(ReturnTiles(queue_->Record()));
    ready_.clear();
  }
  stall_.Restart(SteadyNow());  // computing is not waiting
  poller_.Restart(clock_.NowNanos());
  const auto tiles = AwaitTiles();
  fetches_->CountPolled(poller_.Take(clock_.NowNanos()));
  return tiles;
}

absl::StatusOr<absl::Span<const ReadyTile>> LayerResidency::AwaitTiles() {
  while (open_ > 0) {
    if (TakeCompletions() > 0) {
      poller_.Restart(clock_.NowNanos());
    }
    RETURN_IF_ERROR(Arrived());
    if (ListenerWaits()) {
      RETURN_IF_ERROR(listener_->OnLeads());
    }
    RETURN_IF_ERROR(unexpected_error_);
    RETURN_IF_ERROR(RequestWaiting());
    RETURN_IF_ERROR(HandOut());
    if (!ready_.empty()) {
      return absl::MakeConstSpan(ready_);
    }
    if (open_ == 0) {
      break;
    }
    if (stall_.Exceeded(SteadyNow())) {
      return StallError();
    }
    RETURN_IF_ERROR(WaitForMore());
  }
  return absl::Span<const ReadyTile>();
}

absl::Status LayerResidency::WaitForMore() {
  const int64_t nanos = clock_.NowNanos();
  if (in_flight() > 0 && poller_.ShouldPoll(nanos)) {
    return absl::OkStatus();
  }
  fetches_->CountPolled(poller_.Take(nanos));
  const absl::Time now = SteadyNow();
  const absl::Time listener = ListenerWaits() ? now + kDevicePace : absl::InfiniteFuture();
  return fetches_->Wait(stall_.EndOfWait(now, std::min(WaitUntil(), listener)));
}

absl::Status LayerResidency::StallError() const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "layer ", layer_, ": ", open_, " experts did not come for ", absl::FormatDuration(stall_limit_), ", ",
      in_flight(), " in flight, ", counters_.total().no_room, " fills found no room in weightd's DRAM"));
}

std::vector<uint32_t> ExpertsByLayer(const Pack& pack) {
  std::vector<uint32_t> experts;
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    experts.push_back(pack.expert_count(layer));
  }
  return experts;
}

}  // namespace sluice::inferd
