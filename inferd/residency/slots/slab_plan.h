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

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
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

}  // namespace sluice::inferd
