// Divides a device's budget into slots: size classes, the number of slots of each, and the number of them
// that each layer may keep.
//
// A slot holds one expert as the pack stores it, so experts of equal stored size form a class, and no slot is
// larger than its experts. A class gets slots in proportion to its experts' bytes. Some of them belong to no
// layer: experts pass through these (prefetches, and misses of layers that may keep none), so that passing
// experts do not evict used ones. The rest is divided among the layers by the cache allocation.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "inferd/policy/slot_eviction.h"
#include "pack/pack.h"

namespace sluice::inferd {

struct SlotClass {
  uint64_t bytes = 0;           // a slot, a multiple of 64
  uint64_t offset = 0;          // its first slot in the slab
  uint32_t first = 0;           // index of its first slot
  uint32_t slots = 0;           // at least 2 unless it has fewer experts
  uint32_t passing = 0;         // slots of no layer, included in `slots`
  uint32_t experts = 0;         // all layers' experts
  std::vector<uint32_t> quota;  // by layer: slots that it may keep
};

struct SlabPlan {
  uint64_t bytes = 0;  // the slab
  uint32_t slots = 0;
  std::vector<SlotClass> classes;
  std::vector<uint16_t> class_of;      // by layer and expert
  std::vector<uint64_t> first_expert;  // by layer: index of its first expert in class_of
  bool room_ahead = true;              // true if slots remain for the next layer's experts during computing
};

// Divides `total` slots among layers with so many experts; the sum is at most `total`.
using SlotAllocation =
    std::function<std::vector<uint32_t>(absl::Span<const uint32_t> experts_by_layer, uint64_t total)>;

// Slot size of an expert; empty: as the pack stores it.
using SlotBytes = std::function<uint64_t(uint32_t layer, uint32_t expert)>;

// The minimum budget: two slots of every class, one to compute from and one to fill.
uint64_t SmallestDeviceBudget(const Pack& pack, const SlotBytes& slot_bytes = {});

// Number of slots in the minimum budget.
uint32_t SmallestSlotCount(const Pack& pack, const SlotBytes& slot_bytes = {});

// Maximum experts of a token, over the layers; 1 without any.
uint32_t LargestTopKOf(const Pack& pack);

// Checks that a slab of `budget` bytes (0: all experts) can serve the pack. INVALID_ARGUMENT with both
// numbers below SmallestDeviceBudget(), or for a pack without routed experts.
absl::Status CheckDeviceBudget(const Pack& pack, uint64_t budget, const SlotBytes& slot_bytes = {});

// `budget`: bytes for experts; 0: all of them. `passing`: number of passing slots over all classes, divided
// by the classes' experts; 0: as many as a token's experts. Errors of CheckDeviceBudget().
absl::StatusOr<SlabPlan> PlanSlab(const Pack& pack, uint64_t budget, const SlotAllocation& allocate,
                                  const SlotBytes& slot_bytes = {}, uint32_t passing = 0);

// Neurons per tile of a whole expert in flight, so that its first ones are computed while the others arrive.
//
// Thread safety: immutable.

class TileSize {
 public:
  static constexpr uint32_t kNeuronBlock = 64;  // tiles end at multiples of it (kernels/ops.h)
  static constexpr uint32_t kTilesOfAnExpert = 8;

  // `neurons`: tile size; 0: an eighth of the expert. INVALID_ARGUMENT unless it is a multiple of 64.
  static absl::StatusOr<TileSize> Create(uint32_t neurons) {
    if (neurons % kNeuronBlock != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tile_neurons is ", neurons, ", not a multiple of ", kNeuronBlock));
    }
    return TileSize(neurons);
  }

  // One tile an expert.
  static TileSize Whole() { return TileSize(kWhole); }

  // Tile size of an expert of `width` neurons; may be more than `width`.
  uint32_t Of(uint32_t width) const {
    if (neurons_ > 0 && neurons_ != kWhole) {
      return neurons_;
    }
    const uint32_t tiles = neurons_ == kWhole ? 1 : kTilesOfAnExpert;
    const uint32_t part = (width + tiles - 1) / tiles;
    return std::max(1u, (part + kNeuronBlock - 1) / kNeuronBlock) * kNeuronBlock;
  }

  // Landed neurons, from the number of landed tiles.
  uint32_t Landed(uint64_t tiles, uint32_t width) const {
    return static_cast<uint32_t>(std::min<uint64_t>(width, tiles * Of(width)));
  }

 private:
  static constexpr uint32_t kWhole = 1;  // no multiple of 64

  explicit TileSize(uint32_t neurons) : neurons_(neurons) {}
  uint32_t neurons_;
};

// Options common to all slot caches, of whole experts or of single neurons.
//
// Thread safety: plain values.

struct SlotCacheOptions {
  uint64_t budget = 0;  // bytes for experts; 0: all of them
  double link_gbps = 0;
  double link_latency_us = 0;
  // Neurons of a tile, a multiple of 64; 0: an eighth of the expert.
  uint32_t tile_neurons = 0;
  uint32_t max_in_flight = 32;  // demands
  SlotEvictionOptions eviction;
  SlotAllocation allocate;  // REQUIRED
  // By layer: its experts in the order of the first fill; empty: by number.
  std::vector<std::vector<uint32_t>> fill_order;
  Part lead = Part::kGate;  // the part returned by Lead()
  // Link time per byte of an expert; 0: measured.
  double load_seconds = 0;
  // Polls for tiles in flight without sleeping; false if only waiting advances the time.
  bool watch = false;
  // Timeout of a layer without any progress; the step fails.
  absl::Duration stall_limit = absl::Seconds(5);
};

}  // namespace sluice::inferd
