// A layer's experts shared out by tiles (importance-driven 5.4, which gives whole experts): what is missing
// of one expert may come over the link in part, the CPU computing the tiles after those.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "inferd/policy/routing/miss_balance.h"

namespace sluice {

// What is missing of an expert: `tiles` tiles, at least one, each so many seconds of the link, the CPU and
// the device.
struct MissingTiles {
  uint32_t tiles = 0;
  double link_seconds = 0;
  double cpu_seconds = 0;
  double device_seconds = 0;
  double wait_seconds = 0;  // of the link, with others' bytes, before its first tile
};

// The link brings the first `whole` of the missing ones and `tiles` tiles of the one after them; the rest is
// the CPU's, as are the last `resident_given` of the resident ones.
struct LayerShares {
  uint32_t resident_given = 0;
  uint32_t whole = 0;
  uint32_t tiles = 0;
  double seconds = 0;
};

// The shares of the least max(CPU, link and the last tile's computing, device). `missing` in the order in
// which the link would bring it, `resident` as SortMisses() leaves it. The CPU has `queued_seconds` to do
// before; the device `base_seconds`, and `device_seconds` for each resident expert. Ties: fewer resident ones
// to the CPU, then fewer tiles over the link.
LayerShares ShareLayer(absl::Span<const MissingTiles> missing, absl::Span<const ExpertDemand> resident,
                       double queued_seconds, double base_seconds, double device_seconds,
                       const CpuCostTable& cpu);

}  // namespace sluice
