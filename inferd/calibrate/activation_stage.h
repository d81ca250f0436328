// The first stage: one pass over the whole text that counts the uses of experts, collects the distributions
// of |up factor|, |gate factor| and their product for every (token routed to an expert, neuron), and records
// the predictors' training data.
//
// The experts' own kernels compute the dot products, on the unmasked packed model (FloE's thresholds come
// from the quantized up matrix by calibrating the quantized pack).
//
// Thread safety: see calibration_stage.h.
#pragma once

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

}  // namespace sluice::inferd
