// The first stage: one pass over the whole text that counts the uses of experts, collects the distributions
// of |up factor|, |gate factor| and their product for every (token routed to an expert, neuron), and records
// the predictors' training data.
//
// The experts' own kernels compute the dot products, on the unmasked packed model (FloE's thresholds come
// from the quantized up matrix by calibrating the quantized pack).
//
// Thread safety: see calibration_stage.h.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/profile/profile.h"
#include "common/profile/threshold_tables.h"
#include "inferd/calibrate/activation_histograms.h"
#include "inferd/calibrate/calibration_stage.h"
#include "inferd/calibrate/feature_recorder.h"

namespace sluice::inferd {

class ActivationStage final : public CalibrationStage, private LayerObserver {
 public:
  // Borrows all arguments; `features` may be null.
  ActivationStage(const ModelConfig& config, const ProfileKeys& keys,
                  const std::vector<CalibrationWindow>& windows, WindowHost* host, FeatureRecorder* features);

  std::string name() const override { return "activations"; }
  uint64_t units() const override { return windows_.size(); }
  absl::Status RunUnit(uint64_t unit) override;
  absl::Status Sync() const override;
  void Save(std::string* out) const override;
  absl::Status Load(ByteReader* reader) override;
  absl::StatusOr<std::map<std::string, std::string>> Finish() override;

 private:
  absl::Status AfterRouter(const RouterState& state) override;
  absl::Status BeforeExperts(uint32_t layer, const MoeExpertsArgs& args) override;
  absl::Status AfterLayer(const LayerEnd& end) override;
  absl::Status CountExpert(uint32_t layer, const MoeExpertsArgs& args, const ExpertWork& work);
  absl::Status CheckFinite() const;

  const ModelConfig& config_;
  const ProfileKeys keys_;
  const std::vector<CalibrationWindow>& windows_;
  WindowHost* const host_;
  FeatureRecorder* const features_;

  std::vector<uint64_t> first_expert_;  // by layer: global number of its first expert
  uint64_t experts_ = 0;                // number over all layers
  uint64_t tokens_ = 0;
  std::vector<uint64_t> used_;       // [experts_]
  ActivationHistograms histograms_;  // table lead * experts_ + global number
  Routing routing_;                  // of the running layer
};

// Collects the distributions of predicted lead values: each routed layer's up and gate parts multiplied with
// two inputs from the previous routed layer, its router input (x_l) and its residual under the layer's own
// norm, for the rows that chose the expert. Neuron predictors read their calibrated thresholds from these
// (inferd/policy/sparsity.h).
//
// Thread safety: see calibration_stage.h.

class NeuronStage final : public CalibrationStage, private LayerObserver {
 public:
  // Runs the first `count` windows. Borrows all arguments.
  NeuronStage(const ModelConfig& config, const ProfileKeys& keys,
              const std::vector<CalibrationWindow>& windows, uint64_t count, WindowHost* host);

  std::string name() const override { return "neurons"; }
  uint64_t units() const override { return count_; }
  absl::Status RunUnit(uint64_t unit) override;
  void Save(std::string* out) const override;
  absl::Status Load(ByteReader* reader) override;
  absl::StatusOr<std::map<std::string, std::string>> Finish() override;

 private:
  static constexpr uint32_t kInputs = 2;     // x_l, the residual under the next layer's norm
  static constexpr uint32_t kLeads = 2;      // up, gate
  using Inputs = std::array<Rows, kInputs>;  // [positions, hidden] each

  absl::Status AfterRouter(const RouterState& state) override;
  absl::Status BeforeExperts(uint32_t layer, const MoeExpertsArgs& args) override;
  absl::Status AfterLayer(const LayerEnd& end) override;
  absl::Status Allocate();
  absl::Status CountExpert(uint32_t layer, const MoeExpertsArgs& args, const ExpertWork& work);
  int NextRouted(uint32_t layer) const;
  uint64_t TableOf(uint32_t input, uint32_t lead, uint64_t expert) const {
    return (uint64_t{input} * kLeads + lead) * experts_ + expert;
  }
  ThresholdTables Tables(uint32_t input) const;

  const ModelConfig& config_;
  const ProfileKeys keys_;
  const std::vector<CalibrationWindow>& windows_;
  const uint64_t count_;
  WindowHost* const host_;

  std::vector<uint64_t> first_expert_;  // by layer: global number of its first expert
  uint64_t experts_ = 0;                // number over all layers
  uint64_t tokens_ = 0;
  ActivationHistograms histograms_;  // indexed by TableOf()
  bool allocated_ = false;
  bool known_ = false;          // last_ holds the previous routed layer's rows
  Inputs last_;                 // for the running layer
  Inputs next_;                 // for the next layer
  Routing routing_;             // of the running layer
  std::vector<float> copied_;   // [positions, hidden]
  std::vector<uint32_t> rows_;  // of one expert
};

}  // namespace sluice::inferd
