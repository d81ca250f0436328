#include "inferd/calibrate/sensitivity_stage.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "common/base/status.h"
#include "inferd/calibrate/calibration_stage.h"

namespace sluice::inferd {
namespace {

// Size of a perturbation relative to the root mean square of the perturbed values: large enough for float32
// losses to differ, small enough for the difference to approximate a derivative.
constexpr double kStep = 3e-3;

uint64_t Mix64(uint64_t x) {  // splitmix64's finisher
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Independent standard normal values (Box and Muller), by our own generator, so that a calibration can be
// repeated to the bit.
class NormalStream {
 public:
  explicit NormalStream(uint64_t seed) : state_(seed) {}
  void Fill(std::vector<float>* values) {
    for (size_t i = 0; i < values->size(); i += 2) {
      const double radius = std::sqrt(-2.0 * std::log(Uniform()));
      const double angle = 2 * std::numbers::pi * Uniform();
      (*values)[i] = static_cast<float>(radius * std::cos(angle));
      if (i + 1 < values->size()) (*values)[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
  }

 private:
  double Uniform() {  // (0, 1]
    state_ += 0x9e3779b97f4a7c15ull;
    return (static_cast<double>(Mix64(state_) >> 11) + 1.0) * 0x1p-53;
  }
  uint64_t state_;
};

double SumOfSquares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return sum;
}

}  // namespace

ResidualHook::ResidualHook(const ModelConfig& config, const WindowRunner* runner, RoutingSums* sums)
    : config_(config),
      runner_(runner),
      sums_(sums),
      after_(config.layers.size()),
      choice_(config.layers.size()),
      output_size_(config.layers.size()) {}

absl::Status ResidualHook::AfterRouter(const RouterState& state) {
  routing_ = state.routing;
  std::vector<int32_t>& choice = choice_[state.layer];
  choice.clear();
  for (uint32_t token = 0; token < routing_.tokens; ++token) {
    const int32_t* ids = routing_.ids + uint64_t{token} * routing_.ranks;
    choice.insert(choice.end(), ids, ids + routing_.top_k);
  }
  before_.resize(uint64_t{state.routing.tokens} * config_.hidden);
  return runner_->Read(state.residual, state.routing.tokens, config_.hidden, before_.data());
}

absl::Status ResidualHook::AfterLayer(const LayerEnd& end) {
  const uint32_t tokens = end.batch->tokens();
  std::vector<float>& after = after_[end.layer];
  after.resize(uint64_t{tokens} * config_.hidden);
  RETURN_IF_ERROR(runner_->Read(end.residual, tokens, config_.hidden, after.data()));
  if (config_.layers[end.layer].moe.experts == 0) return absl::OkStatus();
  for (size_t i = 0; i < before_.size(); ++i) before_[i] = after[i] - before_[i];
  output_size_[end.layer] =
      std::sqrt(SumOfSquares(before_) / static_cast<double>(before_.size())) / config_.residual_scale;
  return sums_ != nullptr && routing_.top_k >= 2 ? AddDifferences(end) : absl::OkStatus();
}

absl::Status ResidualHook::AddDifferences(const LayerEnd& end) {
  const uint32_t hidden = config_.hidden;
  pair_.resize(2 * uint64_t{hidden});
  std::vector<double>& difference = sums_->difference[end.layer];
  for (uint32_t token = 0; token < routing_.tokens; ++token) {
    const uint64_t slot = uint64_t{token} * routing_.ranks;
    const float* weights = routing_.weights + slot;
    const double all = std::accumulate(weights, weights + routing_.top_k, 0.0);
    if (all > 0) {
      const double rest = 1 - double{weights[0]} / all;  // 1 - alpha
      sums_->square[end.layer] += rest * rest;
    }
    Rows outputs = end.outputs;
    outputs.base = outputs.base + slot * outputs.stride * sizeof(float);
    RETURN_IF_ERROR(runner_->Read(outputs, 2, hidden, pair_.data()));
    for (uint32_t i = 0; i < hidden; ++i) {
      const double d = double{pair_[i]} - double{pair_[hidden + i]};
      difference[i] += d * d;
    }
  }
  return absl::OkStatus();
}

RoutingStage::RoutingStage(const ModelConfig& config, const std::vector<CalibrationWindow>& windows,
                           uint64_t count, WindowHost* host, RoutingSums* sums)
    : config_(config), windows_(windows), count_(count), host_(host), sums_(sums) {
  sums_->loss_rise.assign(config.layers.size(), 0);
  sums_->square.assign(config.layers.size(), 0);
  sums_->difference.assign(config.layers.size(), std::vector<double>(config.hidden));
}

absl::Status RoutingStage::RunUnit(uint64_t unit) {
  const CalibrationWindow& window = windows_[unit];
  ResidualHook base(config_, &host_->runner(), sums_);
  ASSIGN_OR_RETURN(const double loss, host_->Run(window, {.observer = &base}));
  sums_->positions += window.input.size();
  sums_->targets += window.targets.size();
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
    sums_->loss_rise[layer] += single - loss;
  }
  return absl::OkStatus();
}

void RoutingStage::Save(std::string* out) const {
  AppendValue(sums_->positions, out);
  AppendValue(sums_->targets, out);
  AppendValues(sums_->loss_rise, out);
  AppendValues(sums_->square, out);
  for (const std::vector<double>& layer : sums_->difference) AppendValues(layer, out);
}

absl::Status RoutingStage::Load(ByteReader* reader) {
  RETURN_IF_ERROR(reader->Take(&sums_->positions));
  RETURN_IF_ERROR(reader->Take(&sums_->targets));
  RETURN_IF_ERROR(reader->TakeMany(config_.layers.size(), &sums_->loss_rise));
  RETURN_IF_ERROR(reader->TakeMany(config_.layers.size(), &sums_->square));
  for (std::vector<double>& layer : sums_->difference) {
    RETURN_IF_ERROR(reader->TakeMany(config_.hidden, &layer));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, std::string>> RoutingStage::Finish() {
  return std::map<std::string, std::string>{};
}

FisherStage::FisherStage(const ModelConfig& config, const ProfileKeys& keys,
                         const std::vector<CalibrationWindow>& windows, uint64_t count, uint32_t draws,
                         uint64_t seed, WindowHost* host, const RoutingSums* sums)
    : config_(config),
      keys_(keys),
      windows_(windows),
      count_(count),
      draws_(draws),
      seed_(seed),
      host_(host),
      sums_(sums),
      fisher_(config.layers.size()),
      quadratic_(config.layers.size()) {}

absl::Status FisherStage::RunUnit(uint64_t unit) {
  ResidualHook base(config_, &host_->runner(), nullptr);
  RETURN_IF_ERROR(host_->Run(windows_[unit], {.observer = &base, .loss = false}).status());
  const std::vector<float> ones(config_.hidden, 1.0f);
  std::vector<float> spread(config_.hidden);
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    if (base.output_size(layer) == 0) continue;
    double widest = 0;
    for (uint32_t i = 0; i < config_.hidden; ++i) {
      spread[i] =
          static_cast<float>(std::sqrt(sums_->difference[layer][i] / static_cast<double>(sums_->positions)));
      widest = std::max(widest, double{spread[i]});
    }
    for (uint32_t draw = 0; draw < draws_; ++draw) {
      ASSIGN_OR_RETURN(const double fisher, Draw(unit, layer, 2 * draw, base, ones));
      fisher_[layer] += fisher;
      if (widest == 0) continue;  // one expert a token: there is no difference
      ASSIGN_OR_RETURN(const double quadratic, Draw(unit, layer, 2 * draw + 1, base, spread));
      quadratic_[layer] += quadratic;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> FisherStage::Draw(uint64_t unit, uint32_t layer, uint64_t stream,
                                         const ResidualHook& base, const std::vector<float>& scale) {
  // Hutchinson's estimate of the diagonal Fisher: for a random direction v the square of the loss's
  // derivative along v has the sum of squared gradients as its mean. The derivative is a central difference,
  // with the base run's choice of experts fixed, since a changed choice would be a discontinuity.
  const std::vector<float>& after = base.after(layer);
  std::vector<float> v(after.size());
  NormalStream(Mix64(Mix64(Mix64(seed_ + unit) + layer) + stream)).Fill(&v);
  for (size_t i = 0; i < v.size(); ++i) v[i] *= scale[i % scale.size()];
  const double size = std::sqrt(SumOfSquares(scale) / static_cast<double>(scale.size()));
  const double step = kStep * base.output_size(layer) / size;
  std::vector<float> moved(after.size());
  double loss[2] = {0, 0};
  for (const int side : {0, 1}) {
    const float factor = static_cast<float>((side == 0 ? step : -step) * config_.residual_scale);
    for (size_t i = 0; i < v.size(); ++i) moved[i] = after[i] + factor * v[i];
    ASSIGN_OR_RETURN(loss[side], host_->Run(windows_[unit], {.residual = moved.data(),
                                                             .first_layer = layer + 1,
                                                             .choice = &base.choice()}));
  }
  const double derivative = (loss[0] - loss[1]) / (2 * step);
  return derivative * derivative;
}

void FisherStage::Save(std::string* out) const {
  AppendValues(fisher_, out);
  AppendValues(quadratic_, out);
}

absl::Status FisherStage::Load(ByteReader* reader) {
  RETURN_IF_ERROR(reader->TakeMany(config_.layers.size(), &fisher_));
  return reader->TakeMany(config_.layers.size(), &quadratic_);
}

absl::StatusOr<std::map<std::string, std::string>> FisherStage::Finish() {
  SensitivityProfile profile{keys_.source_digest, sums_->positions, {}};
  const double positions = static_cast<double>(sums_->positions);
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    LayerSensitivity s;
    s.loss_rise = sums_->loss_rise[layer] / static_cast<double>(sums_->targets);
    s.mean_square = sums_->square[layer] / positions;
    s.measured = s.mean_square > 0 ? s.loss_rise / s.mean_square : 0;
    s.fisher = fisher_[layer] / (draws_ * positions);
    s.quadratic = quadratic_[layer] / (draws_ * positions);
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

uint64_t GatingStage::units() const { return count_ + held_out_ * (1 + kGatingKinds * kShareCount); }

absl::Status GatingStage::RunUnit(uint64_t unit) {
  // Units in order: recording on the first windows, the base loss on the held-out ones, then one pass over
  // these for each kind of sensitivity and share.
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

const GatingRule* GatingStage::RuleOf(uint64_t run) {
  GatingRule& rule = rules_[run / kShareCount];
  rule.threshold = tables_[run / kShareCount].Threshold(kShares[run % kShareCount]);
  return &rule;
}

absl::Status GatingStage::FindThresholds() {
  if (!tables_.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto files, sensitivities_->Finish());
  ASSIGN_OR_RETURN(
      const SensitivityProfile profile,
      ParseSensitivity(files.at(kSensitivityName), kSensitivityName, config_, keys_.source_digest));
  for (int kind = 0; kind < kGatingKinds; ++kind) {
    GatingRule& rule = rules_.emplace_back();
    std::vector<double> values;
    for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
      rule.sensitivities.push_back(GatingSensitivity(profile.layers[layer], static_cast<GatingKind>(kind)));
      for (const float square : squares_[layer]) values.push_back(square * rule.sensitivities.back());
    }
    std::sort(values.begin(), values.end());
    tables_.push_back({Percentiles(values, GatingTable::kPoints), {}});
  }
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
  if (count > kGatingKinds * kShareCount) return reader->Damaged(absl::StrCat(count, " gating losses"));
  return reader->TakeMany(count, &losses_);
}

absl::StatusOr<std::map<std::string, std::string>> GatingStage::Finish() {
  RETURN_IF_ERROR(FindThresholds());
  uint64_t targets = 0;
  for (uint64_t i = windows_.size() - held_out_; i < windows_.size(); ++i) {
    targets += windows_[i].targets.size();
  }
  GatingProfile profile{keys_.source_digest, PositionsOf(windows_, count_), targets, {}};
  for (uint64_t kind = 0; kind < kGatingKinds; ++kind) {
    profile.tables[kind] = tables_[kind];
    for (uint64_t i = 0; i < kShareCount && kind * kShareCount + i < losses_.size(); ++i) {
      const double per_target =
          targets == 0 ? 0 : (losses_[kind * kShareCount + i] - base_loss_) / static_cast<double>(targets);
      profile.tables[kind].rises.push_back({kShares[i], std::expm1(per_target)});
    }
  }
  return std::map<std::string, std::string>{{kGatingName, SerializeGating(profile)}};
}

}  // namespace sluice::inferd
