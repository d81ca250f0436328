// Slots that hold whole experts, and the transfers that fill them.
//
// A slot's bytes are weightd's from the request to its completion; landed tiles may be read earlier. A
// prefetch that became a demand (Join) is two transfers of the same bytes: the slot is not reused until both
// have ended. When weightd dies, slots being filled stay untouched until its process is known to be gone
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

namespace sluice::inferd {

class ExpertSlots {
 public:
  static constexpr uint32_t kNoSlot = SlotTable::kNoSlot;

  // Allocates the slab and imports it. All pointers outlive this object. Errors of PlanSlab, of the memory
  // and of the backend; INVALID_ARGUMENT for a tile that is no multiple of 64.
  static absl::StatusOr<std::unique_ptr<ExpertSlots>> Create(const SlotCacheOptions& options,
                                                             WeightClient* client, FetchQueue* fetches,
                                                             Backend* backend);

  // Begins a session with weightd; the previous one is over and its process gone.
  absl::Status Offer(double link_gbps, double link_latency_us);
  // The session is lost: targets of transfers must not be touched until Offer().
  void Lose() { table_.LoseFilling(); }

  SlotTable& table() { return table_; }
  const SlotTable& table() const { return table_; }
  const SlabPlan& plan() const { return plan_; }

  // Allocates a slot for the expert and requests its bytes. kNoSlot: nothing may be evicted now.
  // RESOURCE_EXHAUSTED: the ring is full; the slot is freed.
  absl::StatusOr<uint32_t> Fetch(FetchKind kind, uint64_t step, uint32_t layer, uint32_t expert,
                                 SlotTable::For purpose, SlotTable::Victim victim);
  // Turns the transfer into the slot into a demand: a second request for the same bytes overtakes. If it
  // cannot be sent now the transfer continues unchanged. Returns false if the transfer has failed; the slot
  // is free once no write is left.
  bool Join(uint64_t step, uint32_t slot);

  // Ends a transfer of an expert. Returns the slot that it filled or failed to fill; kNoSlot if it changes no
  // slot.
  uint32_t Handle(const FetchKey& key, const FetchCompletion& completion);

  // Landed neurons of the transfer into the slot. REQUIRES: a request was sent.
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

}  // namespace sluice::inferd
