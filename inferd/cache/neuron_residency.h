// Residency of single neurons (CORM's two-level cache, FloE's slots): experts in slots, and within a slot the
// neurons needed so far.
//
// An expert with few rows gets a lead check before its neurons are fetched: its lead alone is computed
// (LeadsQueued) and tells the neurons that count for any row. The missing ones travel, all of a layer at
// once, while experts with all needed neurons are computed. An expert with many rows needs nearly all of its
// neurons: it gets no lead check, its missing ones travel in one copy, and an empty slot is filled and
// computed tile by tile. The lead check decides nothing about the result: neurons that count are computed, in
// neuron order. While a prompt streams, experts that stay in their slots fill the gaps (transfer_pacing.h).
//
// Policies that leave neurons out: `proceed` computes the neurons that predictors fetched, if one predicted
// the expert's neurons in this step or the one before (else, and for prompts, everything is loaded);
// `budgeted` fetches the largest within a layer's link time.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "inferd/cache/neuron_slots.h"
#include "inferd/cache/neuron_table.h"
#include "inferd/cache/residency.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/cache/slot_table.h"
#include "inferd/cache/transfer_pacing.h"
#include "inferd/policy/policies.h"
#include "kernels/backend.h"

namespace sluice::inferd {

struct NeuronResidencyOptions {
  SlotCacheOptions slots;
  bool lead_resident = false;
  bool fetch_ahead = false;      // true if experts of later layers will be prefetched
  double copy_all_share = 0.75;  // if more of an expert is missing, all of it travels in one copy (CORM)
  NeuronMiss miss = NeuronMiss::kLoad;
  double budget_us = 0;  // kBudgeted: link time of a layer
};

class NeuronResidency final : public LayerResidency {
 public:
  // All pointers outlive this object. Errors of NeuronSlots::Create and of the backend.
  static absl::StatusOr<std::unique_ptr<NeuronResidency>> Create(const NeuronResidencyOptions& options,
                                                                 WeightClient* client, FetchQueue* fetches,
                                                                 Backend* backend);
  ~NeuronResidency() override;

  absl::Status Attach() override;
  bool IsResident(uint32_t layer, uint32_t expert) const override {
    return slots_->table().IsReady(layer, expert);
  }
  bool IsComing(uint32_t layer, uint32_t expert) const override {
    return slots_->Find(layer, expert) != NeuronSlots::kNoSlot;
  }
  double NeuronShare(uint32_t layer, uint32_t expert) const override;
  // True if all experts have all their neurons.
  bool AllResident(uint32_t layer) const override;
  bool WantsScores() const override { return keeper_.NeedsScores(); }
  absl::Status BeginLayer(const LayerDemands& begun) override;
  absl::Status LeadsQueued() override;
  bool NextWaits() const override;
  // Fetches the lead, unless every lead stays; keeps the slot's neurons.
  void Prefetch(uint32_t layer, uint32_t expert) override;
  void PrefetchNeurons(uint32_t layer, uint32_t expert, absl::Span<const uint32_t> neurons) override;
  bool IsBehind() const override { return demands() > 0 && slots_->in_flight() > 0; }
  void LeadRead(uint32_t layer, uint32_t expert, Event used) override;
  std::optional<LayerLeads> LeadsAhead(uint32_t layer, uint32_t rows) override;
  bool CanDeferLayer(uint32_t layer) const override { return AllResident(layer); }
  ReadyTile Whole(uint32_t layer, uint32_t expert) const override;
  void LayerRead(uint32_t layer, Event used) override { slots_->table().SetUsed(layer, used); }
  void CountDeferred(uint32_t layer, absl::Span<const ExpertDemand> demands) override;
  std::optional<WeightView> Lead(uint32_t layer, uint32_t expert) const override;
  void Abandon() override;
  ResidencyStats stats() const override;
  bool HasRoomAhead() const override { return slots_->plan().room_ahead; }
  std::string Describe() const override;

  const NeuronSlots& slots() const { return *slots_; }

 private:
  enum class State : uint8_t {
    kNeedsSlot,     // to be filled with its lead, or completely
    kLeadComes,     // lead on the link
    kLeadReady,     // lead to be handed out
    kLeadOut,       // lead being computed
    kNeedsNeurons,  // not all of `need` is requested
    kNeuronsCome,   // all of it is resident or on the link
    kReady,         // to be computed
    kOut,           // all of it is being computed
    kDone,
    kFailed
  };
  // Maximum rows of lead values in a layer; experts beyond them get no lead check.
  static constexpr uint32_t kValueRows = 256;
  struct Entry {
    uint32_t rows = 0;
    uint32_t slot = NeuronSlots::kNoSlot;
    State state = State::kNeedsSlot;
    bool checks_lead = false;  // lead check before neurons are requested
    bool predicted = false;    // neurons were predicted recently
    uint32_t values_row = 0;   // with a lead check: its first row of lead values
    bool made = false;         // values and mask were computed before the layer began
    uint32_t handed = 0;       // neurons handed out
  };

