// Splits missing experts between link and CPU (importance-driven 5.4): some are loaded, the others are
// computed by the CPU in weightd's DRAM.
//
// Thread safety: CpuCostTable is thread-compatible; everything else is a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inferd/experts/residency_view.h"

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

}  // namespace sluice::inferd
