// Slots that hold experts neuron by neuron, and the transfers that fill them: the second level of the cache.
//
// A slot has its expert's lead (unless every lead stays in device memory) and, of the other parts, the
// neurons requested so far (neuron_table.h). Several transfers may write into a slot at once, each into
// records of its own; the slot is not evicted before they end. A lead that does not arrive leaves its slot
// dead: it is freed when the last of its transfers has ended. When weightd dies, the targets of its writes
// stay untouched until its process is known to be gone (Offer), and then count as never requested.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/cache/neuron_layout.h"
#include "inferd/cache/neuron_table.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/cache/slot_table.h"
#include "inferd/model/fetch_queue.h"
#include "inferd/model/weight_buffers.h"
#include "inferd/model/weight_client.h"
#include "kernels/backend.h"

namespace sluice::inferd {

struct NeuronSlotsOptions {
  uint64_t budget = 0;  // bytes, resident leads included; 0: unlimited
  Part lead = Part::kGate;
  bool lead_resident = false;
  bool fetch_ahead = false;  // true if experts of later layers will be prefetched
  double link_gbps = 0;
  double link_latency_us = 0;
  uint32_t tile_neurons = 0;  // tile of a whole expert, a multiple of 64; 0: an eighth of the expert
  SlotAllocation allocate;    // REQUIRED
};

class NeuronSlots {
 public:
  static constexpr uint32_t kNoSlot = SlotTable::kNoSlot;

  // Allocates the slab and imports it. All pointers outlive this object. INVALID_ARGUMENT for a budget below
  // the minimum, or a tile that is no multiple of 64.
  static absl::StatusOr<std::unique_ptr<NeuronSlots>> Create(const NeuronSlotsOptions& options,
                                                             WeightClient* client, FetchQueue* fetches,
                                                             Backend* backend);
  // Begins a session with weightd; the previous one is over and its process gone.
  absl::Status Offer();
  // The session is lost: targets of transfers must not be touched until Offer().
  void Lose() { table_.LoseFilling(); }

  SlotTable& table() { return table_; }
  const SlotTable& table() const { return table_; }
  NeuronTable& neurons() { return neurons_; }
  const NeuronTable& neurons() const { return neurons_; }
  const SlabPlan& plan() const { return plan_; }

  // The expert's slot; kNoSlot if it has none, or a dead one.
  uint32_t Find(uint32_t layer, uint32_t expert) const;
  // True if a slot may be allocated for it: no transfer to a dead slot of it is left.
  bool CanTake(uint32_t layer, uint32_t expert) const { return table_.Find(layer, expert) == kNoSlot; }
  // Allocates a slot for the expert, without neurons; kNoSlot: nothing may be evicted now. REQUIRES:
  // CanTake().
  uint32_t Take(uint32_t layer, uint32_t expert, SlotTable::For purpose, SlotTable::Victim victim);
  // Frees a slot without transfers.
  void FreeSlot(uint32_t slot) { table_.SetFree(slot); }

  bool HasLead(uint32_t layer, uint32_t expert) const;
  bool IsFull(uint32_t layer, uint32_t expert) const;
  bool IsBusy(uint32_t slot) const { return states_[slot].in_flight > 0; }

  // Requests the lead of a slot's expert; with kNoSlot the resident one.
  absl::Status FetchLead(RequestClass request_class, uint64_t step, uint32_t layer, uint32_t expert,
                         uint32_t slot);
  // Requests neurons that were not requested: ascending, distinct. All neurons, into an empty slot, travel
  // without being gathered, in tiles, and with the lead if the slot lacks it. RESOURCE_EXHAUSTED: the ring is
  // full; OUT_OF_RANGE: the slot has no records left.
  absl::Status FetchNeurons(RequestClass request_class, uint64_t step, uint32_t slot,
                            absl::Span<const uint32_t> neurons);
  // Turns the prefetches into a slot into demands; those that cannot be sent now continue unchanged.
  void Promote(uint64_t step, uint32_t slot);

