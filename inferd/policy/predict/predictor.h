// Expert predictors: which experts will a layer ahead want? And the tap by which the forward pass shows them
// what they predict from.
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

namespace sluice {

// The state of a layer once its router has run and its experts have been asked for.
struct RouterTap {
  uint32_t layer = 0;
  Rows residual;  // [tokens, hidden], after attention
  Rows normed;    // [tokens, hidden], the router's input
  Routing routing;
  const StepBatch* batch = nullptr;
  Rows scores;  // [tokens, experts], the router's logits
  // The choice before misses were dealt with; no tokens: as `routing`.
  Routing wanted;
};

// The state at the end of a layer.
struct LayerEnd {
  uint32_t layer = 0;
  Rows residual;  // [tokens, hidden], with the mixture's output added; the tap may change it
  Rows outputs;   // [tokens * ranks, hidden], the experts' by (token, rank); unset in a layer without experts
  const StepBatch* batch = nullptr;
};

// Told at layer boundaries; predictors and calibration hang here.
class LayerTap {
 public:
  virtual ~LayerTap() = default;
  // On a device that runs later: the router has been queued, and will be waited for. What AfterRouter() is to
  // read of the device is best queued here; of tap.routing only the tokens are said.
  virtual absl::Status BeforeChoice(const RouterTap& /*tap*/) { return absl::OkStatus(); }
  // Whether AfterRouter() need not be called for `layer` in this step, whose experts are all there.
  virtual bool MayPass(uint32_t /*layer*/) const { return false; }
  virtual absl::Status AfterRouter(const RouterTap& tap) = 0;
  // `args` is what the queue computes next: experts that are ready, with their rows and weights; in a layer's
  // first call also the one that every token goes through, if there is one, before the others.
  virtual absl::Status BeforeExperts(uint32_t /*layer*/, const MoeExpertsArgs& /*args*/) {
    return absl::OkStatus();
  }
  virtual absl::Status AfterLayer(const LayerEnd& /*end*/) { return absl::OkStatus(); }

  // Whether LookAhead() is wanted after `layer`, whose router has run, if some of its experts are missing.
  virtual bool WantsLookAhead(uint32_t /*layer*/) const { return false; }
  // The experts of tap.layer that are there have been computed, others are on their way. tap.residual is what
  // comes out of the next layer's attention if they are left out; of tap.routing only the tokens are said.
  virtual absl::Status LookAhead(const RouterTap& /*tap*/) { return absl::OkStatus(); }

  // Whether NextTokens() is wanted in this step, whose last layer's router has run, if some of that layer's
  // experts are missing.
  virtual bool WantsNextTokens() { return false; }
  // The same for the next step: tap.batch has the tokens that will probably follow, one of each text, and
  // tap.residual is what comes out of the first layer's attention for them.
  virtual absl::Status NextTokens(const RouterTap& /*tap*/) { return absl::OkStatus(); }
};

// What was predicted of a layer that has not run yet.
class ExpertPredictions {
 public:
  virtual ~ExpertPredictions() = default;
  // Of a row of the batch of `step`: experts, best first, -1: left out. Empty: nothing was predicted.
  virtual absl::Span<const int32_t> Predicted(uint32_t layer, uint32_t row, uint64_t step) const = 0;
};

class ExpertPredictor {
 public:
  // `queue` outlives the predictor.
  explicit ExpertPredictor(Queue* queue) : queue_(queue) {}
  virtual ~ExpertPredictor() = default;
  // Told of every routed layer, before Predict() is asked about it.
  virtual absl::Status Observe(const RouterTap& /*tap*/) { return absl::OkStatus(); }
  // Queues what Answer() for the same tap and target looks at.
  virtual absl::Status Ask(const RouterTap& tap, uint32_t target) = 0;
  // That is known to have run: the experts that `target` (> tap.layer, with experts) will probably choose for
  // the tapped rows, routed ranks only. Valid until the next call; weights are the predicted ones. No tokens:
  // nothing to say.
  virtual absl::StatusOr<Routing> Answer(const RouterTap& tap, uint32_t target) = 0;
  // Both, with a wait between.
  absl::StatusOr<Routing> Predict(const RouterTap& tap, uint32_t target);
  // Of the last prediction: how sure it is that the row chooses this one, 0..1. REQUIRES: the predictor was
  // made to tell.
  virtual float Confidence(uint32_t row, uint32_t rank) const = 0;

  Queue* queue() const { return queue_; }

 private:
  Queue* const queue_;
};

// The router of the target layer, with its own norm, applied to the current residual (CORM, AdapMoE). It is
// as sure of an expert as p / (p + q), q the best score of those that it does not name: above a half, near
// one where the choice is clear.
class GateReuse final : public ExpertPredictor {
 public:
  // `weights` and `backend` outlive the predictor. `targets`: asked about at once at most.
  static absl::StatusOr<std::unique_ptr<GateReuse>> Create(const ModelConfig& config,
                                                           const DenseWeights* weights, Backend* backend,
                                                           uint32_t max_tokens, bool confidence,
                                                           uint32_t targets = 1);
  absl::Status Ask(const RouterTap& tap, uint32_t target) override;
  absl::StatusOr<Routing> Answer(const RouterTap& tap, uint32_t target) override;
  float Confidence(uint32_t row, uint32_t rank) const override {
    return confidence_[uint64_t{row} * top_k_ + rank];
  }

 private:
  static constexpr uint32_t kNoTarget = 0xffffffffu;
  // What was asked about one layer.
  struct Question {
    uint32_t target = kNoTarget;
    uint64_t asked = 0;                // when, by the number of the question
    Rows scores;                       // [max_tokens, most experts]
    BufferRef ids;                     // int32 [max_tokens, largest top_k]
    BufferRef chances;                 // float32 [max_tokens, largest top_k]
    std::optional<RouterScores> told;  // only if it is made to tell how sure it is
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
  uint64_t asked_ = 0;             // questions so far
  std::vector<uint32_t> rows_;     // 0..max_tokens - 1, if it tells how sure it is
  std::vector<float> confidence_;  // [max_tokens, largest top_k]
  uint32_t top_k_ = 0;             // of the last prediction
};

}  // namespace sluice
