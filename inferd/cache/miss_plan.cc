// Misses are split as in importance-driven 5.4 and Fiddler.

#include "inferd/cache/miss_plan.h"

#include <algorithm>

namespace sluice::inferd {

MissPlan::MissPlan(uint32_t most) {
  missing_.reserve(most);
  resident_.reserve(most);
  late_.reserve(most);
  missing_tiles_.reserve(most);
  tile_demands_.reserve(most);
  verdicts_.reserve(most);
}

void MissPlan::Clear() {
  missing_.clear();
  resident_.clear();
  late_.clear();
}

absl::Span<const MissPlan::Verdict> MissPlan::SplitMisses(
    ExpertMiss miss, const MissTimes& times, Bytes bytes,
    absl::FunctionRef<const CpuCostTable&(uint32_t expert)> cpu) {
  verdicts_.clear();
  if (missing_.empty()) {
    return verdicts_;
  }
  SortMisses(absl::MakeSpan(missing_));
  const uint32_t first = missing_.front().expert;
  const MissCosts costs = {times.load_per_byte * bytes(first), times.backlog, times.cpu_queued};
  const CpuCostTable& table = cpu(first);
  size_t loaded = 0;
  if (miss == ExpertMiss::kCpu) {
    loaded = std::count_if(missing_.begin(), missing_.end(), [&](const ExpertDemand& demand) {
      return table.Seconds(demand.tokens) >= costs.load_seconds;
    });
  } else {
    loaded = BalanceMisses(missing_, costs, table).loaded;
  }
  for (size_t i = loaded; i < missing_.size(); ++i) {
    Add(missing_[i], Action::kToCpu);
  }
  return verdicts_;
}

// Collects the candidates for the link in its order: late experts as they were requested, then missing ones,
// most rows first. Each begins after earlier requests; missing experts of which nothing is kept overtake
// prefetches.
void MissPlan::CollectTiles(const MissTimes& times, const Tiles& tiles, Bytes bytes, CpuSeconds cpu_seconds) {
  SortMisses(absl::MakeSpan(missing_));
  std::sort(late_.begin(), late_.end(),
            [](const LateExpert& a, const LateExpert& b) { return a.late.request < b.late.request; });
  missing_tiles_.clear();
  tile_demands_.clear();
  const auto add = [&](const ExpertDemand& demand, uint32_t there, double wait) {
    const double share = static_cast<double>(tiles.neurons) / tiles.width;
    const double of_tile = bytes(demand.expert) * share;
    missing_tiles_.push_back({(tiles.width - there + tiles.neurons - 1) / tiles.neurons,
                              times.load_per_byte * of_tile, cpu_seconds(demand) * share,
                              times.device_per_byte * of_tile, wait});
    tile_demands_.push_back(demand);
  };
  double before = 0;
  for (const LateExpert& late : late_) {
    add(late.demand, std::min(late.late.landed, tiles.width - 1), late.late.wait - before);
    before = late.late.wait;
  }
  double wait = tiles.wait_from_begin ? tiles.wait - before : tiles.wait;
  for (const ExpertDemand& miss : missing_) {
    add(miss, 0, wait);
    wait = 0;
  }
}

absl::Span<const MissPlan::Verdict> MissPlan::SplitTiles(const MissTimes& times, const Tiles& tiles,
                                                         Bytes bytes, CpuSeconds cpu_seconds,
                                                         double device_bytes, const CpuCostTable& cpu) {
  verdicts_.clear();
  CollectTiles(times, tiles, bytes, cpu_seconds);
  SortMisses(absl::MakeSpan(resident_));
  const double device = times.device_per_byte * device_bytes;
  double landed = 0;  // device work for landed tiles of late experts
  for (size_t i = 0; i < late_.size(); ++i) {
    landed += device - missing_tiles_[i].tiles * missing_tiles_[i].device_seconds;
  }
  const double base = times.device_queued + std::max(landed, 0.0);
  const LayerShares shares = ShareLayer(missing_tiles_, resident_, times.cpu_queued, base, device, cpu);
  for (uint32_t i = 0; i < missing_tiles_.size(); ++i) {
    if (i >= shares.whole) {
      Add(tile_demands_[i], Action::kSplit, i == shares.whole ? shares.tiles : 0);
    } else if (i < late_.size()) {
      Add(tile_demands_[i], Action::kAwait);
    }
  }
  for (size_t i = resident_.size() - shares.resident_given; i < resident_.size(); ++i) {
    Add(resident_[i], Action::kResidentToCpu);
  }
  return verdicts_;
}

}  // namespace sluice::inferd
