#include "inferd/residency/slab_policies.h"

#include <algorithm>
#include <utility>

#include "common/profile/profile.h"
#include "inferd/policy/cache_allocation.h"

namespace sluice {
namespace {

std::vector<uint32_t> KeepNothing(absl::Span<const uint32_t> experts, uint64_t) {
  return std::vector<uint32_t>(experts.size(), 0);
}

// Slots of the experts used most, whatever their layer.
SlotAllocation ByUsage(const UsageProfile& usage) {
  return [usage](absl::Span<const uint32_t> experts, uint64_t total) {
    std::vector<std::pair<uint64_t, uint32_t>> ranking;  // uses, layer
    for (uint32_t layer = 0; layer < experts.size(); ++layer) {
      std::vector<uint64_t> uses = usage.experts[layer];
      std::sort(uses.begin(), uses.end(), std::greater<>());
      for (uint32_t i = 0; i < experts[layer] && i < uses.size(); ++i) {
        ranking.emplace_back(uses[i], layer);
      }
    }
    std::stable_sort(ranking.begin(), ranking.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<uint32_t> quota(experts.size(), 0);
    for (size_t i = 0; i < std::min<uint64_t>(total, ranking.size()); ++i) {
      quota[ranking[i].second]++;
    }
    return quota;
  };
}

SlotAllocation Dp(const Pack& pack) {
  std::vector<LayerDemand> model;
  for (const LayerConfig& layer : pack.config().layers) {
    model.push_back({layer.moe.experts, layer.moe.top_k, 0, 0});
  }
  return [model](absl::Span<const uint32_t> experts, uint64_t total) {
    std::vector<LayerDemand> layers = model;
    for (size_t i = 0; i < layers.size(); ++i) {
      layers[i].experts = experts[i];
      layers[i].top_k = std::min(layers[i].top_k, experts[i]);
    }
    return AllocateDp(layers, total);
  };
}

SlotAllocation AllocationOf(const Policies& policies, const Pack& pack, const UsageProfile* usage) {
  if (policies.cache == CacheKind::kNone || policies.cache == CacheKind::kLayer) {
    return KeepNothing;
  }
  if (policies.cache == CacheKind::kStatic && usage != nullptr) {
    return ByUsage(*usage);
  }
  switch (policies.allocation) {
    case CacheAllocation::kLayers:
      return AllocateLayers;
    case CacheAllocation::kDp:
    case CacheAllocation::kDpMeasured:
      return Dp(pack);
    case CacheAllocation::kUniform:
      break;
  }
  return AllocateUniform;
}

}  // namespace

SlabResidencyOptions SlabOptionsOf(const Policies& policies, const Pack& pack) {
  SlabResidencyOptions options;
  const absl::StatusOr<UsageProfile> usage =
      ReadUsage(ProfileFolder(pack.dir()), pack.config(), pack.manifest().provenance.source_digest);
  for (uint32_t layer = 0; usage.ok() && layer < pack.config().layers.size(); ++layer) {
    options.fill_order.push_back(usage->Ranked(layer));
  }
  options.allocate = AllocationOf(policies, pack, usage.ok() ? &*usage : nullptr);
  options.whole_layers = policies.cache == CacheKind::kLayer;
  options.fixed = policies.cache == CacheKind::kStatic;
  options.miss = policies.miss;
  options.eviction = {policies.eviction, policies.score_window, policies.lfru_half_life};
  return options;
}

}  // namespace sluice
