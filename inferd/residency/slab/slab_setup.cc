// What happens once, or once per session with weightd: the slab's memory, its offer, the first fill.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/status.h"
#include "inferd/residency/slab/slab_memory.h"
#include "inferd/residency/slab/slab_residency.h"

namespace sluice {
namespace {

constexpr uint32_t kNeuronBlock = 64;
constexpr uint32_t kFillWindow = 8;  // transfers in flight of the first fill

}  // namespace

SlabResidency::SlabResidency(const SlabResidencyOptions& options, SlabPlan plan, WeightClient* client,
                             FetchQueue* fetches, const SegmentBuffers* segments, Backend* backend,
                             VirtualClock* clock)
    : options_(options),
      pack_(client->pack()),
      plan_(std::move(plan)),
      client_(client),
      fetches_(fetches),
      segments_(segments),
      backend_(backend),
      clock_(clock),
      queue_(&backend->queue()),
      table_(plan_),
      eviction_(options.eviction,
                [this] {
                  std::vector<uint32_t> experts;
                  for (uint32_t layer = 0; layer < pack_.config().layers.size(); ++layer) {
                    experts.push_back(pack_.expert_count(layer));
                  }
                  return experts;
                }()),
      window_(options.max_in_flight),
      stall_(options.stall_limit),
      counters_(pack_.config().layers.size()) {
  uint32_t most = 0;
  for (uint32_t layer = 0; layer < pack_.config().layers.size(); ++layer) {
    most = std::max(most, pack_.expert_count(layer));
  }
  entries_.resize(most);
  demand_of_.assign(most, 0);
  chosen_.reserve(most);
  misses_.reserve(most);
  resident_.reserve(most);
  late_.reserve(most);
  missing_.reserve(most);
  missing_demands_.reserve(most);
  scores_.reserve(most);
  ready_.reserve(most);
  failed_.reserve(most);
}

SlabResidency::~SlabResidency() {
  if (buffer_ != kNoBuffer) {
    backend_->Free(buffer_).IgnoreError();  // the id is ours
  }
}

absl::StatusOr<std::unique_ptr<SlabResidency>> SlabResidency::Create(const SlabResidencyOptions& options,
                                                                     WeightClient* client,
                                                                     FetchQueue* fetches,
                                                                     const SegmentBuffers* segments,
                                                                     Backend* backend, VirtualClock* clock) {
  if (options.tile_neurons % kNeuronBlock != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tile_neurons is ", options.tile_neurons, ", not a multiple of ", kNeuronBlock));
  }
  ASSIGN_OR_RETURN(SlabPlan plan, PlanSlab(client->pack(), options.budget, options.allocate));
  std::unique_ptr<SlabResidency> residency(
      new SlabResidency(options, std::move(plan), client, fetches, segments, backend, clock));
  RETURN_IF_ERROR(residency->AllocateSlab());
  return residency;
}

absl::Status SlabResidency::AllocateSlab() {
  ASSIGN_OR_RETURN(memory_, AllocateSlabMemory(plan_.bytes));
  ImportSpec spec;
  spec.base = memory_.map.data();
  spec.bytes = memory_.map.bytes();
  ASSIGN_OR_RETURN(buffer_, backend_->Import(spec));
  return absl::OkStatus();
}

absl::Status SlabResidency::Attach() {
  SlabOffer offer;
  offer.fd = memory_.fd.get();
  offer.bytes = memory_.map.bytes();
  offer.link_gbps = options_.link_gbps;
  offer.link_latency_us = options_.link_latency_us;
  ASSIGN_OR_RETURN(slab_, client_->OfferSlab(offer));
  table_.FreeLost();
  if (filled_) {
    return absl::OkStatus();  // what was in slots before weightd was lost is still there
  }
  RETURN_IF_ERROR(Fill());
  filled_ = true;
  return MeasureCpu();
}

// Slots fill by usage before anybody waits for them. What cannot be had now is left to the first demand.
absl::Status SlabResidency::Fill() {
  stall_.Restart(absl::Now());
  for (uint32_t layer = 0; layer < pack_.config().layers.size(); ++layer) {
    RETURN_IF_ERROR(FillLayer(layer));
  }
  return DrainFill(0);
}

absl::Status SlabResidency::FillLayer(uint32_t layer) {
  std::vector<uint32_t> order;
  if (layer < options_.fill_order.size()) {
    order = options_.fill_order[layer];
  }
  for (uint32_t expert = 0; expert < pack_.expert_count(layer); ++expert) {
    order.push_back(expert);  // those that the profile knows nothing of
  }
  for (const uint32_t expert : order) {
    const uint16_t size_class = table_.class_of(layer, expert);
    if (IsComing(layer, expert) || table_.held(layer, size_class) >= table_.quota(layer, size_class)) {
      continue;
    }
    RETURN_IF_ERROR(DrainFill(kFillWindow - 1));
    RETURN_IF_ERROR(FillSlot(layer, expert));
  }
  return absl::OkStatus();
}

absl::Status SlabResidency::FillSlot(uint32_t layer, uint32_t expert) {
  const uint32_t slot = table_.TakeSlot(layer, expert, SlotTable::For::kDemand,
                                        [](uint32_t, absl::Span<const uint32_t>) { return ~0u; });
  if (slot == SlotTable::kNoSlot) {
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> id = Transfer(FetchKind::kDemand, layer, expert, slot);
  while (absl::IsResourceExhausted(id.status()) && table_.filling() > 1) {  // the ring is full
    RETURN_IF_ERROR(DrainFill(table_.filling() - 1));
    id = Transfer(FetchKind::kDemand, layer, expert, slot);
  }
  if (!id.ok()) {
    table_.SetFree(slot);
    return id.status();
  }
  table_.slot(slot).request = *id;
  if (clock_ != nullptr) {
    stall_.Restart(absl::Now());  // in virtual time the bytes came while they were asked for
  }
  return absl::OkStatus();
}

// Waits until at most `most` transfers are in flight.
absl::Status SlabResidency::DrainFill(uint32_t most) {
  uint32_t before = table_.filling();
  while (table_.filling() > most) {
    Poll();
    if (table_.filling() < before) {
      stall_.Restart(absl::Now());
      before = table_.filling();
      continue;
    }
    if (stall_.Exceeded(absl::Now())) {
      return absl::ResourceExhaustedError(absl::StrCat("filling the device's memory: ", table_.filling(),
                                                       " experts did not come for ",
                                                       absl::FormatDuration(options_.stall_limit)));
    }
    RETURN_IF_ERROR(fetches_->Wait(stall_.EndOfWait(absl::Now())));
  }
  return absl::OkStatus();
}

}  // namespace sluice
