// Residency on devices with memory of their own: whole experts lie in slots of a slab that inferd allocated
// and weightd writes into. On `sim` the slab is shared memory that the host backend imports.
//
// A layer's experts that are in slots are computed first; for the others transfers are sent at once, as far
// as slots go, and each is computed tile by tile while its next tile travels. More experts than slots go in
// waves: one that has been computed makes room. A prompt that streams computes those first that came, and
// what stays in its slots while nothing else is there, so that the link never waits for slots. Some may be
// the CPU's instead, where they lie in weightd's DRAM (miss_plan.h). What arrives when decides nothing but
// time: results go to places fixed by (token, rank), neurons in order.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "inferd/policy/preset/policy_kinds.h"
#include "inferd/residency/layer_residency.h"
#include "inferd/residency/slab/cpu_costs.h"
#include "inferd/residency/slab/cpu_experts.h"
#include "inferd/residency/slab/expert_slots.h"
#include "inferd/residency/slab/link_forecast.h"
#include "inferd/residency/slab/miss_plan.h"
#include "inferd/residency/slots/gap_order.h"
#include "inferd/residency/slots/link_pace.h"
#include "inferd/residency/slots/slot_cache_options.h"
#include "inferd/residency/slots/slot_fill.h"
#include "inferd/residency/slots/slot_keeper.h"
#include "inferd/sim/virtual_clock.h"
#include "inferd/weights/segment_buffers.h"

namespace sluice {

struct SlabResidencyOptions : SlotCacheOptions {
  bool whole_layers = false;  // load every expert of a layer, chosen or not
  bool fixed = false;         // what the first fill brought stays for good
  bool cancel_begun = false;  // prefetches that the router disproved end even if they have begun
  // What happens to a chosen expert that is not resident: kLoad, kCpu or kBalance.
  ExpertMiss miss = ExpertMiss::kLoad;
  // Of a byte of an expert on the CPU for one row; 0: measured at the start, in virtual time a third of the
  // link's.
  double cpu_seconds = 0;
  // Whether kBalance may give the CPU resident experts too.
  bool balance_resident = false;
  // Of a byte of an expert on the device; 0: measured at the start where it matters.
  double device_seconds = 0;
  // By layer, bytes of the experts that every token goes through: the device computes them beside the routed
  // ones; empty: none.
  std::vector<double> shared_bytes;
  uint32_t max_rows = 1;  // of a step, for measuring the CPU
};

class SlabResidency final : public LayerResidency {
 public:
  // All pointers outlive this object. `cpu`: computes beside the device, and `segments` are its; null where
  // no miss is the CPU's. Errors of ExpertSlots::Create. `clock`: the virtual one, null in real time.
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
  void SetScores(absl::Span<const float> scores) override { keeper_.SetScores(scores); }
  void SetPrefill(bool prefill) override { prefill_ = prefill; }
  void SetCpu(bool cpu) override { cpu_allowed_ = cpu; }
  absl::Status BeginLayer(uint32_t layer, absl::Span<const ExpertDemand> demands) override;
  bool NextWaits() const override;
  bool MayUseCpu(uint32_t layer) const override { return Miss() != ExpertMiss::kLoad && !AllThere(layer); }
  void CpuFinished() override { GiveBackRead(); }
  void Prefetch(uint32_t layer, uint32_t expert) override;
  std::optional<WeightView> Lead(uint32_t layer, uint32_t expert) const override;
  void LeadRead(uint32_t layer, uint32_t expert, Event used) override;
  // In real time a layer that is resident as a whole is the device's alone: nobody has to be asked then.
  bool AllThere(uint32_t layer) const override {
    return AllResident(layer) && !(clock_ != nullptr && BalancesLayers());
  }
  ReadyTile Whole(uint32_t layer, uint32_t expert) const override;
  void LayerRead(uint32_t layer, Event used) override { table().SetUsed(layer, used); }
  void Heard(uint32_t layer, absl::Span<const ExpertDemand> demands) override;
  bool LinkIdle() override;
  uint32_t LayersToFetch() override;
  void Abandon() override;
  uint64_t held() const override { return cpu_.held(); }

  const SlabPlan& plan() const { return slots_->plan(); }
  // What the CPU takes for experts of each size class, measured at the start; empty: misses are loaded, or no
  // expert was there to be measured.
  absl::Span<const CpuCostTable> cpu_costs() const { return costs_.tables(); }

