#include "inferd/forward/layer_work.h"

#include <algorithm>
#include <cstddef>

#include "inferd/model/model_shapes.h"

namespace sluice {

LayerWork::LayerWork(const ModelConfig& config, const std::vector<LayerWeights>& weights,
                     const SparsityPolicy& sparsity, const WorkPlan& plan)
    : config_(config), weights_(weights), sparsity_(sparsity), plan_(plan), whole_(MostExperts(config)) {
  ready_.reserve(whole_.size() + 1);
  leads_.reserve(whole_.size());
}

void LayerWork::Begin(uint32_t layer) {
  layer_ = layer;
  ready_.clear();
  std::fill(whole_.begin(), whole_.end(), 0);
  if (HasCommonExpert(config_.layers[layer].moe)) {
    ready_.push_back(CommonWork());
  }
}

void LayerWork::Add(absl::Span<const ReadyTile> tiles) {
  const uint32_t width = config_.layers[layer_].moe.expert_width;
  for (const ReadyTile& tile : tiles) {
    ready_.push_back(RoutedWork(tile));
    if (tile.neuron_end == 0 || tile.neuron_end >= width) {
      whole_[tile.demand] = 1;
    }
  }
}

absl::Span<const LeadWork> LayerWork::LeadsOf(absl::Span<const ReadyTile> tiles) {
  leads_.clear();
  for (const ReadyTile& tile : tiles) {
    const ExpertWork work = RoutedWork(tile);
    const bool up = work.sparsity == SparsityOrder::kUp;
    leads_.push_back({.lead = up ? work.up : work.gate,
                      .rows = work.rows,
                      .bias = up ? work.up_bias : work.gate_bias,
                      .threshold = work.threshold,
                      .values = tile.lead_values,
                      .active = tile.lead_active});
  }
  return leads_;
}

uint32_t LayerWork::missing() const {
  const auto end = whole_.begin() + static_cast<std::ptrdiff_t>(plan_.demands().size());
  return static_cast<uint32_t>(std::count(whole_.begin(), end, 0));
}

ExpertWork LayerWork::CommonWork() const {
  const DenseExpert& expert = weights_[layer_].common;
  return {.up = expert.up,
          .gate = expert.gate,
          .down = expert.down,
          .rows = ScalesInputs(config_.layers[layer_].moe) ? plan_.common_slots() : plan_.common_rows(),
          .slots = plan_.common_slots()};
}

ExpertWork LayerWork::RoutedWork(const ReadyTile& tile) const {
  const MoeConfig& moe = config_.layers[layer_].moe;
  const LayerWeights& w = weights_[layer_];
  const uint32_t expert = plan_.demands()[tile.demand].expert;
  const auto bias = [&](const WeightView& biases) {
    return moe.expert_bias ? biases.base + uint64_t{expert} * biases.stride : BufferRef{};
  };
  return {.up = tile.up,
          .gate = HasGates(moe.activation) ? tile.gate : WeightView{},
          .down = tile.down,
          .rows = ScalesInputs(moe) ? plan_.slots(tile.demand) : plan_.rows(tile.demand),
          .slots = plan_.slots(tile.demand),
          .neuron_begin = tile.neuron_begin,
          .neuron_end = tile.neuron_end,
          .up_bias = bias(w.up_biases),
          .gate_bias = bias(w.gate_biases),
          .down_bias = bias(w.down_biases),
          .sparsity = sparsity_.order(),
          .threshold = sparsity_.threshold(layer_, expert),
          .lead_values = tile.lead_values};
}

}  // namespace sluice
