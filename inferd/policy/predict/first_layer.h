// AdapMoE's gate for the first layer (eq. 9): predicts the experts that the next token will use in the first
// routed layer from the last layer's output, while the step's head and sampling still run.
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

class FirstLayerPredictor {
 public:
  // FAILED_PRECONDITION if the profile has no such gate. `final_norm` belongs to the model and outlives the
  // predictor.
  static absl::StatusOr<std::unique_ptr<FirstLayerPredictor>> Create(const ModelConfig& config,
                                                                     const PredictorProfile& profile,
                                                                     const NormSpec* final_norm,
                                                                     Backend* backend, uint32_t max_tokens,
                                                                     uint32_t max_sequences);

  // Queues the inputs of Answer() for `rows` of the last layer's output. REQUIRES: end.layer is the last
  // layer; at most max_sequences rows.
  absl::Status Ask(const LayerEnd& end, absl::Span<const uint32_t> rows);
  // Predicts the experts for the token after each of the rows; [rows, top_k], best first, valid until the
  // next call. REQUIRES: the queued work of Ask() is done.
  Routing Answer();

  uint32_t layer() const { return layer_; }  // the first routed layer
  Queue* queue() const { return &backend_->queue(); }

 private:
  FirstLayerPredictor(const ModelConfig& config, FirstLayerGate gate, const NormSpec* final_norm,
                      Backend* backend)
      : config_(config), gate_(std::move(gate)), final_norm_(final_norm), backend_(backend) {}

  const ModelConfig& config_;
  const FirstLayerGate gate_;
  const NormSpec* const final_norm_;
  Backend* const backend_;
  uint32_t layer_ = 0;
  Rows normed_;                 // [max_tokens, hidden]; unset without the final norm
  std::vector<float> inputs_;   // [max_sequences, hidden]
  uint32_t asked_ = 0;          // rows
  std::vector<float> scores_;   // [experts]
  std::vector<int32_t> order_;  // [experts]
  std::vector<int32_t> ids_;    // [max_sequences, top_k]
  std::vector<float> chances_;  // softmax of the scores, same shape
};

}  // namespace sluice::inferd
