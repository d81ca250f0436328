#include "inferd/policy/routing/miss_balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {

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

double CpuCostTable::Seconds(uint32_t tokens) const {
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

// The best split with some late ones given: these take the CPU until `cpu_begins`, the others are `late` with
// the link until `link_begins`.
LayerSplit BalanceRest(const LayerExperts& experts, double cpu_begins, double link_begins, uint32_t late,
                       const MissCosts& costs, double device_seconds, const CpuCostTable& cpu) {
  LayerSplit best{0, 0, 0, std::numeric_limits<double>::infinity()};
  double all_misses = 0;
  for (const ExpertDemand& miss : experts.misses) all_misses += cpu.Seconds(miss.tokens);
  for (uint32_t given = 0; given <= experts.resident.size(); ++given) {
    if (given > 0) cpu_begins += cpu.Seconds(experts.resident[experts.resident.size() - given].tokens);
    double computed = cpu_begins + all_misses;  // with the misses from k on
    for (uint32_t k = 0; k <= experts.misses.size(); ++k) {
      if (k > 0) computed -= cpu.Seconds(experts.misses[k - 1].tokens);
      const double link = k + late > 0 ? link_begins + k * costs.load_seconds : 0;
      const double on_device =
          costs.device_queued_seconds +
          static_cast<double>(experts.resident.size() - given + k + late) * device_seconds;
      const double seconds = std::max({computed, link, on_device});
      if (seconds < best.seconds) best = {k, given, 0, seconds};
    }
    if (cpu_begins >= best.seconds) break;  // more of them only add to the CPU
  }
  return best;
}

}  // namespace

LayerSplit BalanceLayer(const LayerExperts& experts, const MissCosts& costs, double device_seconds,
                        const CpuCostTable& cpu) {
  double cpu_begins = costs.queued_seconds;
  double link_begins = costs.backlog_seconds;
  for (const double seconds : experts.late_seconds) link_begins += seconds;
  LayerSplit best;
  for (uint32_t given = 0; given <= experts.late.size(); ++given) {
    const size_t place = experts.late.size() - given;
    if (given > 0) {
      cpu_begins += cpu.Seconds(experts.late[place].tokens);
      link_begins -= experts.late_seconds[place];
    }
    LayerSplit split = BalanceRest(experts, cpu_begins, link_begins, static_cast<uint32_t>(place), costs,
                                   device_seconds, cpu);
    split.late_given = given;
    if (given == 0 || split.seconds < best.seconds) best = split;
  }
  return best;
}

MissSplit PaperBalance(absl::Span<const ExpertDemand> sorted, const MissCosts& costs,
                       const CpuCostTable& cpu) {
  double loading = 0;
  double computing = 0;
  uint32_t left = 0;
  uint32_t right = static_cast<uint32_t>(sorted.size());  // one past the printed r
  while (left < right) {
    if (loading <= computing) {
      loading += costs.load_seconds;
      ++left;
    } else {
      computing += cpu.Seconds(sorted[--right].tokens);
    }
  }
  return {left, SplitSeconds(sorted, left, costs, cpu)};
}

}  // namespace sluice
