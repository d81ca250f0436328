// Residency on devices with memory of their own: whole experts lie in slots of a slab that inferd allocated
// and weightd writes into. On `sim` the slab is shared memory that the host backend imports.
//
// A layer's resident experts are computed first; transfers of the others are sent at once, as far as slots
// allow, and each expert is computed tile by tile while its next tile travels. More experts than slots go in
// waves: a computed expert makes room. A streaming prompt computes arrived experts first, and staying ones
// while nothing else is ready, so that the link never waits for slots. The CPU may compute some experts in
// weightd's DRAM (miss_plan.h). The order of arrival affects nothing but time: results go to locations fixed
// by (token, rank), neurons in order.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "inferd/cache/cpu_experts.h"
#include "inferd/cache/expert_slots.h"
#include "inferd/cache/miss_plan.h"
#include "inferd/cache/residency.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/cache/slot_table.h"
#include "inferd/cache/transfer_pacing.h"
#include "inferd/model/weight_buffers.h"
#include "inferd/policy/policies.h"
#include "inferd/sim/virtual_clock.h"

namespace sluice::inferd {

struct SlabResidencyOptions : SlotCacheOptions {
  bool whole_layers = false;  // load every expert of a layer, chosen or not
  bool fixed = false;         // experts of the first fill stay permanently
  bool cancel_begun = false;  // disproved prefetches end even if they have begun
  // Handling of a chosen expert that is not resident: kLoad, kCpu or kBalance.
  ExpertMiss miss = ExpertMiss::kLoad;
  // CPU time per byte of an expert for one row; 0: measured at the start, in virtual time a third of the
  // link's.
  double cpu_seconds = 0;
  // Device time per byte of an expert; 0: measured at the start if needed.
  double device_seconds = 0;
  // By layer, bytes of the common experts of every token, which the device computes besides the routed ones;
  // empty: none.
  std::vector<double> shared_bytes;
  uint32_t max_rows = 1;  // maximum rows of a step, for measuring the CPU
};

class SlabResidency final : public LayerResidency {
 public:
  // All pointers outlive this object. `cpu`: computes in parallel with the device, and `segments` are its;
  // null if no miss is the CPU's. Errors of ExpertSlots::Create. `clock`: the virtual one, null in real time.
  static absl::StatusOr<std::unique_ptr<SlabResidency>> Create(const SlabResidencyOptions& options,
                                                               WeightClient* client, FetchQueue* fetches,
                                                               const SegmentBuffers* segments,
                                                               Backend* backend, Backend* cpu,
                                                               VirtualClock* clock);

  absl::Status Attach() override;
  bool IsResident(uint32_t layer, uint32_t expert) const override { return table().IsReady(layer, expert); }
  bool IsComing(uint32_t layer, uint32_t expert) const override {
    return table().Find(layer, expert) != ExpertSlots::kNoSlot;
  }
  bool AllResident(uint32_t layer) const override {
    return table().ready(layer) == pack_.expert_count(layer);
  }
  bool WantsScores() const override { return keeper_.NeedsScores(); }
  absl::Status BeginLayer(const LayerDemands& begun) override;
  bool NextWaits() const override;
  bool MayUseCpu(uint32_t layer) const override {
    return Miss() != ExpertMiss::kLoad && !CanDeferLayer(layer);
  }
  void CpuFinished() override { ReleaseRead(); }
  void Prefetch(uint32_t layer, uint32_t expert) override;
  std::optional<WeightView> Lead(uint32_t layer, uint32_t expert) const override;
  void LeadRead(uint32_t layer, uint32_t expert, Event used) override;
  // In real time a fully resident layer is the device's alone, so the host need not decide.
  bool CanDeferLayer(uint32_t layer) const override {
    return AllResident(layer) && !(clock_ != nullptr && BalancesLayers());
  }
  ReadyTile Whole(uint32_t layer, uint32_t expert) const override;
  uint64_t WholeNumber(uint32_t layer) const override { return table().filled(layer); }
  void LayerRead(uint32_t layer, Event used) override { table().SetUsed(layer, used); }
  void CountDeferred(uint32_t layer, absl::Span<const ExpertDemand> demands) override;
  bool LinkIdle() override;
  uint32_t LayersToFetch() override;
  void Abandon() override;
  ResidencyStats stats() const override;

  const SlabPlan& plan() const { return slots_->plan(); }
  // CPU times of experts of each size class, measured at the start; empty: misses are loaded, or no expert
  // was resident for measuring.
  absl::Span<const CpuCostTable> cpu_costs() const { return costs_.tables(); }

 private:
  enum class State : uint8_t {
    kWaiting,       // not requested
    kInFlight,      // in flight into a slot; landed tiles may be handed out
    kLate,          // in flight when its layer began; to be decided
    kReady,         // in a slot, not all of it computed
    kCpu,           // the CPU's, to be handed out
    kCpuHandedOut,  // being computed by the CPU
    kDone,
    kFailed
  };
  struct Entry {
    uint32_t slot = ExpertSlots::kNoSlot;
    State state = State::kWaiting;
    uint32_t handed = 0;  // neurons handed out
    bool idle = false;    // loaded though no row chose it (whole_layers)
    uint32_t shared = 0;  // first neuron of the CPU's share, those before come over the link; 0: no share
  };

