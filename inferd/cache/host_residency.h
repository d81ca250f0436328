// Residency on device `host`: experts are computed in place, in weightd's DRAM, under leases.
//
// Every extent of a routed expert is leased, or the expert is fetched and leased as its completion is
// handled. If DRAM cannot hold a layer's experts at once, the layer proceeds in waves: lease and compute
// resident experts, release them, fetch more. A fill that found no room narrows the window of requests in
// flight and is retried once a lease was released; with nothing held and nothing in flight one request goes
// out alone, and weightd's reserved minimum makes room for it. So there is always progress, and no order of
// arrival can change a result: an expert's output goes to a location fixed by (token, rank).
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "inferd/cache/residency.h"
#include "inferd/model/weight_buffers.h"

namespace sluice::inferd {

struct HostResidencyOptions {
  // Maximum demands in flight. More than this adds nothing to an SSD's throughput (an expert is several
  // reads).
  uint32_t max_in_flight = 32;
  // Timeout of a layer without any progress; the step fails.
  absl::Duration stall_limit = absl::Seconds(5);
};

class HostResidency final : public LayerResidency {
 public:
  // All pointers outlive this object.
  HostResidency(const HostResidencyOptions& options, WeightClient* client, FetchQueue* fetches,
                const SegmentBuffers* segments, Queue* queue);

  bool IsResident(uint32_t layer, uint32_t expert) const override;
  bool IsComing(uint32_t layer, uint32_t expert) const override {
    return AskedFor(layer, expert) == StepOf(layer) + 1 || IsResident(layer, expert);
  }
  bool AllResident(uint32_t layer) const override { return complete_[layer].all_resident; }
  void BeginStep(const StepNeeds& step) override;
  absl::Status BeginLayer(const LayerDemands& begun) override;
  bool NextWaits() const override;
  void Prefetch(uint32_t layer, uint32_t expert) override;
  void Abandon() override;
  ResidencyStats stats() const override;

 private:
  enum class State : uint8_t { kWaiting, kRequested, kReady, kHandedOut, kDone, kFailed };
  static constexpr int kMaxExtents = kPartCount;  // streams of an expert

  struct Entry {
    State state = State::kWaiting;
    std::array<ExtentLease, kMaxExtents> leases;
  };
  // A prefetch without a completion yet.
  struct ComingExpert {
    uint32_t layer = 0;
    uint32_t expert = 0;
    uint64_t request = 0;
  };
  // State of a layer as a whole; refreshed now and then, reset on a miss.
  struct LayerState {
    bool all_resident = false;
    uint64_t next_look = 0;  // step of the next check
  };

  // Step that a prefetch of the layer is for: the next step's for the running layer and those before it.
  uint64_t StepOf(uint32_t layer) const { return layer < begun_ ? step_ + 1 : step_; }
  uint64_t AskedFor(uint32_t layer, uint32_t expert) const {
    return asked_for_[first_expert_[layer] + expert];
  }
  bool LeaseExpert(uint32_t index);
  void CancelDisproved();
  void GiveBack(uint32_t index);
  void Handle(const FetchKey& key, const FetchCompletion& completion) override;
  absl::Status RequestWaiting() override;
  absl::Status HandOut() override;
  absl::Status ReturnTiles(Event used) override;
  absl::Time WaitUntil() const override;
  uint32_t in_flight() const override { return in_flight_; }
  absl::StatusOr<WeightView> PartOf(uint32_t index, Part part) const;
  void LookAtLayer(uint32_t layer);

  const SegmentBuffers* const segments_;
  uint32_t begun_ = 0;                // number of layers begun in this step
  std::vector<Entry> entries_;        // [most experts of a layer], by demand
  std::vector<LayerState> complete_;  // by layer
  std::vector<ComingExpert> coming_;
  std::vector<uint64_t> asked_for_;     // by (layer, expert): step + 1 of the last prefetch
  std::vector<uint64_t> first_expert_;  // by layer: index of its first expert
  uint32_t waiting_ = 0;                // entries in kWaiting
  uint32_t in_flight_ = 0;              // demands of this layer without a completion
  uint64_t held_ = 0;                   // extent leases
};

}  // namespace sluice::inferd
