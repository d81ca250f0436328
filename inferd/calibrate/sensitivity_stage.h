// AdapMoE's sensitivities, by forward passes alone: each layer's rise of loss when it alone uses its best
// expert, and E[(1 - alpha)^2], over the same windows.
//
// Thread safety: see calibration_stage.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/profile/profile.h"
#include "inferd/calibrate/calibration_stage.h"

namespace sluice::inferd {

// Records a window's residual stream, and the squared weight share of all experts of a token except the best.
class ResidualHook final : public LayerObserver {
 public:
  // `squares`: by layer, (1 - alpha)^2 summed over positions.
  ResidualHook(const ModelConfig& config, const WindowRunner* runner, std::vector<double>* squares);

  absl::Status AfterRouter(const RouterState& state) override;
  absl::Status AfterLayer(const LayerEnd& end) override;

  // Output rows of `layer`, [positions, hidden].
  const std::vector<float>& after(uint32_t layer) const { return after_[layer]; }

 private:
  const ModelConfig& config_;
  const WindowRunner* const runner_;
  std::vector<double>* const squares_;
  std::vector<std::vector<float>> after_;  // by layer
};

class RoutingStage final : public CalibrationStage {
 public:
  // Runs the first `count` windows. Borrows all arguments.
  RoutingStage(const ModelConfig& config, const ProfileKeys& keys,
               const std::vector<CalibrationWindow>& windows, uint64_t count, WindowHost* host);

  std::string name() const override { return "single-expert loss"; }
  uint64_t units() const override { return count_; }
  absl::Status RunUnit(uint64_t unit) override;
  void Save(std::string* out) const override;
  absl::Status Load(ByteReader* reader) override;
  absl::StatusOr<std::map<std::string, std::string>> Finish() override;

 private:
  const ModelConfig& config_;
  const ProfileKeys keys_;
  const std::vector<CalibrationWindow>& windows_;
  const uint64_t count_;
  WindowHost* const host_;
  uint64_t positions_ = 0;
  uint64_t targets_ = 0;
  std::vector<double> loss_rise_;  // by layer, nats
  std::vector<double> square_;     // by layer: (1 - alpha)^2
};

// Thresholds of AdapMoE's gating: the distribution of (1 - alpha)^2 S_l over (token, layer) pairs on the
// windows of the sensitivities; and the rise of perplexity when a share of the pairs use one expert, on
// windows held out at the text's end.
//
// Thread safety: see calibration_stage.h.

class GatingStage final : public CalibrationStage {
 public:
  // Runs the first `count` windows; the last half as many of the others are held out (with too few windows,
  // the last ones regardless of earlier use). `sensitivities`: a stage whose Finish() writes
  // sensitivity.json.
  GatingStage(const ModelConfig& config, const ProfileKeys& keys,
              const std::vector<CalibrationWindow>& windows, uint64_t count, CalibrationStage* sensitivities,
              WindowHost* host);

  std::string name() const override { return "gating thresholds"; }
  uint64_t units() const override;
  absl::Status RunUnit(uint64_t unit) override;
  void Save(std::string* out) const override;
  absl::Status Load(ByteReader* reader) override;
  absl::StatusOr<std::map<std::string, std::string>> Finish() override;

 private:
  absl::Status FindThresholds();
  // Returns the rule of one of the measured shares. Valid until the next call.
  const GatingRule* RuleOf(uint64_t share);

  const ModelConfig& config_;
  const ProfileKeys keys_;
  const std::vector<CalibrationWindow>& windows_;
  const uint64_t count_;
  const uint64_t held_out_;
  CalibrationStage* const sensitivities_;
  WindowHost* const host_;
  std::vector<std::vector<float>> squares_;  // by layer: (1 - alpha)^2 of each token
  double base_loss_ = 0;
  double run_loss_ = 0;         // summed over the held-out windows of the current run
  std::vector<double> losses_;  // by share, as far as measured
  // Derived from the earlier stages and squares_.
  GatingRule rule_;  // its threshold is set for each run
  GatingTable table_;
};

}  // namespace sluice::inferd