  SlabResidency(const SlabResidencyOptions& options, std::unique_ptr<ExpertSlots> slots, WeightClient* client,
                FetchQueue* fetches, const SegmentBuffers* segments, Backend* backend, Backend* cpu,
                VirtualClock* clock);
  absl::Status Fill();
  absl::Status LearnCosts();

  // Begin and end of a layer's demands.
  void BeginEntry(const ExpertDemand& demand, bool idle);
  void AddUnchosen();
  void Join(Entry* entry);
  void CancelDisproved();
  void EndLayer();

  // Assignment of experts to devices.
  ExpertMiss Miss() const { return cpu_place_ != nullptr && needs_.cpu ? options_.miss : ExpertMiss::kLoad; }
  void DecideMisses(absl::Span<const ExpertDemand> demands);
  void CollectDemands(absl::Span<const ExpertDemand> demands);
  absl::Span<const MissPlan::Verdict> PlanMisses(absl::Span<const ExpertDemand> demands);
  void CarryOut(const MissPlan::Verdict& verdict);
  bool BalancesLayers() const;
  // True if an expert that the CPU shares continues to travel after it was computed, for later tokens.
  bool TravelsOn() const { return !needs_.prefill && table().quota(layer_) > 0; }
  bool IsOtherTraffic(const Slot& slot) const;
  double BacklogSeconds() const;
  bool LateToCpu(uint32_t index, uint32_t tokens);
  bool GiveSlotToCpu(uint32_t index, uint32_t tokens);
  void GiveToCpu(uint32_t index, uint32_t tokens);
  void Split(uint32_t index, uint32_t tokens, uint32_t tiles);
  void QueueOnCpu(uint32_t index, uint32_t tokens, double share);
  // True if the CPU may continue where the device's tiles of an expert end. It has to wait for their sums,
  // which only a modelled CPU does without losing time.
  bool MaySplit() const { return clock_ != nullptr && !pack_.by_outputs(); }
  void LeaveToCpu(Entry* entry);
  bool AwaitCpu();

  absl::Status RequestWaiting() override;
  absl::Status Ask(uint32_t index);
  void Handle(const FetchKey& key, const FetchCompletion& completion) override;
  void HandleForDemand(uint32_t index, const FetchKey& key, const FetchCompletion& completion);
  absl::Status HandOut() override;
  bool FillsGaps() const { return streams_ && waiting_ > 0; }
  // True if an expert is ready in a slot that does not belong to a stream.
  bool Stays(uint32_t index) const {
    const Entry& entry = entries_[index];
    return entry.state == State::kReady && !entry.idle && !table().slot(entry.slot).passing;
  }
  bool HandOutEntry(uint32_t index);
  void HandOutRange(uint32_t index, uint32_t end);
  void HandOutCpu(uint32_t index);
  absl::Status ReturnTiles(Event used) override;
  void ReleaseRead() override;
  absl::Status WaitForMore() override;
  absl::Time WaitUntil() const override;
  uint32_t in_flight() const override { return in_flight_; }

  SlotTable& table() { return slots_->table(); }
  const SlotTable& table() const { return slots_->table(); }
  double BytesOf(uint32_t expert) const { return static_cast<double>(pack_.expert_bytes(layer_, expert)); }

  const SlabResidencyOptions options_;
  Backend* const backend_;
  Backend* const cpu_place_;   // null: the device computes everything
  VirtualClock* const clock_;  // null: real time
  const MonotonicClock real_clock_;
  const std::unique_ptr<ExpertSlots> slots_;
  SlotKeeper keeper_;
  SlotFill fill_;
  const LinkPace link_;
  const LinkForecast forecast_;
  CpuCosts costs_;
  CpuExperts cpu_;
  MissPlan plan_;
  LayerPace pace_;
  StreamOrder gaps_;

  double device_seconds_ = 0;           // per byte of an expert on the device; 0: not known
  bool cpu_measured_ = true;            // the time of the layer's CPU work was reported
  bool filled_ = false;                 // set once, at the start
  bool streams_ = false;                // prefill with more experts than the layer may keep
  uint32_t width_ = 0;                  // neurons of each of the layer's experts
  std::vector<Entry> entries_;          // [most experts of a layer], by demand
  Event cpu_began_;                     // CPU queue before the layer's work
  Event cpu_used_;                      // behind the last reader of a lease
  double cpu_queued_ = 0;               // seconds of the CPU's work for this layer
  uint32_t waiting_ = 0;                // entries in kWaiting
  uint32_t in_flight_ = 0;              // entries in kInFlight
  std::vector<uint32_t> used_experts_;  // [most experts], deferred choice
};

}  // namespace sluice::inferd
