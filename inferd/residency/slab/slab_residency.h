// Residency on devices with memory of their own: experts lie in slots of a slab that inferd allocated and
// weightd writes into. On `sim` the slab is shared memory that the host backend imports.
//
// A layer's experts that are in slots are computed first; for the others transfers are sent at once, as far
// as slots go, and each is computed tile by tile while its next tile travels. More experts than slots go in
// waves: one that has been computed makes room. A slot's bytes are weightd's from the request to its
// completion (tiles that landed may be read); presence is recorded when the completion is reaped, and when
// weightd dies the slots being filled stay untouched until its process is known to be gone (Attach). What
// arrives when decides nothing but time: results go to places fixed by (token, rank), neurons in order.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#ifndef SLUICE_INFERD_RESIDENCY_SLAB_RESIDENCY_H_
#define SLUICE_INFERD_RESIDENCY_SLAB_RESIDENCY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ring/shared_memory.h"
#include "inferd/policy/cache/layer_shares.h"
#include "inferd/policy/cache/slot_eviction.h"
#include "inferd/policy/routing/miss_balance.h"
#include "inferd/residency/residency.h"
#include "inferd/residency/slab/slab_plan.h"
#include "inferd/residency/slab/slot_table.h"
#include "inferd/sim/virtual_clock.h"
#include "inferd/weights/fetch_queue.h"
#include "inferd/weights/segment_buffers.h"
#include "inferd/weights/stall_limit.h"
#include "inferd/weights/weight_client.h"
#include "kernels/backend.h"
#include "pack/pack.h"

namespace sluice {

struct SlabResidencyOptions {
  uint64_t budget = 0;  // bytes for experts; 0: all of them
  double link_gbps = 0;
  double link_latency_us = 0;
  // Neurons of a tile, a multiple of 64; 0: an eighth of the expert.
  uint32_t tile_neurons = 0;
  uint32_t max_in_flight = 32;  // demands
  bool whole_layers = false;    // load every expert of a layer, chosen or not
  bool fixed = false;           // what the first fill brought stays for good
  bool cancel_begun = false;    // prefetches that the router disproved end even if they have begun
  SlotEvictionOptions eviction;
  SlotAllocation allocate;  // REQUIRED
  // By layer: its experts in the order in which slots are filled at the start; empty: by number.
  std::vector<std::vector<uint32_t>> fill_order;
  // What happens to a chosen expert that is not resident: kLoad, kCpu or kBalance.
  ExpertMiss miss = ExpertMiss::kLoad;
  Part lead = Part::kGate;  // what Lead() gives
  // Of a byte of an expert: over the link (0: as measured), and on the CPU for one row (0: measured at the
  // start; in virtual time a third of the link's).
  double load_seconds = 0;
  double cpu_seconds = 0;
  // In virtual time: experts that the CPU computes take the device's time, one after the other, as on `sim`,
  // where both are the same cores; else the CPU works beside the device.
  bool cpu_is_device = false;
  // The same on the device, where kBalance may give the CPU resident experts too; 0: it may not.
  double device_seconds = 0;
  // With device_seconds, by layer: what the device computes beside routed experts, the shared one; empty:
  // nothing.
  std::vector<double> shared_seconds;
  uint32_t max_rows = 1;             // of a step, for measuring the CPU
  const Clock* cpu_clock = nullptr;  // by which it is measured; null: the machine's
  // A layer without any progress for this long ends with an error.
  absl::Duration stall_limit = absl::Seconds(5);
};

class SlabResidency final : public Residency {
 public:
  // Allocates the slab and imports it. All pointers outlive this object. Errors of PlanSlab, of the memory
  // and of the backend; INVALID_ARGUMENT for a tile that is no multiple of 64.
  // `clock`: the virtual one, null in real time.
  static absl::StatusOr<std::unique_ptr<SlabResidency>> Create(const SlabResidencyOptions& options,
                                                               WeightClient* client, FetchQueue* fetches,
                                                               const SegmentBuffers* segments,
                                                               Backend* backend, VirtualClock* clock);
  ~SlabResidency() override;

