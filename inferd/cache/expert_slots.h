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

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/cache/slot_table.h"
#include "inferd/cache/transfer_pacing.h"
#include "inferd/model/fetch_queue.h"
#include "inferd/model/weight_buffers.h"
#include "inferd/model/weight_client.h"
#include "kernels/backend.h"
#include "pack/pack.h"

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
  absl::StatusOr<uint32_t> Fetch(RequestClass request_class, uint64_t step, uint32_t layer, uint32_t expert,
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
  absl::StatusOr<uint64_t> Send(RequestClass request_class, uint64_t step, uint32_t slot);

  const Pack& pack_;
  const SlabPlan plan_;
  const TileSize tile_;
  const std::unique_ptr<DeviceSlab> slab_;
  WeightClient* const client_;
  FetchQueue* const fetches_;
  SlotTable table_;
};

// Forecasts the arrival of experts that travel into slots.
//
// Thread safety: thread-compatible; belongs to the engine thread.

class LinkForecast {
 public:
  // All pointers outlive this object.
  LinkForecast(const LinkPace* pace, const ExpertSlots* slots, const Pack* pack)
      : pace_(pace), slots_(slots), pack_(pack) {}

  // Seconds until the expert of a slot being filled has arrived, if no other transfer precedes it.
  double ToCome(uint32_t slot) const;
  // Sum of ToCome() over all slots for which `counts` is true.
  double ToCome(absl::FunctionRef<bool(const Slot&)> counts) const;
  // Maximum time of an expert.
  double LargestSeconds() const;

 private:
  const LinkPace* const pace_;
  const ExpertSlots* const slots_;
  const Pack* const pack_;
};

// Duration of consecutive layers in a step: a running mean, separate for decoding and prefill.
class LayerPace {
 public:
  // Begins a layer at `now`. This defines the time of the last layer, and of layers without experts between
  // them.
  void Begin(uint32_t layer, bool prefill, int64_t now_nanos);
  // Mean in seconds; 0: not known yet.
  double Seconds(bool prefill) const { return seconds_[prefill ? 1 : 0]; }

 private:
  double seconds_[2] = {};
  uint32_t layer_ = 0;
  int64_t began_ = 0;  // 0: no layer has begun
};

// Number of layers of `layer_seconds` (0: not known) that pass in `seconds`: at least 1.
uint32_t LayersIn(double seconds, double layer_seconds);

}  // namespace sluice::inferd
