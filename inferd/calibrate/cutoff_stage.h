// Intra-expert's cut-off: the largest sparsity, with one threshold of |gate factor| for the whole model, at
// which the rise of perplexity stays within a bound; found by bisection over whole percents on the text's
// last windows.
//
// Thread safety: see calibration_stage.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/profile/profile.h"
#include "inferd/calibrate/calibration_stage.h"

namespace sluice::inferd {

class CutoffStage final : public CalibrationStage {
 public:
  // Measures on the last `count` windows. `thresholds`, a stage that is finished when the first unit runs,
  // provides the threshold table, which is written to `folder` meanwhile. Borrows all arguments.
  CutoffStage(const ProfileKeys& keys, const std::vector<CalibrationWindow>& windows, uint64_t count,
              std::vector<double> bounds, std::string folder, CalibrationStage* thresholds, WindowHost* host);

  std::string name() const override { return "largest sparsity"; }
  uint64_t units() const override;
  absl::Status RunUnit(uint64_t unit) override;
  void Save(std::string* out) const override;
  absl::Status Load(ByteReader* reader) override;
  absl::StatusOr<std::map<std::string, std::string>> Finish() override;

 private:
  absl::Status AddWindow(uint64_t run, uint32_t percent, const CalibrationWindow& window);
  // Sets the sparsity of the following windows; INVALID_ARGUMENT if there is no such sparsity.
  absl::Status SetUp(uint32_t percent);
  // Converts a summed loss to the relative rise of perplexity.
  double RiseOf(double loss) const;

  const ProfileKeys keys_;
  const std::vector<CalibrationWindow>& windows_;
  const uint64_t count_;
  const std::vector<double> bounds_;
  const std::string folder_;
  CalibrationStage* const thresholds_;
  WindowHost* const host_;
  bool table_written_ = false;
  std::optional<uint64_t> run_set_up_;  // the run for which the host is set up

  double base_loss_ = 0;
  double run_loss_ = 0;           // summed over the windows of the current run
  std::vector<double> rises_;     // by percent; negative infinity: not measured
  std::vector<uint32_t> within_;  // by bound: the largest percent known to be within it
  std::vector<uint32_t> beyond_;  // by bound: the smallest percent known to exceed it
};

}  // namespace sluice::inferd
