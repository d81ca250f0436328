// FloE's learned predictor (3.3.1): a network for each layer, trained by `sluice calibrate`. It predicts the
// next layer's experts from the router's input and the experts chosen in this layer and the one before.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/profile/predictor_weights.h"
#include "inferd/policy/predict/predictor.h"

namespace sluice::inferd {

class LearnedExperts final : public ExpertPredictor {
 public:
  // Maximum rows of a predicted step. A network costs a decode step little, but a prompt chunk uses nearly
  // every expert anyway.
  static constexpr uint32_t kMaxRows = 32;

  // FAILED_PRECONDITION if the profile has no network for any layer.
  static absl::StatusOr<std::unique_ptr<LearnedExperts>> Create(const ModelConfig& config,
                                                                PredictorProfile profile, Backend* backend);

  absl::Status Observe(const RouterState& state) override;
  // Does nothing for a layer without a network, or for one that does not follow the observed layer.
  absl::Status Ask(const RouterState& state, uint32_t target) override;
  absl::StatusOr<Routing> Answer(const RouterState& state, uint32_t target) override;
  // The network's own probability of the expert.
  float Confidence(uint32_t row, uint32_t rank) const override {
    return chances_[uint64_t{row} * top_k_ + rank];
  }

 private:
  struct Choice {  // experts of a layer, at most kMaxRows tokens
    uint64_t step = 0;
    uint32_t layer = 0;
    uint32_t tokens = 0;
    uint32_t top_k = 0;
    std::vector<int32_t> ids;
  };

  LearnedExperts(const ModelConfig& config, PredictorProfile profile, Backend* backend);
  bool Knows(const RouterState& state, uint32_t target) const;
  void MakeInput(const RouterState& state, uint32_t token);

  const ModelConfig& config_;
  const PredictorProfile profile_;
  Choice own_;                  // the observed layer's
  Choice before_;               // the previous routed layer's
  std::vector<float> rows_;     // [kMaxRows, hidden]
  std::vector<float> input_;    // input of one token
  std::vector<float> scratch_;  // units
  std::vector<float> scores_;   // experts
  std::vector<int32_t> order_;  // experts
  std::vector<int32_t> ids_;    // [kMaxRows, top_k]
  std::vector<float> chances_;  // scores after a logistic function, same shape
  uint32_t top_k_ = 0;          // top_k of the last prediction
};

}  // namespace sluice::inferd
