// The part of a layer that every expert cache shares, independent of the memory that holds the experts: maps
// experts to demands, hands out ready tiles and takes them back after computing, requests missing experts as
// far as the window allows, waits, and fails when nothing arrives for too long. Each cache defines a demand's
// states and the location of its bytes.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "inferd/residency/fetch_window.h"
#include "inferd/residency/landing_watch.h"
#include "inferd/residency/residency.h"
#include "inferd/weights/fetch_queue.h"
#include "inferd/weights/stall_limit.h"
#include "inferd/weights/weight_client.h"
#include "kernels/backend.h"
#include "pack/pack.h"

namespace sluice::inferd {

class LayerResidency : public Residency {
 public:
  void BeginStep(uint64_t step) override;
  absl::StatusOr<absl::Span<const ReadyTile>> Next() final;
  absl::Span<const FailedDemand> failed() const final { return failed_; }
  void Poll() final;
  ResidencyCounters counters() const final { return counters_.total(); }
  absl::Span<const ResidencyCounters> counters_by_layer() const final { return counters_.layers(); }
  void SetLeadListener(LeadListener* listener) final { listener_ = listener; }

 protected:
  static constexpr uint32_t kNoDemand = 0xffffffffu;

  // All pointers outlive this object. `watch`: tiles in flight are polled without sleeping (landing_watch.h).
  LayerResidency(WeightClient* client, FetchQueue* fetches, Queue* queue, FetchWindow window,
                 absl::Duration stall_limit, bool watch = false);

  // Handles a completion, also of earlier layers' requests and prefetches.
  virtual void Handle(const FetchKey& key, const FetchCompletion& completion) = 0;
  // Poll interval for a device's events, which send no signal.
  static constexpr absl::Duration kDevicePace = absl::Microseconds(100);

  // Releases memory that the device has read for the last time.
  virtual void ReleaseRead() {}
  // Called after completions were handled, before anything is requested.
  virtual absl::Status Arrived() { return absl::OkStatus(); }
  // Sends requests for missing experts, as far as the window and weightd's ring allow.
  virtual absl::Status RequestWaiting() = 0;
  // Appends everything to ready_ that is ready and was not handed out.
  virtual absl::Status HandOut() = 0;
  // Takes ready_ back: all work that reads it was queued before `used`.
  virtual absl::Status ReturnTiles(Event used) = 0;
  // Waits for a completion, or until HandOut() may have more for another reason.
  virtual absl::Status WaitForMore();
  // End of the wait in WaitForMore(); infinite if only a completion changes anything.
  virtual absl::Time WaitUntil() const = 0;
  // Number of demands without a completion.
  virtual uint32_t in_flight() const = 0;

  // Begins the layer with these demands; INTERNAL if there are more than a layer has experts.
  absl::Status OpenLayer(uint32_t layer, absl::Span<const ExpertDemand> demands);
  // Appends a demand for this expert.
  void OpenDemand(uint32_t expert);
  // A demand is done or was abandoned; failed: its bytes are damaged.
  void CloseDemand() { --open_; }
  void FailDemand(uint32_t demand, uint32_t extent) {
    --open_;
    failed_.push_back({demand, extent});
  }
  // Counts a fill that found no room.
  void CountRefusal();
  // Ends the layer: no demand is open any more, nothing is handed out.
  void CloseLayer();

  // Demand index of an expert of a layer, or kNoDemand.
  uint32_t FindDemand(uint32_t layer, uint32_t expert) const {
    return layer == layer_ ? demand_of_[expert] - 1 : kNoDemand;
  }
  // True if the running layer demands the expert.
  bool IsDemanded(uint32_t expert) const { return demand_of_[expert] != 0; }
  uint32_t demands() const { return static_cast<uint32_t>(experts_.size()); }
  absl::Span<const uint32_t> experts() const { return experts_; }  // by demand
  // Maximum number of experts of a layer.
  uint32_t most_experts() const { return static_cast<uint32_t>(demand_of_.size()); }

  const Pack& pack_;
  WeightClient* const client_;
  FetchQueue* const fetches_;
  Queue* const queue_;
  uint64_t step_ = 0;
  uint32_t layer_ = 0;
  uint32_t open_ = 0;             // demands neither done nor failed
  std::vector<ReadyTile> ready_;  // handed out by the last Next()
  FetchWindow window_;
  StallLimit stall_;
  absl::Status unexpected_error_;  // completion that no rule covers
  LayerCounters counters_;
  LeadListener* listener_ = nullptr;  // null: no listener

 private:
  absl::StatusOr<absl::Span<const ReadyTile>> AwaitTiles();
  size_t TakeCompletions();
  absl::Status StallError() const;
  bool ListenerWaits() const { return listener_ != nullptr && listener_->AwaitsDevice(); }

  const absl::Duration stall_limit_;
  const MonotonicClock clock_;
  LandingPoller poller_;
  std::vector<uint32_t> demand_of_;   // [most experts], by expert: demand + 1, 0: none
  std::vector<uint32_t> experts_;     // by demand
  std::vector<FailedDemand> failed_;  // of the current layer
};

// Routed experts by layer.
std::vector<uint32_t> ExpertsByLayer(const Pack& pack);

}  // namespace sluice::inferd
