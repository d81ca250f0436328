// What every cache of experts does with a layer, wherever it holds them: knows which demand an expert is,
// hands out what is ready and takes it back once it has been computed, asks for what is missing as far as the
// window goes, waits, and gives up when nothing comes for too long. What a demand's states are, and where its
// bytes lie, is the cache's.
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

namespace sluice {

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

  // All pointers outlive this object. `watch`: what travels is looked for without sleeping (landing_watch.h).
  LayerResidency(WeightClient* client, FetchQueue* fetches, Queue* queue, FetchWindow window,
                 absl::Duration stall_limit, bool watch = false);

  // A completion, also of what was asked for in an earlier layer or ahead.
  virtual void Handle(const FetchKey& key, const FetchCompletion& completion) = 0;
  // A device's events ring no bell: while somebody waits for one, it is looked at this often.
  static constexpr absl::Duration kDevicePace = absl::Microseconds(100);

  // Gives back what the device has read for the last time.
  virtual void GiveBackRead() {}
  // What completions led to is to be looked at, before anything is asked for.
  virtual absl::Status Arrived() { return absl::OkStatus(); }
  // Sends requests for what is missing, as far as the window and weightd's ring go.
  virtual absl::Status AskForWaiting() = 0;
  // Appends everything to ready_ that is there and was not handed out.
  virtual absl::Status HandOut() = 0;
  // Everything that reads what is in ready_ has been queued, before `used`.
  virtual absl::Status TakeBack(Event used) = 0;
  // Waits for a completion, or until HandOut() may have more for another reason.
  virtual absl::Status WaitForMore();
  // When that is; forever if only a completion changes anything.
  virtual absl::Time WaitUntil() const = 0;
  // Demands without a completion.
  virtual uint32_t in_flight() const = 0;

  // The layer begins and demands this; INTERNAL if it is more than a layer has experts.
  absl::Status OpenLayer(uint32_t layer, absl::Span<const ExpertDemand> demands);
  // The demand at the end of the list is this expert.
  void OpenDemand(uint32_t expert);
  // It is done, or was given up; failed: its bytes are damaged.
  void CloseDemand() { --open_; }
  void FailDemand(uint32_t demand, uint32_t extent) {
    --open_;
    failed_.push_back({demand, extent});
  }
  // Fills found no room.
  void CountRefusal();
  // No demand is open any more, nothing is handed out.
  void CloseLayer();

  // The demand that an expert of a layer is, or kNoDemand.
  uint32_t FindDemand(uint32_t layer, uint32_t expert) const {
    return layer == layer_ ? demand_of_[expert] - 1 : kNoDemand;
  }
  // Of the running layer.
  bool IsDemanded(uint32_t expert) const { return demand_of_[expert] != 0; }
  uint32_t demands() const { return static_cast<uint32_t>(experts_.size()); }
  absl::Span<const uint32_t> experts() const { return experts_; }  // by demand
  // Most experts of a layer.
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
  absl::Status trouble_;  // a completion that no rule covers
  LayerCounters counters_;
  LeadListener* listener_ = nullptr;  // null: nobody

 private:
  absl::StatusOr<absl::Span<const ReadyTile>> AwaitTiles();
  size_t TakeCompletions();
  absl::Status StallError() const;
  bool ListenerWaits() const { return listener_ != nullptr && listener_->AwaitsDevice(); }

  const absl::Duration stall_limit_;
  const MonotonicClock clock_;
  LandingWatch watch_;
  std::vector<uint32_t> demand_of_;   // [most experts], by expert: demand + 1, 0: none
  std::vector<uint32_t> experts_;     // by demand
  std::vector<FailedDemand> failed_;  // of the current layer
};

// Routed experts by layer.
std::vector<uint32_t> ExpertsByLayer(const Pack& pack);

}  // namespace sluice