 private:
  enum class State : uint8_t {
    kWaiting,       // not asked for
    kInFlight,      // on its way into a slot; tiles that landed may be handed out
    kLate,          // on its way when its layer began; to be decided about
    kReady,         // in a slot, not all of it computed
    kCpu,           // the CPU's, to be handed out
    kCpuHandedOut,  // being computed there
    kDone,
    kFailed
  };
  struct Entry {
    uint32_t slot = ExpertSlots::kNoSlot;
    State state = State::kWaiting;
    uint32_t handed = 0;  // neurons that were handed out
    bool idle = false;    // loaded though nobody chose it (whole_layers)
    uint32_t shared = 0;  // neurons from here on are the CPU's, those before come over the link; 0: none are
  };

  SlabResidency(const SlabResidencyOptions& options, std::unique_ptr<ExpertSlots> slots, WeightClient* client,
                FetchQueue* fetches, const SegmentBuffers* segments, Backend* backend, Backend* cpu,
                VirtualClock* clock);
  absl::Status Fill();
  absl::Status LearnCosts();

  // A layer's demands: how they begin and end.
  void BeginEntry(const ExpertDemand& demand, bool idle);
  void AddIdle();
  void Join(Entry* entry);
  void CancelDisproved();
  void EndLayer();

  // Who computes what.
  ExpertMiss Miss() const {
    return cpu_place_ != nullptr && cpu_allowed_ ? options_.miss : ExpertMiss::kLoad;
  }
  void DecideMisses(absl::Span<const ExpertDemand> demands);
  void CollectDemands(absl::Span<const ExpertDemand> demands);
  absl::Span<const MissPlan::Verdict> PlanMisses(absl::Span<const ExpertDemand> demands);
  void CarryOut(const MissPlan::Verdict& verdict);
  bool BalancesLayers() const;
  // Whether what the CPU shares goes on travelling when it has been computed, for tokens to come.
  bool TravelsOn() const { return !prefill_ && table().quota(layer_) > 0; }
  bool IsOthers(const Slot& slot) const;
  double BacklogSeconds() const;
  bool LateToCpu(uint32_t index, uint32_t tokens);
  bool GiveSlotToCpu(uint32_t index, uint32_t tokens);
  void GiveToCpu(uint32_t index, uint32_t tokens);
  void Split(uint32_t index, uint32_t tokens, uint32_t tiles);
  void QueueOnCpu(uint32_t index, uint32_t tokens, double share);
  // Whether the CPU may go on where the device's tiles of an expert end. It has to wait for their sums, which
  // only a modelled CPU does without losing time.
  bool MaySplit() const { return clock_ != nullptr; }
  void LeaveToCpu(Entry* entry);
  bool AwaitCpu();

  absl::Status AskForWaiting() override;
  absl::Status Ask(uint32_t index);
  void Handle(const FetchKey& key, const FetchCompletion& completion) override;
  void HandleForDemand(uint32_t index, const FetchKey& key, const FetchCompletion& completion);
  absl::Status HandOut() override;
  bool FillsGaps() const { return streams_ && waiting_ > 0; }
  // Whether an expert is ready in a slot that is no stream's.
  bool Stays(uint32_t index) const {
    const Entry& entry = entries_[index];
    return entry.state == State::kReady && !entry.idle && !table().slot(entry.slot).passing;
  }
  bool HandOutEntry(uint32_t index);
  void HandOutRange(uint32_t index, uint32_t end);
  void HandOutCpu(uint32_t index);
  absl::Status TakeBack(Event used) override;
  void GiveBackRead() override;
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
  GapOrder gaps_;

  double device_seconds_ = 0;  // of a byte of an expert on the device; 0: not known
  bool cpu_measured_ = true;   // what the layer gave to the CPU has told how long it took
  bool filled_ = false;        // once, at the start
  bool cpu_allowed_ = true;
  bool prefill_ = false;
  bool streams_ = false;         // prefill that wants more experts than the layer may keep
  uint32_t width_ = 0;           // of the layer's experts
  std::vector<Entry> entries_;   // [most experts of a layer], by demand
  Event cpu_began_;              // of the CPU's queue: before what the layer gives to it
  Event cpu_used_;               // behind the last that reads a lease
  double cpu_queued_ = 0;        // seconds of the CPU's work for this layer
  uint32_t waiting_ = 0;         // entries in kWaiting
  uint32_t in_flight_ = 0;       // entries in kInFlight
  std::vector<uint32_t> heard_;  // [most experts]
};

}  // namespace sluice
