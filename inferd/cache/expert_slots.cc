#include "inferd/cache/expert_slots.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status.h"

namespace sluice::inferd {

ExpertSlots::ExpertSlots(SlabPlan plan, TileSize tile, std::unique_ptr<DeviceSlab> slab, WeightClient* client,
                         FetchQueue* fetches, Queue* queue)
    : pack_(client->pack()),
      plan_(std::move(plan)),
      tile_(tile),
      slab_(std::move(slab)),
      client_(client),
      fetches_(fetches),
      table_(plan_, queue) {}

absl::StatusOr<std::unique_ptr<ExpertSlots>> ExpertSlots::Create(const SlotCacheOptions& options,
                                                                 WeightClient* client, FetchQueue* fetches,
                                                                 Backend* backend) {
  ASSIGN_OR_RETURN(TileSize tile, TileSize::Create(options.tile_neurons));
  if (client->pack().by_outputs()) {
    tile = TileSize::Whole();
  }
  ASSIGN_OR_RETURN(SlabPlan plan, PlanSlab(client->pack(), options.budget, options.allocate));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceSlab> slab, DeviceSlab::Create(plan.bytes, backend));
  return std::unique_ptr<ExpertSlots>(
      new ExpertSlots(std::move(plan), tile, std::move(slab), client, fetches, &backend->queue()));
}

absl::Status ExpertSlots::Offer(double link_gbps, double link_latency_us) {
  RETURN_IF_ERROR(slab_->Offer(link_gbps, link_latency_us, client_));
  table_.FreeLost();
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ExpertSlots::Fetch(RequestClass request_class, uint64_t step, uint32_t layer,
                                            uint32_t expert, SlotTable::For purpose,
                                            SlotTable::Victim victim) {
  const uint32_t slot = table_.TakeSlot(layer, expert, purpose, victim);
  if (slot == kNoSlot) {
    return kNoSlot;
  }
  const absl::StatusOr<uint64_t> id = Send(request_class, step, slot);
  if (!id.ok()) {
    table_.SetFree(slot);
    return id.status();
  }
  table_.slot(slot).request = *id;
  return slot;
}

bool ExpertSlots::Join(uint64_t step, uint32_t index) {
  Slot& slot = table_.slot(index);
  if (slot.request == 0) {
    return false;
  }
  if (const absl::StatusOr<uint64_t> id = Send(RequestClass::kDemand, step, index); id.ok()) {
    slot.joined = slot.request;
    slot.request = *id;
  }
  return true;
}

// Every part at its offset in the expert's extents, which lie in the slot as they do in the pack.
absl::StatusOr<uint64_t> ExpertSlots::Send(RequestClass request_class, uint64_t step, uint32_t slot) {
  const Slot& place = table_.slot(slot);
  TransferTarget target;
  target.slab = slab_->number();
  target.tile_neurons = TileOf(place.layer);
  const uint64_t start = pack_.extents()[pack_.expert_extents(place.layer, place.expert).first].offset;
  const PartSet parts = StoredParts(pack_.expert_format(place.layer, place.expert));
  for (int part = 0; part < kPartCount; ++part) {
    if ((parts & PartBit(static_cast<Part>(part))) == 0) {
      continue;
    }
    const PartView view = pack_.part(place.layer, place.expert, static_cast<Part>(part));
    target.base[part] = place.offset + pack_.extents()[view.extent].offset - start + view.base;
    target.stride[part] = view.stride;
  }
  return fetches_->FetchExpert(request_class, step, place.layer, place.expert, parts, &target);
}

uint32_t ExpertSlots::Handle(const FetchKey& key, const FetchCompletion& completion) {
  const uint32_t index = table_.Find(key.layer, key.expert);
  if (index == kNoSlot) {
    return kNoSlot;
  }
  Slot& slot = table_.slot(index);
  if (slot.joined == completion.id) {
    slot.joined = 0;
    if (slot.state == SlotState::kFilling && slot.request == 0) {
      table_.SetFree(index);
    }
    return kNoSlot;
  }
  if (slot.state != SlotState::kFilling || slot.request != completion.id) {
    return kNoSlot;
  }
  if (completion.code == absl::StatusCode::kOk) {
    table_.SetReady(index);
  } else if (slot.joined == 0) {
    table_.SetFree(index);
  } else {
    slot.request = 0;  // the prefetch that it joined may still be writing
  }
  return index;
}

uint32_t ExpertSlots::Landed(uint32_t index) const {
  const Slot& slot = table_.slot(index);
  return tile_.Landed(client_->LandedTiles(slot.request), WidthOf(slot.layer));
}

WeightView ExpertSlots::PartOf(uint32_t index, Part part) const {
  const Slot& slot = table_.slot(index);
  const PartView view = pack_.part(slot.layer, slot.expert, part);
  const uint32_t first = pack_.expert_extents(slot.layer, slot.expert).first;
  const uint64_t offset =
      slot.offset + pack_.extents()[view.extent].offset - pack_.extents()[first].offset + view.base;
  return WeightView{view.encoding, {slab_->buffer(), offset}, view.stride, view.rows, view.cols, {}};
}

namespace {

constexpr double kLayerShare = 0.125;  // weight of a layer's time in the running mean
constexpr double kRounding = 1e-9;     // tolerance of a quotient: a whole number of layers is not one more
constexpr double kMaxForecastLayers = 1e6;

}  // namespace

double LinkForecast::ToCome(uint32_t index) const {
  const Slot& slot = slots_->table().slot(index);
  return pace_->SecondsPerByte() * static_cast<double>(pack_->expert_bytes(slot.layer, slot.expert)) *
         (1 - static_cast<double>(slots_->Landed(index)) / slots_->WidthOf(slot.layer));
}

double LinkForecast::ToCome(absl::FunctionRef<bool(const Slot&)> counts) const {
  const SlotTable& table = slots_->table();
  double seconds = 0;
  uint32_t left = table.filling();
  for (uint32_t i = 0; i < table.size() && left > 0; ++i) {
    const Slot& slot = table.slot(i);
    left -= slot.state == SlotState::kFilling ? 1 : 0;
    if (slot.state == SlotState::kFilling && slot.request != 0 && counts(slot)) {
      seconds += ToCome(i);
    }
  }
  return seconds;
}

double LinkForecast::LargestSeconds() const {
  return pace_->SecondsPerByte() * static_cast<double>(pack_->largest_expert_bytes());
}

void LayerPace::Begin(uint32_t layer, bool prefill, int64_t now_nanos) {
  if (layer > layer_ && began_ > 0) {
    const double took = static_cast<double>(now_nanos - began_) * 1e-9 / (layer - layer_);
    double& mean = seconds_[prefill ? 1 : 0];
    mean = mean == 0 ? took : mean + (took - mean) * kLayerShare;
  }
  layer_ = layer;
  began_ = now_nanos;
}

uint32_t LayersIn(double seconds, double layer_seconds) {
  return layer_seconds > 0 ? static_cast<uint32_t>(std::clamp(std::ceil(seconds / layer_seconds - kRounding),
                                                              1.0, kMaxForecastLayers))
                           : 1;
}

}  // namespace sluice::inferd
