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
#include "inferd/model/dense_weights.h"
#include "inferd/model/model_shapes.h"
#include "inferd/policy/preset/preset.h"
#include "inferd/policy/routing/router_scores.h"
#include "inferd/step/step_batch.h"
#include "inferd/step/work_plan.h"
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
  Rows outputs;   // [tokens * ranks, hidden], the experts' by (token, rank); unset in a layer without experts
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

}  // namespace sluice::inferd
