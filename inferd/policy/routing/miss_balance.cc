#include "inferd/policy/routing/miss_balance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::inferd {

absl::StatusOr<CpuCostTable> CpuCostTable::Create(std::vector<Point> points) {
  if (points.empty()) return absl::InvalidArgumentError("a table of CPU costs needs a point");
  for (size_t i = 0; i < points.size(); ++i) {
    const uint32_t least = i == 0 ? 1 : points[i - 1].tokens + 1;
    const double floor = i == 0 ? 0 : points[i - 1].seconds;
    if (points[i].tokens < least || !(points[i].seconds >= floor) || !std::isfinite(points[i].seconds)) {
      return absl::InvalidArgumentError(absl::StrCat("CPU cost ", i, ": ", points[i].seconds, " s for ",
                                                     points[i].tokens,
                                                     " tokens; tokens must ascend and times not fall"));
    }
  }
  return CpuCostTable(std::move(points));
}

CpuCostTable CpuCostTable::PerToken(double seconds) {
  const double cost = std::max(seconds, 0.0);
  return CpuCostTable({{1, cost}, {2, 2 * cost}});
}

double CpuCostTable::Unscaled(uint32_t tokens) const {
  if (tokens == 0) return 0;
  const auto above = std::find_if(points_.begin(), points_.end(),
                                  [&](const Point& point) { return point.tokens >= tokens; });
  if (above == points_.begin() || points_.size() == 1) return points_.front().seconds;
  const size_t right = std::min(static_cast<size_t>(above - points_.begin()), points_.size() - 1);
  const Point& a = points_[right - 1];
  const Point& b = points_[right];
  return a.seconds + (b.seconds - a.seconds) * (double(tokens) - a.tokens) / (double(b.tokens) - a.tokens);
}

void SortMisses(absl::Span<ExpertDemand> misses) {
  std::sort(misses.begin(), misses.end(), [](const ExpertDemand& a, const ExpertDemand& b) {
    return a.tokens != b.tokens ? a.tokens > b.tokens : a.expert < b.expert;
  });
}

double SplitSeconds(absl::Span<const ExpertDemand> sorted, uint32_t loaded, const MissCosts& costs,
                    const CpuCostTable& cpu) {
  double computed = costs.queued_seconds;
  for (const ExpertDemand& miss : sorted.subspan(loaded)) computed += cpu.Seconds(miss.tokens);
  return loaded == 0 ? computed : std::max(costs.backlog_seconds + loaded * costs.load_seconds, computed);
}

MissSplit BalanceMisses(absl::Span<const ExpertDemand> sorted, const MissCosts& costs,
                        const CpuCostTable& cpu) {
  double computed = costs.queued_seconds;  // with the experts from k on
  for (const ExpertDemand& miss : sorted) computed += cpu.Seconds(miss.tokens);
  MissSplit best{0, computed};
  for (uint32_t k = 1; k <= sorted.size(); ++k) {
    computed -= cpu.Seconds(sorted[k - 1].tokens);
    const double seconds = std::max(costs.backlog_seconds + k * costs.load_seconds, computed);
    if (seconds < best.seconds) best = {k, seconds};
  }
  return best;
}

}  // namespace sluice::inferd
