// How a device's budget becomes slots: size classes, how many slots each has, and how many of them each layer
// may keep.
//
// A slot holds one expert as the pack stores it, so experts of equal stored size form a class, and no slot is
// larger than what it is for. A class gets slots in proportion to its experts' bytes. Some of them belong to
// no layer: experts pass through these (prefetches, and misses of layers that may keep none), so that what
// only passes does not push out what is used. The rest is divided among the layers by the cache allocation.
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

namespace sluice {

struct SlotClass {
  uint64_t bytes = 0;           // of a slot, a multiple of 64
  uint64_t offset = 0;          // of its first slot in the slab
  uint32_t first = 0;           // number of its first slot
  uint32_t slots = 0;           // at least 2 unless it has fewer experts
  uint32_t passing = 0;         // of these: of no layer
  uint32_t experts = 0;         // of all layers
  std::vector<uint32_t> quota;  // by layer: slots that it may keep
};

struct SlabPlan {
  uint64_t bytes = 0;  // of the slab
  uint32_t slots = 0;
  std::vector<SlotClass> classes;
  std::vector<uint16_t> class_of;      // by layer and expert
  std::vector<uint64_t> first_expert;  // by layer: place of its first expert in class_of
  bool room_ahead = true;  // whether experts of the next layer find slots beside those being computed
};

// Divides `total` slots among layers with so many experts; the sum is at most `total`.
using SlotAllocation =
    std::function<std::vector<uint32_t>(absl::Span<const uint32_t> experts_by_layer, uint64_t total)>;

// Bytes that the slot of an expert takes; empty: as the pack stores it.
using SlotBytes = std::function<uint64_t(uint32_t layer, uint32_t expert)>;

// The least budget: two slots of every class, one to compute from and one to fill.
uint64_t SmallestDeviceBudget(const Pack& pack, const SlotBytes& slot_bytes = {});

// How many slots these are.
uint32_t SmallestSlotCount(const Pack& pack, const SlotBytes& slot_bytes = {});

// Most experts of a token, over the layers; 1 without any.
uint32_t LargestTopKOf(const Pack& pack);

// Whether a slab of `budget` bytes (0: all experts) can serve the pack. INVALID_ARGUMENT with both numbers
// below SmallestDeviceBudget(), or for a pack without routed experts.
absl::Status CheckDeviceBudget(const Pack& pack, uint64_t budget, const SlotBytes& slot_bytes = {});

// `budget`: bytes for experts; 0: all of them. `passing`: slots that experts only pass through, all classes
// together, each of which gets its experts' share of them; 0: as many as a token's experts. Errors of
// CheckDeviceBudget().
absl::StatusOr<SlabPlan> PlanSlab(const Pack& pack, uint64_t budget, const SlotAllocation& allocate,
                                  const SlotBytes& slot_bytes = {}, uint32_t passing = 0);

}  // namespace sluice
