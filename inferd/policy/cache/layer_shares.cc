#include "inferd/policy/cache/layer_shares.h"

#include <algorithm>
#include <limits>

namespace sluice::inferd {
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