  absl::Status Attach() override;
  bool IsResident(uint32_t layer, uint32_t expert) const override { return table_.IsReady(layer, expert); }
  bool IsComing(uint32_t layer, uint32_t expert) const override {
    return table_.Find(layer, expert) != SlotTable::kNoSlot;
  }
  bool AllResident(uint32_t layer) const override { return table_.ready(layer) == pack_.expert_count(layer); }
  bool WantsScores() const override { return eviction_.NeedsScores(); }
  void SetScores(absl::Span<const float> scores) override;
  void SetPrefill(bool prefill) override { prefill_ = prefill; }
  void BeginStep(uint64_t step) override;
  absl::Status BeginLayer(uint32_t layer, absl::Span<const ExpertDemand> demands) override;
  absl::StatusOr<absl::Span<const ReadyTile>> Next() override;
  bool NextWaits() const override;
  absl::Span<const FailedDemand> failed() const override { return failed_; }
  void Prefetch(uint32_t layer, uint32_t expert) override;
  std::optional<WeightView> Lead(uint32_t layer, uint32_t expert) const override;
  bool LinkIdle() override;
  uint32_t LayersToFetch() override;
  void Poll() override;
  void Abandon() override;
  uint64_t held() const override { return held_; }
  ResidencyCounters counters() const override { return counters_.total(); }
  absl::Span<const ResidencyCounters> counters_by_layer() const override { return counters_.layers(); }

  const SlabPlan& plan() const { return plan_; }
  // What the CPU takes for experts of each size class, measured at the start; empty: misses are loaded, or no
  // expert was there to be measured.
  absl::Span<const CpuCostTable> cpu_costs() const { return cpu_tables_; }

 private:
  enum class State : uint8_t { kWaiting, kInFlight, kReady, kDone, kFailed, kCpu, kCpuHandedOut, kLate };
  static constexpr int kMaxExtents = kPartCount;  // streams of an expert
  struct Entry {
    uint32_t expert = 0;
    uint32_t slot = SlotTable::kNoSlot;
    State state = State::kWaiting;
    uint32_t handed = 0;   // neurons that were handed out
    bool idle = false;     // loaded though nobody chose it (whole_layers)
    uint32_t shared = 0;   // neurons from here on are the CPU's, those before come over the link; 0: none are
    bool leased = false;   // the CPU computes it or a part
    int64_t cpu_ends = 0;  // of the CPU's part in virtual time
    std::array<ExtentLease, kMaxExtents> leases;  // while leased
  };

  SlabResidency(const SlabResidencyOptions& options, SlabPlan plan, WeightClient* client, FetchQueue* fetches,
                const SegmentBuffers* segments, Backend* backend, VirtualClock* clock);
  absl::Status AllocateSlab();
  absl::Status Fill();
  absl::Status FillLayer(uint32_t layer);
  absl::Status FillSlot(uint32_t layer, uint32_t expert);
  absl::Status DrainFill(uint32_t most);

  void BeginEntry(uint32_t index, const ExpertDemand& demand, bool idle);
  void AddIdle();
  void Join(Entry* entry);
  void EndLayer();
  void DecideMisses(absl::Span<const ExpertDemand> demands);
  uint32_t LoadedOf(absl::Span<const ExpertDemand> sorted) const;
  void DecideShares(absl::Span<const ExpertDemand> demands);
  void CollectMissing(absl::Span<const ExpertDemand> demands);
  void Share(uint32_t index, uint32_t tokens, uint32_t tiles);
  void LeaveToCpu(Entry* entry);
  // Whether what the CPU shares goes on travelling when it has been computed, for tokens to come.
  bool TravelsOn() const { return !prefill_ && table_.quota(layer_) > 0; }
  double LinkSeconds(absl::FunctionRef<bool(const Slot&)> counts) const;
  void TimeLayer(uint32_t next);
  void CollectDemands(absl::Span<const ExpertDemand> demands, State state, std::vector<ExpertDemand>* to);
  bool BalancesLayers() const {
    return options_.miss == ExpertMiss::kBalance && options_.device_seconds > 0 && !cpu_tables_.empty();
  }
  double SecondsToCome(const Entry& entry) const;
  double BacklogSeconds() const;
  bool GiveSlotToCpu(uint32_t index, uint32_t tokens);
  double LoadSeconds() const;
  double SharedSeconds() const {
    return layer_ < options_.shared_seconds.size() ? options_.shared_seconds[layer_] : 0;
  }
  double CpuSeconds() const;
  absl::Status MeasureCpu();
  absl::StatusOr<std::vector<CpuCostTable::Point>> MeasureRows(uint32_t slot, uint32_t most, BufferId x,
                                                               BufferId y);
  bool LateToCpu(uint32_t index, uint32_t tokens);
  double CpuSecondsOf(uint32_t expert, uint32_t tokens) const;
  void GiveToCpu(uint32_t index, uint32_t tokens);
  bool LeaseForCpu(Entry* entry);
  void QueueOnCpu(Entry* entry, uint32_t tokens, double share);
  void HandOutCpu(uint32_t index);
  void ReleaseCpu(Entry* entry);
  bool AwaitCpu();
  // Whether the CPU has a virtual time of its own beside the device's.
  bool CpuBeside() const { return clock_ != nullptr && !options_.cpu_is_device; }
  void TellEviction(absl::Span<const ExpertDemand> demands);
  void CancelDisproved();
  absl::Status AskForWaiting();
  absl::Status Ask(Entry* entry);
  absl::StatusOr<uint64_t> Transfer(FetchKind kind, uint32_t layer, uint32_t expert, uint32_t slot);
  void Handle(const FetchKey& key, const FetchCompletion& completion);
  void HandleForDemand(uint32_t index, const FetchKey& key, const FetchCompletion& completion);
  void FinishHandedOut();
  void HandOut();
  void HandOutRange(uint32_t index, uint32_t end);
  WeightView PartOf(uint32_t layer, uint32_t expert, uint32_t slot, Part part) const;
  uint32_t LandedNeurons(const Entry& entry) const;
  uint32_t TileOf(uint32_t width) const;
  uint32_t FindDemand(uint32_t expert) const;
  absl::Time WaitUntil() const;
  absl::Status StallError() const;
  uint32_t Victim(uint32_t layer, absl::Span<const uint32_t> experts) const {
    return eviction_.Victim(layer, experts);
  }

