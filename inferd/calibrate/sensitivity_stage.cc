#include "inferd/calibrate/sensitivity_stage.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/status.h"
#include "inferd/calibrate/calibration_stage.h"

namespace sluice::inferd {

ResidualHook::ResidualHook(const ModelConfig& config, const WindowRunner* runner,
                           std::vector<double>* squares)
    : config_(config), runner_(runner), squares_(squares), after_(config.layers.size()) {}

absl::Status ResidualHook::AfterRouter(const RouterState& state) {
  const Routing& routing = state.routing;
  for (uint32_t token = 0; routing.top_k >= 2 && token < routing.tokens; ++token) {
    const float* weights = routing.weights + uint64_t{token} * routing.ranks;
    const double all = std::accumulate(weights, weights + routing.top_k, 0.0);
    const double rest = all > 0 ? 1 - double{weights[0]} / all : 0;  // 1 - alpha
    (*squares_)[state.layer] += rest * rest;
  }
  return absl::OkStatus();
}

absl::Status ResidualHook::AfterLayer(const LayerEnd& end) {
  const uint32_t tokens = end.batch->tokens();
  std::vector<float>& after = after_[end.layer];
  after.resize(uint64_t{tokens} * config_.hidden);
  return runner_->Read(end.residual, tokens, config_.hidden, after.data());
}

RoutingStage::RoutingStage(const ModelConfig& config, const ProfileKeys& keys,
                           const std::vector<CalibrationWindow>& windows, uint64_t count, WindowHost* host)
    : config_(config),
      keys_(keys),
      windows_(windows),
      count_(count),
      host_(host),
      loss_rise_(config.layers.size()),
      square_(config.layers.size()) {}

absl::Status RoutingStage::RunUnit(uint64_t unit) {
  const CalibrationWindow& window = windows_[unit];
  ResidualHook base(config_, &host_->runner(), &square_);
  ASSIGN_OR_RETURN(const double loss, host_->Run(window, {.observer = &base}));
  positions_ += window.input.size();
  targets_ += window.targets.size();
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    if (config_.layers[layer].moe.top_k < 2) continue;
    WindowRunner::Hooks hooks;
    hooks.single_expert_layer = static_cast<int>(layer);
    // Below this layer nothing differs from the base run, so its residual is reused.
    if (layer > 0) {
      hooks.first_layer = layer;
      hooks.residual = base.after(layer - 1).data();
    }
    ASSIGN_OR_RETURN(const double single, host_->Run(window, hooks));
    loss_rise_[layer] += single - loss;
  }
  return absl::OkStatus();
}

void RoutingStage::Save(std::string* out) const {
  AppendValue(positions_, out);
  AppendValue(targets_, out);
  AppendValues(loss_rise_, out);
  AppendValues(square_, out);
}

absl::Status RoutingStage::Load(ByteReader* reader) {
  RETURN_IF_ERROR(reader->Take(&positions_));
  RETURN_IF_ERROR(reader->Take(&targets_));
  RETURN_IF_ERROR(reader->TakeMany(config_.layers.size(), &loss_rise_));
  return reader->TakeMany(config_.layers.size(), &square_);
}

absl::StatusOr<std::map<std::string, std::string>> RoutingStage::Finish() {
  SensitivityProfile profile{keys_.source_digest, positions_, {}};
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    LayerSensitivity s;
    s.loss_rise = loss_rise_[layer] / static_cast<double>(targets_);
    s.mean_square = square_[layer] / static_cast<double>(positions_);
    s.measured = s.mean_square > 0 ? s.loss_rise / s.mean_square : 0;
    profile.layers.push_back(s);
  }
  return std::map<std::string, std::string>{{kSensitivityName, SerializeSensitivity(profile)}};
}