  NeuronResidency(const NeuronResidencyOptions& options, std::unique_ptr<NeuronSlots> slots,
                  WeightClient* client, FetchQueue* fetches, Backend* backend);
  absl::Status AllocateLeads();
  absl::Status FillLeads();
  absl::StatusOr<uint64_t> RequestLeads();
  absl::Status FillSlots();
  absl::Status FillSlot(uint32_t layer, uint32_t expert);

  // `lead_row`: row of its lead's values if they have been computed, else kNoRow.
  void BeginEntry(const ExpertDemand& demand, uint32_t lead_row);
  void CountDemand(uint32_t expert, const Entry& entry);
  void EndLayer();
  absl::Status RequestWaiting() override;
  absl::Status RequestSlot(uint32_t index);
  absl::Status RequestNeurons(uint32_t index);
  uint32_t TakeSlot(uint32_t expert);
  uint32_t ListAll(uint32_t slot);
  absl::Status TakeLeads();
  void DecideNeurons();
  void ProcessEarlyLeads();
  void DecideFor(uint32_t index);
  void WantNeurons(uint32_t index, absl::Span<const uint64_t> active);
  void ChooseWithinBudget();

  void Handle(const FetchKey& key, const FetchCompletion& completion) override;
  absl::Status Arrived() override;
  void CountArrival();
  void CountFailure(const FetchCompletion& completion, uint32_t index);
  void Reconsider(uint32_t index, const NeuronSlots::Ended& ended, bool ok);
  absl::Status ReturnTiles(Event used) override;
  absl::Status HandOut() override;
  void HandOutLead(uint32_t index);
  bool HandOutEntry(uint32_t index);
  void HandOutRange(uint32_t index, uint32_t end);
  bool HasAll(uint32_t index) const;
  bool FillsGaps() const;
  // True if an expert is ready in a slot that does not belong to a stream.
  bool Stays(uint32_t index) const {
    const Entry& entry = entries_[index];
    return entry.state == State::kReady && entry.slot != NeuronSlots::kNoSlot &&
           !slots_->table().slot(entry.slot).passing;
  }
  absl::Time WaitUntil() const override;
  uint32_t in_flight() const override { return slots_->demands_in_flight(); }

  // Location of a demand's mask.
  BufferRef MaskOf(uint32_t index) const;
  uint64_t* Need(uint32_t index) { return &need_[uint64_t{index} * words_]; }
  absl::Span<const uint64_t> NeedOf(uint32_t index) const {
    return {&need_[uint64_t{index} * words_], words_};
  }
  NeuronCounters& layer_counters() { return neuron_counters_[layer_]; }

  const NeuronResidencyOptions options_;
  Backend* const backend_;
  const std::unique_ptr<NeuronSlots> slots_;
  SlotKeeper keeper_;
  SlotFill fill_;
  const LinkPace link_;
  StreamOrder gaps_;
  bool filled_ = false;      // set once, at the start
  bool leads_came_ = false;  // prefetched leads arrived since the listener was called

  bool streams_ = false;                 // prefill with more experts than the layer may keep
  uint32_t width_ = 0;                   // neurons of each of the layer's experts
  uint32_t value_rows_ = 0;              // rows of the layer's lead values
  std::vector<uint32_t> leads_out_;      // demands whose leads were queued and not processed
  Event leads_queued_;                   // event behind them
  std::vector<WeightView> layer_leads_;  // [most experts]
  std::vector<uint32_t> used_experts_;   // [most experts], deferred choice
  std::vector<Entry> entries_;           // [most experts of a layer], by demand
  const uint32_t words_;                 // of a mask
  std::vector<uint64_t> need_;           // [most experts][words_]: neurons required before it is computed
  std::vector<uint64_t> all_;            // [words_]: every neuron of the layer's experts
  std::vector<uint64_t> none_;           // [words_]
  std::vector<uint32_t> list_;           // neurons of one request
  std::vector<NeuronWant> wants_;        // missing neurons of the layer, kBudgeted
  std::vector<uint8_t> begun_;           // by demand: 1 if it has paid the link's latency
  NeuronBudget budget_;                  // rest of the layer's budget

  BufferId leads_ = kNoBuffer;  // float32 [kValueRows][most neurons], then uint64 [most experts][words_]
  uint64_t active_offset_ = 0;
  uint64_t value_stride_ = 0;  // floats

  absl::Status start_error_;                     // set if a resident lead is damaged
  std::vector<NeuronCounters> neuron_counters_;  // by layer
};

}  // namespace sluice::inferd
