// Interface of an expert cache: where a layer's experts are, and how they are computed. Its users see the
// parts that they need (expert_source.h); the engine controls the rest. On `host` experts are leased in
// weightd's DRAM (host_residency.h); on devices with memory of their own they lie in slots of a slab.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "inferd/model/expert_source.h"
#include "inferd/model/fetch_queue.h"
#include "inferd/model/weight_client.h"
#include "kernels/backend.h"
#include "pack/pack.h"

namespace sluice::inferd {

class Residency : public ExpertSource, public ExpertPrefetch {
 public:
  // Called when the client has a session, at the start or after a Reconnect(): registers memory, and starts
  // the first fill. UNAVAILABLE: weightd is gone again.
  virtual absl::Status Attach() { return absl::OkStatus(); }

  // Handles completions that have arrived. Called between steps.
  virtual void Poll() = 0;

  // Releases everything after an error in a step. The next step starts afresh.
  virtual void Abandon() = 0;

  // Counters and properties; the spans live as long as the cache.
  virtual ResidencyStats stats() const = 0;
  // Text for the start-up log; empty: none.
  virtual std::string Describe() const { return {}; }
};

// Window of a layer's demands in flight, and the retry time of a fill that found no room in weightd's DRAM.
//
// The window grows by one with each demand that completes. A refusal shrinks it to the number still in
// flight; then nothing more is requested until these have ended and a pause has passed.
//
// Thread safety: thread-compatible; belongs to the engine thread.

class FetchWindow {
 public:
  // Pause before a fill that found no room is retried.
  static constexpr absl::Duration kRetryPace = absl::Milliseconds(1);

  // `most`: maximum demands in flight. The first `quick_retries` refusals in a row are retried without a
  // pause.
  explicit FetchWindow(uint32_t most, uint32_t quick_retries = 0)
      : most_(most), quick_retries_(quick_retries), window_(most) {}

  // True if a request may be sent now, with `in_flight` demands outstanding.
  bool CanRequest(uint32_t in_flight, absl::Time now) const {
    return !no_room_ || (in_flight == 0 && now >= retry_at_);
  }
  bool IsFull(uint32_t in_flight) const { return in_flight >= window_; }

  // A demand completed.
  void OnCompleted() {
    window_ = std::min(most_, window_ + 1);
    refusals_ = 0;
  }
  // A demand found no room; `in_flight` others are outstanding.
  void OnRefused(uint32_t in_flight, absl::Time now) {
    no_room_ = true;
    window_ = std::max(1u, in_flight);
    ++refusals_;
    retry_at_ = refusals_ > quick_retries_ ? now + kRetryPace : absl::InfinitePast();
  }
  // There may be room again: a demand completed, memory was released, or another layer begins.
  void OnRoomMade() {
    no_room_ = false;
    refusals_ = 0;
  }

  bool no_room() const { return no_room_; }
  absl::Time retry_at() const { return retry_at_; }

 private:
  const uint32_t most_;
  const uint32_t quick_retries_;
  uint32_t window_;
  bool no_room_ = false;   // since room was made
  uint32_t refusals_ = 0;  // since the last completion or release
  absl::Time retry_at_;    // earliest retry while no_room_
};

// Polls for tiles that landed in a slab, which send no signal. An otherwise idle thread polls without
// sleeping for as long as a tile on a fast link may take, and sleeps after that.
//
// Thread safety: thread-compatible; belongs to the engine thread.

class LandingPoller {
 public:
  // Maximum polling time without news: twice the time of a megabyte at 10 GB/s. A sleep and its wake-up take
  // some 50 us.
  static constexpr int64_t kMaxPollNanos = 200'000;

  // `on`: false disables polling.
  explicit LandingPoller(bool on) : on_(on) {}

  // Restarts the polling time: something arrived, or a wait began.
  void Restart(int64_t now) { until_ = now + kMaxPollNanos; }

  // True if the caller shall poll again at once, after other threads had a chance to run.
  bool ShouldPoll(int64_t now) {
    if (!on_ || now >= until_) {
      return false;
    }
    began_ = began_ == 0 ? now : began_;
    std::this_thread::yield();
    return true;
  }

  // Nanoseconds of polling since the last Take().
  int64_t Take(int64_t now) {
    const int64_t began = began_;
    began_ = 0;
    return began == 0 ? 0 : now - began;
  }

 private:
  const bool on_;
  int64_t until_ = 0;
  int64_t began_ = 0;  // 0: not polling
};

// The part of a layer that every expert cache shares, independent of the memory that holds the experts: maps
// experts to demands, hands out ready tiles and takes them back after computing, requests missing experts as
// far as the window allows, waits, and fails when nothing arrives for too long. Each cache defines a demand's
// states and the location of its bytes.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after construction.

class LayerResidency : public Residency {
 public:
  void BeginStep(const StepNeeds& step) override;
  absl::StatusOr<absl::Span<const ReadyTile>> Next() final;
  absl::Span<const FailedDemand> failed() const final { return failed_; }
  void Poll() final;
  ResidencyStats stats() const override { return {.total = counters_.total(), .layers = counters_.layers()}; }
  void SetLeadListener(LeadListener* listener) final { listener_ = listener; }

 protected:
  static constexpr uint32_t kNoDemand = 0xffffffffu;

  // All pointers outlive this object. `watch`: tiles in flight are polled without sleeping.
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
  absl::Status OpenLayer(const LayerDemands& layer);
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
  StepNeeds needs_;  // the running step's
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
