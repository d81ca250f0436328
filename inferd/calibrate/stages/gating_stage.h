// Thresholds of AdapMoE's gating: the distribution of (1 - alpha)^2 S_l over (token, layer) pairs on the
// windows of the sensitivities; and the rise of perplexity when a share of the pairs use one expert, on
// windows held out at the text's end. Both for each definition of S_l and for the score alone.
//
// Thread safety: see calibration_stage.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/profile/gating.h"
#include "common/profile/profile.h"
#include "inferd/calibrate/windows/calibration_stage.h"

namespace sluice::inferd {

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