  // Result of a completed transfer.
  struct Ended {
    uint32_t slot = kNoSlot;
    uint32_t layer = 0;
    uint32_t expert = 0;
    bool lead = false;     // the lead was part of it
    bool neurons = false;  // neurons were part of it
    bool counts = true;    // false: a prefetch coalesced with a demand, whose completion counts
    bool freed = false;    // its slot is free now
  };
  // Returns false if it was no transfer of these slots.
  bool Handle(const FetchCompletion& completion, Ended* ended);

  uint32_t in_flight() const { return static_cast<uint32_t>(transfers_.size()); }
  uint32_t demands_in_flight() const;
  // Landed neurons of a whole expert in flight into the slot; 0: no such transfer.
  uint32_t LandedNeurons(uint32_t slot) const;
  uint32_t TileOf(uint32_t width) const { return tile_.Of(width); }

  // Step in which a predictor last named neurons of the slot's expert; 0: never.
  uint64_t predicted(uint32_t slot) const { return states_[slot].predicted; }
  void SetPredicted(uint32_t slot, uint64_t step) { states_[slot].predicted = step; }

  // REQUIRES: HasLead().
  WeightView LeadView(uint32_t layer, uint32_t expert) const;
  // A part's records. `by_list`: at listed positions; else each at its neuron's number. kNoSlot: none is
  // resident.
  WeightView RecordView(uint32_t layer, uint32_t expert, uint32_t slot, Part part, bool by_list) const;
  const NeuronLayout& layout(uint32_t layer, uint32_t expert) const { return ShapeOf(layer, expert).layout; }
  Part lead() const { return options_.lead; }
  bool lead_resident() const { return options_.lead_resident; }

 private:
  struct State {
    uint32_t in_flight = 0;
    bool dead = false;
    uint64_t whole = 0;      // transfer of the whole expert while in flight
    uint64_t predicted = 0;  // step
  };
  struct Transfer {
    uint64_t id = 0;
    RequestClass request_class = RequestClass::kDemand;
    uint32_t slot = kNoSlot;
    uint32_t layer = 0;
    uint32_t expert = 0;
    bool lead = false;
    bool whole = false;       // every neuron, not gathered
    bool taken_over = false;  // coalesced with a demand for the same bytes
    uint32_t first = 0;       // records
    uint32_t count = 0;
  };

  // Common layout of experts that are packed alike: offsets of their parts, and weight views without a base.
  struct Shape {
    NeuronLayout layout;
    std::array<WeightView, kPartCount> parts;
  };

  NeuronSlots(const NeuronSlotsOptions& options, SlabPlan plan, TileSize tile, WeightClient* client,
              FetchQueue* fetches, Queue* queue);
  void AddExpert(uint32_t layer, uint32_t expert);
  const Shape& ShapeOf(uint32_t layer, uint32_t expert) const {
    return shapes_[shape_of_[plan_.first_expert[layer] + expert]];
  }
  absl::Status Send(uint64_t step, Transfer transfer);
  void Free(uint32_t slot);

  const NeuronSlotsOptions options_;
  const Pack& pack_;
  const SlabPlan plan_;
  const TileSize tile_;
  WeightClient* const client_;
  FetchQueue* const fetches_;
  const std::vector<int32_t> absent_;   // [most neurons], for an expert without a slot
  std::vector<Shape> shapes_;           // distinct shapes
  std::vector<uint32_t> shape_of_;      // by layer and expert
  std::vector<uint64_t> lead_offsets_;  // offsets of resident leads in the slab
  std::vector<uint8_t> lead_there_;     // 1 if the resident lead has arrived
  std::unique_ptr<DeviceSlab> slab_;
  SlotTable table_;
  NeuronTable neurons_;
  std::vector<State> states_;        // by slot
  std::vector<Transfer> transfers_;  // [kMaxTransfers]
};

}  // namespace sluice::inferd
