#include "inferd/forward/layer_work.h"

#include <algorithm>
#include <cstddef>

#include "inferd/model/model_shapes.h"

namespace sluice::inferd {

LayerWork::LayerWork(const ModelConfig& config, const std::vector<LayerWeights>& weights,
                     const SparsityPolicy& sparsity, const WorkPlan& plan)
    : config_(config), weights_(weights), sparsity_(sparsity), plan_(plan), whole_(MaxExperts(config)) {
  ready_.reserve(whole_.size() + 1);
  on_cpu_.reserve(whole_.size());
  leads_.reserve(whole_.size());
  whole_layer_.reserve(whole_.size() + 1);
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
    if (tile.on_cpu) {
      continue;
    }
    ready_.push_back(RoutedWork(tile));
    if (tile.neuron_end == 0 || tile.neuron_end >= width) {
      whole_[tile.demand] = 1;
    }
  }
}

absl::Span<const ExpertWork> LayerWork::OnCpu(absl::Span<const ReadyTile> tiles) {
  on_cpu_.clear();
  for (const ReadyTile& tile : tiles) {
    if (tile.on_cpu) {
      on_cpu_.push_back(RoutedWork(tile));
    }
  }
  return on_cpu_;
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

absl::Span<const ExpertWork> LayerWork::ByExpert(uint32_t layer, const ExpertSource& experts) {
  const MoeConfig& moe = config_.layers[layer].moe;
  whole_layer_.clear();
  for (uint32_t expert = 0; expert < moe.experts; ++expert) {
    whole_layer_.push_back(WorkOf(layer, expert, experts.Whole(layer, expert)));
  }
  if (moe.shared_width > 0) {
    const DenseExpert& common = weights_[layer].common;
    whole_layer_.push_back({.up = common.up, .gate = common.gate, .down = common.down});
  }
  return whole_layer_;
}

absl::Span<const LeadWork> LayerWork::LeadsByExpert(uint32_t layer, absl::Span<const WeightView> leads) {
  leads_.clear();
  for (uint32_t expert = 0; expert < leads.size(); ++expert) {
    const ExpertWork work = WorkOf(layer, expert, {});
    const bool up = work.sparsity == SparsityOrder::kUp;
    leads_.push_back(
        {.lead = leads[expert], .bias = up ? work.up_bias : work.gate_bias, .threshold = work.threshold});
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
  ExpertWork work = WorkOf(layer_, plan_.demands()[tile.demand].expert, tile);
  work.slots = plan_.slots(tile.demand);
  work.rows = ScalesInputs(config_.layers[layer_].moe) ? work.slots : plan_.rows(tile.demand);
  return work;
}

// Returns a work without rows.
ExpertWork LayerWork::WorkOf(uint32_t layer, uint32_t expert, const ReadyTile& tile) const {
  const MoeConfig& moe = config_.layers[layer].moe;
  const LayerWeights& w = weights_[layer];
  const auto bias = [&](const WeightView& biases) {
    return moe.expert_bias ? biases.base + uint64_t{expert} * biases.stride : BufferRef{};
  };
  return {.up = tile.up,
          .gate = HasGates(moe.activation) ? tile.gate : WeightView{},
          .down = tile.down,
          .neuron_begin = tile.neuron_begin,
          .neuron_end = tile.neuron_end,
          .up_bias = bias(w.up_biases),
          .gate_bias = bias(w.gate_biases),
          .down_bias = bias(w.down_biases),
          .sparsity = sparsity_.order(),
          .threshold = sparsity_.threshold(layer, expert),
          .lead_values = tile.lead_values};
}

}  // namespace sluice::inferd
