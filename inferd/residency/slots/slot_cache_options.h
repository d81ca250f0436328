// Options common to all slot caches, of whole experts or of single neurons.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "inferd/policy/cache/slot_eviction.h"
#include "inferd/residency/slots/slab_plan.h"
#include "pack/pack.h"

namespace sluice::inferd {

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
