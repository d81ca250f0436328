// Trains expert predictors on the first stage's recording: FloE's `learned` networks (3.3.1) and AdapMoE's
// `first_layer` gate (eq. 9). The last tenth of the positions is held out.
//
// For every routed layer followed by another, a network with 512 units and a linear one are trained (binary
// cross-entropy against the multi-hot top-K of the next layer) and the one of higher held-out precision is
// kept, the linear one on a tie. The gate minimises KL(softmax(router of the first routed layer at p + 1) ||
// softmax(W a(p) + b)), a the last layer's output with or without the final norm, the variant that diverges
// less on held-out positions.
//
// Thread safety: see calibration_stage.h; trains on its own threads, each network on one, so that the result
// does not depend on their number.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/profile/predictor_weights.h"
#include "inferd/calibrate/calibration_stage.h"
#include "inferd/calibrate/feature_recorder.h"

namespace sluice::inferd {

struct PredictorTraining {
  uint32_t epochs = 6;
  uint64_t seed = 1;
  uint32_t threads = 1;
  std::function<bool()> cancelled;  // polled about twenty times a second
};

class PredictorStage final : public CalibrationStage {
 public:
  // Borrows all arguments; `features` holds every position when the first unit runs.
  PredictorStage(const ModelConfig& config, const ProfileKeys& keys,
                 const std::vector<CalibrationWindow>& windows, const FeatureRecorder* features,
                 PredictorTraining training);

  std::string name() const override { return "predictors"; }
  // Number of groups of networks that are trained side by side.
  uint64_t units() const override;
  absl::Status RunUnit(uint64_t unit) override;
  void Save(std::string* out) const override;
  absl::Status Load(ByteReader* reader) override;
  absl::StatusOr<std::map<std::string, std::string>> Finish() override;

 private:
  absl::Status TrainJob(size_t job, const std::atomic<bool>* stop);
  absl::StatusOr<PredictorNet> TrainLearned(uint32_t layer, const std::atomic<bool>* stop) const;
  absl::StatusOr<FirstLayerGate> TrainFirstLayer(const std::atomic<bool>* stop) const;

  const ModelConfig& config_;
  const FeatureRecorder* const features_;
  const PredictorTraining training_;
  std::vector<uint32_t> layers_;    // layers with a learned predictor; the first-layer gate is one more job
  std::vector<uint64_t> followed_;  // positions with a next one in the same window
  PredictorProfile profile_;        // learned: by job, empty until it is done
};

}  // namespace sluice::inferd
