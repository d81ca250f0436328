// AdapMoE's sensitivities, by forward passes alone, in two stages over the same windows.
//
// RoutingStage: each layer's rise of loss when it alone uses its best expert (`measured`), E[(1 - alpha)^2],
// and the mean of (f1 - f2)^2 by dimension, f1 and f2 the outputs of the two best experts.
//
// FisherStage: with O_l the mixture's output before the residual add, L the window's summed loss and v drawn
// at every position, ((L(O_l + e v) - L(O_l - e v)) / 2e)^2 has the expectation sum over positions of g^T C g
// for v ~ N(0, C) and g the gradient at a position. C = I gives sum diag(F_l) (`fisher`); C = diag(mean (f1 -
// f2)^2) gives the mean of (f1 - f2)^T diag(F_l) (f1 - f2) (`quadratic`). The perturbation's scale is 3e-3 of
// the root mean square of O_l, and the unperturbed choice of experts is kept: a swapped expert is a jump of
// the loss, not a slope, and a few of them would dominate the estimate. Every draw has a relative standard
// deviation of sqrt(2); windows x draws of them are averaged.
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

// Results of RoutingStage for FisherStage, sums over positions.
struct RoutingSums {
  uint64_t positions = 0;
  uint64_t targets = 0;
  std::vector<double> loss_rise;                // by layer, nats
  std::vector<double> square;                   // by layer: (1 - alpha)^2
  std::vector<std::vector<double>> difference;  // by layer, [hidden]: (f1 - f2)^2
};

// Records a window's residual stream: the input of each layer, and the size of each MoE output.
class ResidualHook final : public LayerObserver {
 public:
  // `sums` may be null.
  ResidualHook(const ModelConfig& config, const WindowRunner* runner, RoutingSums* sums);

  absl::Status AfterRouter(const RouterState& state) override;
  absl::Status AfterLayer(const LayerEnd& end) override;

  // Output rows of `layer`, [positions, hidden].
  const std::vector<float>& after(uint32_t layer) const { return after_[layer]; }
  const ExpertChoice& choice() const { return choice_; }
  // Root mean square of the layer's MoE output; 0 for a layer without experts.
  double output_size(uint32_t layer) const { return output_size_[layer]; }

 private:
  absl::Status AddDifferences(const LayerEnd& end);

  const ModelConfig& config_;
  const WindowRunner* const runner_;
  RoutingSums* const sums_;
  Routing routing_;                        // of the running layer
  std::vector<float> before_;              // [positions, hidden] without the MoE output
  std::vector<float> pair_;                // outputs of a token's two best experts
  std::vector<std::vector<float>> after_;  // by layer
  ExpertChoice choice_;
  std::vector<double> output_size_;  // by layer
};

class RoutingStage final : public CalibrationStage {
 public:
  // Runs the first `count` windows. Borrows all arguments; `sums` outlives both stages.
  RoutingStage(const ModelConfig& config, const std::vector<CalibrationWindow>& windows, uint64_t count,
               WindowHost* host, RoutingSums* sums);

  std::string name() const override { return "single-expert loss"; }
  uint64_t units() const override { return count_; }
  absl::Status RunUnit(uint64_t unit) override;
  void Save(std::string* out) const override;
  absl::Status Load(ByteReader* reader) override;
  absl::StatusOr<std::map<std::string, std::string>> Finish() override;

 private:
  const ModelConfig& config_;
  const std::vector<CalibrationWindow>& windows_;
  const uint64_t count_;
  WindowHost* const host_;
  RoutingSums* const sums_;
};

class FisherStage final : public CalibrationStage {
 public:
  FisherStage(const ModelConfig& config, const ProfileKeys& keys,
              const std::vector<CalibrationWindow>& windows, uint64_t count, uint32_t draws, uint64_t seed,
              WindowHost* host, const RoutingSums* sums);

  std::string name() const override { return "Fisher sums"; }
  uint64_t units() const override { return count_; }
  absl::Status RunUnit(uint64_t unit) override;
  void Save(std::string* out) const override;
  absl::Status Load(ByteReader* reader) override;
  // Writes the sensitivities of both stages.
  absl::StatusOr<std::map<std::string, std::string>> Finish() override;

 private:
  // Returns one draw of the squared directional derivative. `scale`: standard deviation of v by dimension.
  absl::StatusOr<double> Draw(uint64_t unit, uint32_t layer, uint64_t stream, const ResidualHook& base,
                              const std::vector<float>& scale);

  const ModelConfig& config_;
  const ProfileKeys keys_;
  const std::vector<CalibrationWindow>& windows_;
  const uint64_t count_;
  const uint32_t draws_;
  const uint64_t seed_;
  WindowHost* const host_;
  const RoutingSums* const sums_;
  std::vector<double> fisher_;     // by layer, summed over draws
  std::vector<double> quadratic_;  // by layer, summed over draws
};

// Thresholds of AdapMoE's gating: the distribution of (1 - alpha)^2 S_l over (token, layer) pairs on the
// windows of the sensitivities; and the rise of perplexity when a share of the pairs use one expert, on
// windows held out at the text's end. Both for each definition of S_l and for the score alone.
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
  // Returns the rule of run `run`, one of kinds * shares, with that run's threshold. Valid until the next
  // call.
  const GatingRule* RuleOf(uint64_t run);

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
  std::vector<double> losses_;  // [kinds * shares] as far as measured
  // Derived from the earlier stages and squares_.
  std::vector<GatingRule> rules_;  // by kind, thresholds unset
  std::vector<GatingTable> tables_;
};

}  // namespace sluice::inferd
