// Splits missing experts between link and CPU (importance-driven 5.4): some are loaded, the others are
// computed by the CPU in weightd's DRAM.
//
// Thread safety: CpuCostTable is thread-compatible; everything else is a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/model/expert_source.h"

namespace sluice::inferd {

// CPU time of one expert, by rows. Linear between measured points and beyond the last two; constant below the
// first point.
class CpuCostTable {
 public:
  struct Point {
    uint32_t tokens = 0;
    double seconds = 0;
  };
  // INVALID_ARGUMENT unless there is a point, tokens ascend from at least 1 and seconds are finite and do not
  // decrease.
  static absl::StatusOr<CpuCostTable> Create(std::vector<Point> points);
  // The paper's table: `seconds` for each row.
  static CpuCostTable PerToken(double seconds);

  double Seconds(uint32_t tokens) const { return scale_ * Unscaled(tokens); }

  // Scales all points; 1 at the start.
  void SetScale(double scale) { scale_ = scale; }

 private:
  explicit CpuCostTable(std::vector<Point> points) : points_(std::move(points)) {}
  double Unscaled(uint32_t tokens) const;

  std::vector<Point> points_;
  double scale_ = 1;
};

struct MissCosts {
  double load_seconds = 0;     // one expert over the link
  double backlog_seconds = 0;  // earlier work of the link (C_0)
  double queued_seconds = 0;   // earlier work of the CPU
};

// The first `loaded` of a sorted list go over the link, the rest to the CPU; both are done after `seconds`.
struct MissSplit {
  uint32_t loaded = 0;
  double seconds = 0;
};

// Sorts by rows descending, then by expert: the order in which experts are loaded.
void SortMisses(absl::Span<ExpertDemand> misses);

// Time of a split: max(C_0 + k t_load, CPU's queue + sum of t_cpu over the rest); C_0 counts only if k > 0.
double SplitSeconds(absl::Span<const ExpertDemand> sorted, uint32_t loaded, const MissCosts& costs,
                    const CpuCostTable& cpu);

// The k with the least time, ties to the smaller one. As t_cpu does not decrease with rows, no other subset
// is better.
MissSplit BalanceMisses(absl::Span<const ExpertDemand> sorted, const MissCosts& costs,
                        const CpuCostTable& cpu);

// Splits a layer's experts by tiles between link, CPU and device (importance-driven 5.4, which splits by
// whole experts): the first tiles of a missing expert may come over the link while the CPU computes the
// remaining ones.
//
// Thread safety: pure functions.

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
