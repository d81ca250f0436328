#include "inferd/calibrate/windows/calibration_work.h"

namespace sluice::inferd {
namespace {

constexpr double kAttentionMatrices = 4;  // matrices of hidden x hidden
constexpr double kExpertMatrices = 3;
constexpr double kPredictorUnits = 512;
constexpr double kTrainingPasses = 3;  // forward, and backward for weights and inputs

}  // namespace

PositionWork::PositionWork(const ModelConfig& config)
    : config_(config),
      layers_(config.layers.size() + 1),
      head_(static_cast<double>(config.vocab) * config.hidden) {
  for (size_t layer = config.layers.size(); layer-- > 0;) {
    const MoeConfig& moe = config.layers[layer].moe;
    const double neurons =
        static_cast<double>(moe.top_k) * moe.expert_width + moe.shared_width + moe.dense_width;
    const double hidden = config.hidden;
    // Summed from the end: the cost of a run from a layer on is the sum of that layer and all later ones.
    layers_[layer] = layers_[layer + 1] + hidden * (kAttentionMatrices * hidden + kExpertMatrices * neurons);
  }
}

double PositionWork::SingleExperts() const {
  double work = Whole(true);
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    if (config_.layers[layer].moe.top_k >= 2) work += From(layer, true);
  }
  return work;
}

double PositionWork::Fisher(uint32_t draws) const {
  // A derivative along a direction is a difference of two losses.
  constexpr double kPassesOfADraw = 4;  // two directions, both signs
  double work = Whole(false);
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    if (config_.layers[layer].moe.experts > 0) work += kPassesOfADraw * draws * From(layer + 1, true);
  }
  return work;
}

double PositionWork::Predictors() const {
  double layers = 1;  // the first layer's gate
  for (const LayerConfig& layer : config_.layers) layers += layer.moe.experts > 0 ? 1 : 0;
  return kTrainingPasses * layers * kPredictorUnits * config_.hidden;
}

}  // namespace sluice::inferd