namespace {

// Shares of (token, layer) pairs with one expert at which the loss is measured; the rise is interpolated
// linearly between them.
constexpr double kShares[] = {0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5};
constexpr uint64_t kShareCount = std::size(kShares);

// Records for each token the squared weight share of all its experts except the best, (1 - alpha)^2 in
// AdapMoE's rule.
class SquaresHook final : public LayerObserver {
 public:
  explicit SquaresHook(std::vector<std::vector<float>>* squares) : squares_(squares) {}
  absl::Status AfterRouter(const RouterState& state) override {
    const Routing& routing = state.routing;
    for (uint32_t token = 0; routing.top_k >= 2 && token < routing.tokens; ++token) {
      const float* weights = routing.weights + uint64_t{token} * routing.ranks;
      const double sum = std::accumulate(weights, weights + routing.top_k, 0.0);
      const double rest = sum > 0 ? 1 - double{weights[0]} / sum : 0;
      (*squares_)[state.layer].push_back(static_cast<float>(rest * rest));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::vector<float>>* const squares_;
};

}  // namespace

GatingStage::GatingStage(const ModelConfig& config, const ProfileKeys& keys,
                         const std::vector<CalibrationWindow>& windows, uint64_t count,
                         CalibrationStage* sensitivities, WindowHost* host)
    : config_(config),
      keys_(keys),
      windows_(windows),
      count_(count),
      held_out_(std::max<uint64_t>(count / 2, 1)),
      sensitivities_(sensitivities),
      host_(host),
      squares_(config.layers.size()) {}

uint64_t GatingStage::units() const { return count_ + held_out_ * (1 + kShareCount); }

absl::Status GatingStage::RunUnit(uint64_t unit) {
  // Units in order: recording on the first windows, the base loss on the held-out ones, then one pass over
  // these for each share.
  if (unit < count_) {
    SquaresHook observer(&squares_);
    return host_->Run(windows_[unit], {.observer = &observer, .loss = false}).status();
  }
  RETURN_IF_ERROR(FindThresholds());
  const uint64_t run = (unit - count_) / held_out_;  // 0: the base run with all experts
  const uint64_t place = (unit - count_) % held_out_;
  const GatingRule* const gating = run == 0 ? nullptr : RuleOf(run - 1);
  const CalibrationWindow& window = windows_[windows_.size() - held_out_ + place];
  ASSIGN_OR_RETURN(const double loss, host_->Run(window, {.gating = gating}));
  run_loss_ += loss;
  if (place + 1 < held_out_) return absl::OkStatus();
  if (run == 0) {
    base_loss_ = run_loss_;
  } else {
    losses_.push_back(run_loss_);
  }
  run_loss_ = 0;
  return absl::OkStatus();
}

const GatingRule* GatingStage::RuleOf(uint64_t share) {
  rule_.threshold = table_.Threshold(kShares[share]);
  return &rule_;
}

absl::Status GatingStage::FindThresholds() {
  if (!table_.thresholds.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto files, sensitivities_->Finish());
  ASSIGN_OR_RETURN(
      const SensitivityProfile profile,
      ParseSensitivity(files.at(kSensitivityName), kSensitivityName, config_, keys_.source_digest));
  std::vector<double> values;
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    rule_.sensitivities.push_back(profile.layers[layer].measured);
    for (const float square : squares_[layer]) values.push_back(square * rule_.sensitivities.back());
  }
  std::sort(values.begin(), values.end());
  table_.thresholds = Percentiles(values, GatingTable::kPoints);
  return absl::OkStatus();
}

void GatingStage::Save(std::string* out) const {
  for (const std::vector<float>& layer : squares_) {
    AppendValue(uint64_t{layer.size()}, out);
    AppendValues(layer, out);
  }
  AppendValue(base_loss_, out);
  AppendValue(run_loss_, out);
  AppendValue(uint64_t{losses_.size()}, out);
  AppendValues(losses_, out);
}

absl::Status GatingStage::Load(ByteReader* reader) {
  uint64_t count = 0;
  for (std::vector<float>& layer : squares_) {
    RETURN_IF_ERROR(reader->Take(&count));
    RETURN_IF_ERROR(reader->TakeMany(count, &layer));
  }
  RETURN_IF_ERROR(reader->Take(&base_loss_));
  RETURN_IF_ERROR(reader->Take(&run_loss_));
  RETURN_IF_ERROR(reader->Take(&count));
  if (count > kShareCount) return reader->Damaged(absl::StrCat(count, " gating losses"));
  return reader->TakeMany(count, &losses_);
}

absl::StatusOr<std::map<std::string, std::string>> GatingStage::Finish() {
  RETURN_IF_ERROR(FindThresholds());
  uint64_t targets = 0;
  for (uint64_t i = windows_.size() - held_out_; i < windows_.size(); ++i) {
    targets += windows_[i].targets.size();
  }
  GatingProfile profile{keys_.source_digest, PositionsOf(windows_, count_), targets, table_};
  for (uint64_t i = 0; i < losses_.size(); ++i) {
    const double per_target = targets == 0 ? 0 : (losses_[i] - base_loss_) / static_cast<double>(targets);
    profile.table.rises.push_back({kShares[i], std::expm1(per_target)});
  }
  return std::map<std::string, std::string>{{kGatingName, SerializeGating(profile)}};
}

}  // namespace sluice::inferd
