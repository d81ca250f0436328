// Splits a layer's experts by tiles between link, CPU and device (importance-driven 5.4, which splits by
// whole experts): the first tiles of a missing expert may come over the link while the CPU computes the
// remaining ones.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "inferd/policy/routing/miss_balance.h"

namespace sluice::inferd {

// Missing part of an expert: `tiles` tiles, at least one. Each tile takes so many seconds of the link, the
// CPU and the device.
struct MissingTiles {
  uint32_t tiles = 0;
  double link_seconds = 0;
  double cpu_seconds = 0;
  double device_seconds = 0;
  double wait_seconds = 0;  // link time for other bytes before its first tile
};

// The link brings the first `whole` missing experts completely and `tiles` tiles of the next one. The CPU
// computes the rest, and the last `resident_given` of the resident experts.
struct LayerShares {
  uint32_t resident_given = 0;
  uint32_t whole = 0;
  uint32_t tiles = 0;
  double seconds = 0;
};

// The split with the least max(CPU, link and the last tile's computing, device). `missing` is in the order of
// the link, `resident` as sorted by SortMisses(). The CPU has `queued_seconds` of earlier work; the device
// has `base_seconds`, and `device_seconds` for each resident expert. Ties: fewer resident experts to the CPU,
// then fewer tiles over the link.
LayerShares ShareLayer(absl::Span<const MissingTiles> missing, absl::Span<const ExpertDemand> resident,
                       double queued_seconds, double base_seconds, double device_seconds,
                       const CpuCostTable& cpu);

}  // namespace sluice::inferd
