// Slots that hold whole experts, and the transfers that fill them.
//
// A slot's bytes are weightd's from the request to its completion; tiles that landed may be read before. A
// prefetch that became a demand (Join) is two transfers of the same bytes: the slot is nobody else's until
// both have ended. When weightd dies, slots being filled stay untouched until its process is known to be gone
// (Offer).
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inferd/residency/slots/slab_plan.h"
#include "inferd/residency/slots/slot_cache_options.h"
#include "inferd/residency/slots/slot_table.h"
#include "inferd/residency/slots/tile_size.h"
#include "inferd/weights/device_slab.h"
#include "inferd/weights/fetch_queue.h"
#include "inferd/weights/weight_client.h"
#include "kernels/backend.h"

namespace sluice {

class ExpertSlots {
 public:
  static constexpr uint32_t kNoSlot = SlotTable::kNoSlot;

  // Allocates the slab and imports it. All pointers outlive this object. Errors of PlanSlab, of the memory
  // and of the backend; INVALID_ARGUMENT for a tile that is no multiple of 64.
  static absl::StatusOr<std::unique_ptr<ExpertSlots>> Create(const SlotCacheOptions& options,
                                                             WeightClient* client, FetchQueue* fetches,
                                                             Backend* backend);

  // A session with weightd begins, the one before is over and its process gone.
  absl::Status Offer(double link_gbps, double link_latency_us);
  // The session is lost: what is on its way must not be touched until Offer().
  void Lose() { table_.LoseFilling(); }

  SlotTable& table() { return table_; }
  const SlotTable& table() const { return table_; }
  const SlabPlan& plan() const { return plan_; }

  // Takes a slot for the expert and asks for its bytes. kNoSlot: none may go now. RESOURCE_EXHAUSTED: the
  // ring is full; the slot is given back.
  absl::StatusOr<uint32_t> Fetch(FetchKind kind, uint64_t step, uint32_t layer, uint32_t expert,
                                 SlotTable::For purpose, SlotTable::Victim victim);
  // Makes a demand of the transfer into the slot: the same bytes asked for again overtake. If they cannot be
  // asked for now it goes on as it is. False: it has failed, and the slot is free once nobody writes into it.
  bool Join(uint64_t step, uint32_t slot);

  // A transfer of an expert has ended. Returns the slot that was filled by it, or not after all; kNoSlot if
  // that decides nothing about a slot.
  uint32_t Handle(const FetchKey& key, const FetchCompletion& completion);

  // Of what travels into the slot: the neurons whose tiles have landed. REQUIRES: a request was sent.
  uint32_t Landed(uint32_t slot) const;
  uint32_t TileOf(uint32_t layer) const { return tile_.Of(WidthOf(layer)); }
  uint32_t WidthOf(uint32_t layer) const { return pack_.config().layers[layer].moe.expert_width; }

  // REQUIRES: the slot holds an expert.
  WeightView PartOf(uint32_t slot, Part part) const;

 private:
  ExpertSlots(SlabPlan plan, TileSize tile, std::unique_ptr<DeviceSlab> slab, WeightClient* client,
              FetchQueue* fetches, Queue* queue);
  absl::StatusOr<uint64_t> Send(FetchKind kind, uint64_t step, uint32_t slot);

  const Pack& pack_;
  const SlabPlan plan_;
  const TileSize tile_;
  const std::unique_ptr<DeviceSlab> slab_;
  WeightClient* const client_;
  FetchQueue* const fetches_;
  SlotTable table_;
};

}  // namespace sluice
