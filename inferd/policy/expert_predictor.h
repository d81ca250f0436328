// Expert predictors guess the experts that a layer ahead will use. The layer observer is the interface
// through which the forward pass shows them its state.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/profile/predictor_weights.h"
#include "inferd/model/dense_weights.h"
#include "inferd/model/model_shapes.h"
#include "inferd/model/step_batch.h"
#include "inferd/policy/policies.h"
#include "inferd/policy/routing.h"
#include "kernels/backend.h"

namespace sluice::inferd {

// State of a layer once its router has run and its experts have been requested.
struct RouterState {
  uint32_t layer = 0;
  Rows residual;  // [tokens, hidden], after attention
  Rows normed;    // [tokens, hidden], the router's input
  Routing routing;
  const StepBatch* batch = nullptr;
  Rows scores;  // [tokens, experts], the router's logits
  // Choice before misses were replaced; no tokens: same as `routing`.
  Routing wanted;
};

// State at the end of a layer.
struct LayerEnd {
  uint32_t layer = 0;
  Rows residual;  // [tokens, hidden], with the MoE output added; the observer may change it
  const StepBatch* batch = nullptr;
};

// Observer that is called at layer boundaries; the base of predictors and calibration stages.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  // Called on an asynchronous device after the router was queued, before the host waits for it. Device reads
  // for AfterRouter() are best queued here; of state.routing only the token count is set.
  virtual absl::Status BeforeChoice(const RouterState& /*state*/) { return absl::OkStatus(); }
  // True if AfterRouter() may be skipped for `layer` in this step. All experts of the layer are resident.
  virtual bool CanDeferRouting(uint32_t /*layer*/) const { return false; }
  virtual absl::Status AfterRouter(const RouterState& state) = 0;
  // Called before the queue computes `args`: ready experts with their rows and weights. The first call of a
  // layer also has the common expert of every token, if there is one, before the others.
  virtual absl::Status BeforeExperts(uint32_t /*layer*/, const MoeExpertsArgs& /*args*/) {
    return absl::OkStatus();
  }
  virtual absl::Status AfterLayer(const LayerEnd& /*end*/) { return absl::OkStatus(); }

  // True if LookAhead() shall be called after `layer`, whose router has run, when some of its experts are
  // missing.
  virtual bool WantsLookAhead(uint32_t /*layer*/) const { return false; }
  // Called when the resident experts of state.layer have been computed and others are in flight.
  // state.residual is the next layer's attention output without the missing experts; of state.routing only
  // the token count is set.
  virtual absl::Status LookAhead(const RouterState& /*state*/) { return absl::OkStatus(); }

  // True if NextTokens() shall be called in this step, whose last layer's router has run, when some of that
  // layer's experts are missing.
  virtual bool WantsNextTokens() { return false; }
  // LookAhead() for the next step: state.batch has the draft tokens, one of each sequence, and state.residual
  // is their output of the first layer's attention.
  virtual absl::Status NextTokens(const RouterState& /*state*/) { return absl::OkStatus(); }
};

// Predictions about a layer that has not run yet.
class ExpertPredictions {
 public:
  virtual ~ExpertPredictions() = default;
  // Predicted experts of a row of the batch of `step`: best first, -1: left out. Empty: nothing was
  // predicted.
  virtual absl::Span<const int32_t> Predicted(uint32_t layer, uint32_t row, uint64_t step) const = 0;
};

class ExpertPredictor {
 public:
  // `queue` outlives the predictor.
  explicit ExpertPredictor(Queue* queue) : queue_(queue) {}
  virtual ~ExpertPredictor() = default;
  // Called for every routed layer, before Predict() for it.
  virtual absl::Status Observe(const RouterState& /*state*/) { return absl::OkStatus(); }
  // Queues the inputs of Answer() for the same state and target.
  virtual absl::Status Ask(const RouterState& state, uint32_t target) = 0;
  // Returns the experts that `target` (> state.layer, with experts) will probably choose for the observed
  // rows, routed ranks only, with predicted weights. Valid until the next call. No tokens: no prediction.
  // REQUIRES: the queued work of Ask() is done.
  virtual absl::StatusOr<Routing> Answer(const RouterState& state, uint32_t target) = 0;
  // Ask(), a wait, and Answer().
  absl::StatusOr<Routing> Predict(const RouterState& state, uint32_t target);
  // Confidence of the last prediction that the row chooses this expert, 0..1. REQUIRES: the predictor was
  // created with confidence.
  virtual float Confidence(uint32_t row, uint32_t rank) const = 0;

  Queue* queue() const { return queue_; }

 private:
  Queue* const queue_;
};

// Applies the router of the target layer, with its own norm, to the current residual (CORM, AdapMoE). The
// confidence of an expert is p / (p + q), q the best score outside the choice: above a half, near one where
// the choice is clear.
class GateReuse final : public ExpertPredictor {
 public:
  // `weights` and `backend` outlive the predictor. `targets`: maximum number of pending targets.
  static absl::StatusOr<std::unique_ptr<GateReuse>> Create(const ModelConfig& config,
                                                           const DenseWeights* weights, Backend* backend,
                                                           uint32_t max_tokens, bool confidence,
                                                           uint32_t targets = 1);
  absl::Status Ask(const RouterState& state, uint32_t target) override;
  absl::StatusOr<Routing> Answer(const RouterState& state, uint32_t target) override;
  float Confidence(uint32_t row, uint32_t rank) const override {
    return confidence_[uint64_t{row} * top_k_ + rank];
  }

 private:
  static constexpr uint32_t kNoTarget = 0xffffffffu;
  // A pending question about one layer.
  struct Question {
    uint32_t target = kNoTarget;
    uint64_t asked = 0;                // sequence number of the question
    Rows scores;                       // [max_tokens, most experts]
    BufferRef ids;                     // int32 [max_tokens, largest top_k]
    BufferRef chances;                 // float32 [max_tokens, largest top_k]
    std::optional<RouterScores> told;  // set only if confidence is computed
  };

  GateReuse(const ModelConfig& config, const DenseWeights* weights, Backend* backend)
      : ExpertPredictor(&backend->queue()), config_(config), weights_(weights), backend_(backend) {}
  absl::Status AddQuestion(uint32_t max_tokens, bool confidence);
  Question* Find(uint32_t target);
  void JudgeRows(const Routing& routing, uint32_t experts, Question* question);

  const ModelConfig& config_;
  const DenseWeights* const weights_;
  Backend* const backend_;
  std::vector<Question> questions_;
  uint64_t asked_ = 0;             // number of questions so far
  std::vector<uint32_t> rows_;     // 0..max_tokens - 1; empty without confidence
  std::vector<float> confidence_;  // [max_tokens, largest top_k]
  uint32_t top_k_ = 0;             // top_k of the last prediction
};

// AdapMoE's gate for the first layer (eq. 9): predicts the experts that the next token will use in the first
// routed layer from the last layer's output, while the step's head and sampling still run.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.

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

// FloE's learned predictor (3.3.1): a network for each layer, trained by `sluice calibrate`. It predicts the
// next layer's experts from the router's input and the experts chosen in this layer and the one before.
//
// Thread safety: thread-compatible; belongs to the engine thread. Nothing allocates after Create.

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
