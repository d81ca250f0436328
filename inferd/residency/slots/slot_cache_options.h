// What every cache in slots is told, whether it holds whole experts or single neurons.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "inferd/policy/cache/slot_eviction.h"
#include "inferd/residency/slots/slab_plan.h"
#include "pack/pack.h"

namespace sluice {

struct SlotCacheOptions {
  uint64_t budget = 0;  // bytes for experts; 0: all of them
  double link_gbps = 0;
  double link_latency_us = 0;
  // Neurons of a tile, a multiple of 64; 0: an eighth of the expert.
  uint32_t tile_neurons = 0;
  uint32_t max_in_flight = 32;  // demands
  SlotEvictionOptions eviction;
  SlotAllocation allocate;  // REQUIRED
  // By layer: its experts in the order in which slots are filled at the start; empty: by number.
  std::vector<std::vector<uint32_t>> fill_order;
  Part lead = Part::kGate;  // what Lead() gives
  // Of a byte of an expert over the link; 0: as measured.
  double load_seconds = 0;
  // What travels is looked for without sleeping; not where only waiting moves the time.
  bool watch = false;
  // A layer without any progress for this long ends with an error.
  absl::Duration stall_limit = absl::Seconds(5);
};

}  // namespace sluice
