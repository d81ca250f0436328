// Slots that hold experts neuron by neuron, and the transfers that fill them: the second level of the cache.
//
// A slot has its expert's lead (unless every lead stays in device memory) and, of the other parts, the
// neurons that somebody asked for so far (neuron_table.h). Several transfers may write into a slot at once,
// each into records of its own; while any does, the slot is not given up. A lead that does not come leaves
// its slot dead: freed when the last of its transfers has ended. When weightd dies, what it was writing stays
// untouched until its process is known to be gone (Offer), and is then as if it had never been asked for.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/residency/neuron/neuron_layout.h"
#include "inferd/residency/neuron/neuron_table.h"
#include "inferd/residency/slots/slab_plan.h"
#include "inferd/residency/slots/slot_table.h"
#include "inferd/residency/slots/tile_size.h"
#include "inferd/weights/device_slab.h"
#include "inferd/weights/fetch_queue.h"
#include "inferd/weights/weight_client.h"
#include "kernels/backend.h"

namespace sluice {

struct NeuronSlotsOptions {
  uint64_t budget = 0;  // bytes, leads that stay included; 0: as many as it takes
  Part lead = Part::kGate;
  bool lead_resident = false;
  bool fetch_ahead = false;  // whether experts of later layers will be asked for
  double link_gbps = 0;
  double link_latency_us = 0;
  uint32_t tile_neurons = 0;  // of a whole expert, a multiple of 64; 0: an eighth of the expert
  SlotAllocation allocate;    // REQUIRED
};

class NeuronSlots {
 public:
  static constexpr uint32_t kNoSlot = SlotTable::kNoSlot;

  // Allocates the slab and imports it. All pointers outlive this object. INVALID_ARGUMENT for a budget that
  // does not hold the least, or a tile that is no multiple of 64.
  static absl::StatusOr<std::unique_ptr<NeuronSlots>> Create(const NeuronSlotsOptions& options,
                                                             WeightClient* client, FetchQueue* fetches,
                                                             Backend* backend);
  // A session with weightd begins, the one before is over and its process gone.
  absl::Status Offer();
  // The session is lost: what is on its way must not be touched until Offer().
  void Lose() { table_.LoseFilling(); }

  SlotTable& table() { return table_; }
  const SlotTable& table() const { return table_; }
  NeuronTable& neurons() { return neurons_; }
  const NeuronTable& neurons() const { return neurons_; }
  const SlabPlan& plan() const { return plan_; }

  // The expert's slot; kNoSlot if it has none, or a dead one.
  uint32_t Find(uint32_t layer, uint32_t expert) const;
  // Whether a slot could be taken for it: no transfer to a dead one is left.
  bool MayTake(uint32_t layer, uint32_t expert) const { return table_.Find(layer, expert) == kNoSlot; }
  // A slot for the expert, without neurons; kNoSlot: none may go now. REQUIRES: MayTake().
  uint32_t Take(uint32_t layer, uint32_t expert, SlotTable::For purpose, SlotTable::Victim victim);
  // Frees a slot into which nothing travels.
  void GiveUp(uint32_t slot) { table_.SetFree(slot); }

  bool HasLead(uint32_t layer, uint32_t expert) const;
  bool IsFull(uint32_t layer, uint32_t expert) const;
  bool IsBusy(uint32_t slot) const { return states_[slot].in_flight > 0; }

  // Asks for the lead of a slot's expert; with kNoSlot for the one that stays.
  absl::Status FetchLead(FetchKind kind, uint64_t step, uint32_t layer, uint32_t expert, uint32_t slot);
  // Asks for neurons that were not asked for: ascending, distinct. All of them, into an empty slot, travel
  // without being gathered, in tiles, and with the lead if the slot lacks it. RESOURCE_EXHAUSTED: the ring is
  // full; OUT_OF_RANGE: the slot has no records left.
  absl::Status FetchNeurons(FetchKind kind, uint64_t step, uint32_t slot, absl::Span<const uint32_t> neurons);
  // Makes demands of the prefetches into a slot; what cannot be asked for now goes on as it is.
  void Promote(uint64_t step, uint32_t slot);

  // What a completion was about.
  struct Ended {
    uint32_t slot = kNoSlot;
    uint32_t layer = 0;
    uint32_t expert = 0;
    bool lead = false;     // the lead was part of it
    bool neurons = false;  // neurons were
    bool counts = true;    // false: a prefetch that a demand has taken over, the demand tells how it went
    bool freed = false;    // its slot is free now
  };
  // False if it was no transfer of these slots.
  bool Handle(const FetchCompletion& completion, Ended* ended);

  uint32_t in_flight() const { return static_cast<uint32_t>(transfers_.size()); }
  uint32_t demands_in_flight() const;
  // Of a whole expert on its way into the slot: neurons whose tiles have landed; 0: nothing of that kind.
  uint32_t LandedNeurons(uint32_t slot) const;
  uint32_t TileOf(uint32_t width) const { return tile_.Of(width); }

  // The step in which a predictor last named neurons of the slot's expert; 0: never.
  uint64_t predicted(uint32_t slot) const { return states_[slot].predicted; }
  void SetPredicted(uint32_t slot, uint64_t step) { states_[slot].predicted = step; }

  // REQUIRES: HasLead().
  WeightView LeadView(uint32_t layer, uint32_t expert) const;
  // A part's records. `by_list`: wherever they are; else each at its neuron's number. kNoSlot: none is there.
  WeightView RecordView(uint32_t layer, uint32_t expert, uint32_t slot, Part part, bool by_list) const;
  const NeuronLayout& layout(uint32_t layer, uint32_t expert) const { return ShapeOf(layer, expert).layout; }
  Part lead() const { return options_.lead; }
  bool lead_resident() const { return options_.lead_resident; }

 private:
  struct State {
    uint32_t in_flight = 0;
    bool dead = false;
    uint64_t whole = 0;      // the transfer of everything, while it is on its way
    uint64_t predicted = 0;  // step
  };
  struct Transfer {
    uint64_t id = 0;
    FetchKind kind = FetchKind::kDemand;
    uint32_t slot = kNoSlot;
    uint32_t layer = 0;
    uint32_t expert = 0;
    bool lead = false;
    bool whole = false;       // every neuron, not gathered
    bool taken_over = false;  // by a demand for the same bytes
    uint32_t first = 0;       // records
    uint32_t count = 0;
  };

  // What experts have in common that are packed alike: where their parts lie, and these as weights that lack
  // their base.
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
  const std::vector<int32_t> absent_;   // [most neurons], of an expert without a slot
  std::vector<Shape> shapes_;           // the different ones
  std::vector<uint32_t> shape_of_;      // by layer and expert
  std::vector<uint64_t> lead_offsets_;  // of leads that stay, in the slab
  std::vector<uint8_t> lead_there_;     // whether they are
  std::unique_ptr<DeviceSlab> slab_;
  SlotTable table_;
  NeuronTable neurons_;
  std::vector<State> states_;        // by slot
  std::vector<Transfer> transfers_;  // [kMostTransfers]
};

}  // namespace sluice