  const SlabResidencyOptions options_;
  const Pack& pack_;
  const SlabPlan plan_;
  WeightClient* const client_;
  FetchQueue* const fetches_;
  const SegmentBuffers* const segments_;
  Backend* const backend_;
  VirtualClock* const clock_;  // null: real time
  const MonotonicClock real_clock_;
  Queue* const queue_;
  SharedMemory memory_;
  BufferId buffer_ = kNoBuffer;
  uint32_t slab_ = 0;    // weightd's number of it
  bool filled_ = false;  // once, at the start
  SlotTable table_;
  SlotEvictionPolicy eviction_;

  uint64_t step_ = 0;
  uint32_t layer_ = 0;
  bool prefill_ = false;
  bool in_layer_ = false;
  bool streams_ = false;  // prefill that wants more experts than the layer may keep
  uint32_t width_ = 0;    // of the layer's experts
  uint32_t demands_ = 0;
  std::vector<Entry> entries_;                // [most experts of a layer], by demand
  std::vector<uint32_t> demand_of_;           // [most experts], by expert: demand + 1, 0: none
  std::vector<uint32_t> chosen_;              // for the eviction policy
  std::vector<ExpertDemand> misses_;          // to be decided about
  std::vector<ExpertDemand> resident_;        // the same
  std::vector<ExpertDemand> late_;            // the same: on their way, not joined yet
  std::vector<MissingTiles> missing_;         // the same: what the link may bring
  std::vector<uint32_t> missing_demands_;     // by place in it: the entry
  std::vector<CpuCostTable> cpu_tables_;      // measured, by size class; empty: not measured
  double cpu_queued_ = 0;                     // seconds of the CPU's work for this layer
  std::array<double, 2> layer_seconds_ = {};  // of decoding, of prefill; 0: not known yet
  int64_t layer_began_ = 0;                   // 0: no layer has
  uint64_t held_ = 0;                         // leases of experts that the CPU computes
  std::vector<float> scores_;                 // of the layer that begins next
  std::vector<ReadyTile> ready_;              // handed out by the last Next()
  std::vector<FailedDemand> failed_;          // of the current layer
  uint32_t waiting_ = 0;                      // entries in kWaiting
  uint32_t open_ = 0;                         // entries neither kDone nor kFailed
  uint32_t in_flight_ = 0;                    // entries in kInFlight
  uint32_t window_;                           // of in_flight_
  bool no_room_ = false;                      // weightd's DRAM was full
  absl::Time retry_at_;                       // not earlier while no_room_
  StallLimit stall_;
  absl::Status trouble_;  // a completion that no rule covers
  LayerCounters counters_;
};

}  // namespace sluice

#endif  // SLUICE_INFERD_RESIDENCY_SLAB_RESIDENCY_H_
