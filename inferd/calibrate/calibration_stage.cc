#include "inferd/calibrate/calibration_stage.h"

#include <algorithm>

namespace sluice::inferd {

std::vector<CalibrationWindow> MakeWindows(const std::vector<int32_t>& tokens, uint32_t window,
                                           const std::vector<int32_t>& bos_ids) {
  std::vector<CalibrationWindow> windows;
  for (size_t begin = 0; begin < tokens.size(); begin += window) {
    const auto first = tokens.begin() + static_cast<ptrdiff_t>(begin);
    const auto end = tokens.begin() + static_cast<ptrdiff_t>(std::min(begin + window, tokens.size()));
    CalibrationWindow next;
    if (!bos_ids.empty()) next.input.push_back(bos_ids[0]);
    next.input.insert(next.input.end(), first, end - 1);
    // With a BOS every token of the window is a target; without one the first token has no context to predict
    // it from.
    next.targets.assign(bos_ids.empty() ? first + 1 : first, end);
    if (!next.input.empty()) windows.push_back(std::move(next));
  }
  return windows;
}

uint64_t WindowsFor(const std::vector<CalibrationWindow>& windows, uint64_t tokens) {
  uint64_t count = 0;
  for (uint64_t held = 0; count < windows.size() && held < tokens; ++count) {
    held += windows[count].input.size();
  }
  return std::max<uint64_t>(count, 1);
}

uint64_t PositionsOf(const std::vector<CalibrationWindow>& windows, uint64_t count) {
  uint64_t positions = 0;
  for (uint64_t i = 0; i < count; ++i) positions += windows[i].input.size();
  return positions;
}

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

double PositionWork::Predictors() const {
  double layers = 1;  // the first layer's gate
  for (const LayerConfig& layer : config_.layers) layers += layer.moe.experts > 0 ? 1 : 0;
  return kTrainingPasses * layers * kPredictorUnits * config_.hidden;
}

}  // namespace sluice::inferd
