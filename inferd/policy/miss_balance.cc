#include "inferd/policy/miss_balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

namespace {

// The best split of the missing experts, given the earlier work of CPU and device.
LayerShares ShareMissing(absl::Span<const MissingTiles> missing, double computed, double on_device) {
  for (const MissingTiles& expert : missing) computed += expert.tiles * expert.cpu_seconds;
  LayerShares best{0, 0, 0, std::max(computed, on_device)};
  double link = 0;
  for (uint32_t i = 0; i < missing.size(); ++i) {
    const MissingTiles& expert = missing[i];
    link += expert.wait_seconds;
    for (uint32_t tile = 1; tile <= expert.tiles; ++tile) {
      link += expert.link_seconds;
      computed -= expert.cpu_seconds;
      on_device += expert.device_seconds;
      const double seconds = std::max({computed, link + expert.device_seconds, on_device});
      if (seconds < best.seconds) {
        const bool all = tile == expert.tiles;
        best = {0, i + (all ? 1 : 0), all ? 0 : tile, seconds};
      }
    }
  }
  return best;
}

}  // namespace

LayerShares ShareLayer(absl::Span<const MissingTiles> missing, absl::Span<const ExpertDemand> resident,
                       double queued_seconds, double base_seconds, double device_seconds,
                       const CpuCostTable& cpu) {
  LayerShares best{0, 0, 0, std::numeric_limits<double>::infinity()};
  double computed = queued_seconds;
  for (uint32_t given = 0; given <= resident.size(); ++given) {
    if (given > 0) computed += cpu.Seconds(resident[resident.size() - given].tokens);
    if (computed >= best.seconds) break;  // more tiles only add CPU work
    LayerShares shares = ShareMissing(
        missing, computed, base_seconds + static_cast<double>(resident.size() - given) * device_seconds);
    shares.resident_given = given;
    if (shares.seconds < best.seconds) best = shares;
  }
  return best;
}

}  // namespace sluice::inferd
