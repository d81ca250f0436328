#include "inferd/policy/predict/predictor.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "inferd/policy/routing/routing.h"

namespace sluice::inferd {

absl::StatusOr<Routing> ExpertPredictor::Predict(const RouterState& state, uint32_t target) {
  RETURN_IF_ERROR(Ask(state, target));
  RETURN_IF_ERROR(queue_->Wait(queue_->Record()));
  return Answer(state, target);
}

absl::StatusOr<std::unique_ptr<GateReuse>> GateReuse::Create(const ModelConfig& config,
                                                             const DenseWeights* weights, Backend* backend,
                                                             uint32_t max_tokens, bool confidence,
                                                             uint32_t targets) {
  std::unique_ptr<GateReuse> predictor(new GateReuse(config, weights, backend));
  for (uint32_t i = 0; i < targets; ++i) {
    RETURN_IF_ERROR(predictor->AddQuestion(max_tokens, confidence));
  }
  if (confidence) {
    predictor->rows_.resize(max_tokens);
    std::iota(predictor->rows_.begin(), predictor->rows_.end(), 0);
    predictor->confidence_.resize(uint64_t{max_tokens} * LargestTopK(config));
  }
  return predictor;
}

absl::Status GateReuse::AddQuestion(uint32_t max_tokens, bool confidence) {
  const uint64_t pairs = uint64_t{max_tokens} * LargestTopK(config_);
  const uint64_t stride = MaxExperts(config_);
  ASSIGN_OR_RETURN(const BufferId scores,
                   backend_->Allocate(max_tokens * stride * sizeof(float), BufferKind::kActivations));
  ASSIGN_OR_RETURN(const BufferId choice,
                   backend_->Allocate(2 * pairs * sizeof(float), BufferKind::kStaging));
  Question& question = questions_.emplace_back();
  question.scores = {{scores, 0}, stride};
  question.ids = {choice, 0};
  question.chances = {choice, pairs * sizeof(float)};
  if (confidence) question.told.emplace(max_tokens, MaxExperts(config_));
  return absl::OkStatus();
}

GateReuse::Question* GateReuse::Find(uint32_t target) {
  const auto found = std::find_if(questions_.begin(), questions_.end(),
                                  [target](const Question& q) { return q.target == target; });
  return found == questions_.end() ? nullptr : &*found;
}

absl::Status GateReuse::Ask(const RouterState& state, uint32_t target) {
  Question* question = Find(target);
  if (question == nullptr) {
    // Reuses the oldest question, so that those just asked keep their answers.
    question = &*std::min_element(questions_.begin(), questions_.end(),
                                  [](const Question& a, const Question& b) { return a.asked < b.asked; });
  }
  question->asked = ++asked_;
  question->target = target;
  Queue& queue = backend_->queue();
  const LayerWeights& w = weights_->layer(target);
  const MoeConfig& moe = config_.layers[target].moe;
  const MatMulPart router[] = {{w.router, question->scores, w.router_bias}};
  MatMulArgs args;
  args.x = state.residual;
  args.tokens = state.routing.tokens;
  args.cols = config_.hidden;
  args.norm = w.RouterNorm();
  args.parts = router;
  RETURN_IF_ERROR(queue.MatMul(args));
  RouterArgs router_args = ModelRouterArgs(moe, w);
  router_args.logits = question->scores;
  router_args.tokens = state.routing.tokens;
  router_args.ids = question->ids;
  router_args.weights = question->chances;
  RETURN_IF_ERROR(queue.Router(router_args));
  if (!question->told.has_value()) return absl::OkStatus();
  const auto rows = absl::MakeConstSpan(rows_).first(state.routing.tokens);
  return question->told->Ask(question->scores, moe.experts, rows, &queue);
}

absl::StatusOr<Routing> GateReuse::Answer(const RouterState& state, uint32_t target) {
  Question* question = Find(target);
  if (question == nullptr) return absl::InternalError(absl::StrCat("nobody asked about layer ", target));
  const MoeConfig& moe = config_.layers[target].moe;
  const uint32_t tokens = state.routing.tokens;
  const uint64_t bytes = uint64_t{tokens} * moe.top_k * sizeof(float);
  const std::byte* ids = backend_->HostRead(question->ids, bytes);
  const std::byte* chances = backend_->HostRead(question->chances, bytes);
  if (ids == nullptr || chances == nullptr) {
    return absl::InternalError("the predictor's staging memory cannot be read");
  }
  const Routing routing{tokens, moe.top_k, moe.top_k, reinterpret_cast<const int32_t*>(ids),
                        reinterpret_cast<const float*>(chances)};
  if (question->told.has_value()) JudgeRows(routing, moe.experts, question);
  return routing;
}

void GateReuse::JudgeRows(const Routing& routing, uint32_t experts, Question* question) {
  question->told->Take();
  top_k_ = routing.top_k;
  for (uint32_t row = 0; row < routing.tokens; ++row) {
    const int32_t* ids = routing.ids + uint64_t{row} * routing.ranks;
    const float* p = question->told->row(row);
    float other = 0;
    for (uint32_t expert = 0; expert < experts; ++expert) {
      const bool named = std::find(ids, ids + top_k_, static_cast<int32_t>(expert)) != ids + top_k_;
      other = named ? other : std::max(other, p[expert]);
    }
    for (uint32_t rank = 0; rank < top_k_; ++rank) {
      const float own = p[ids[rank]];
      confidence_[uint64_t{row} * top_k_ + rank] = own + other > 0 ? own / (own + other) : 1;
    }
  }
}

}  // namespace sluice::inferd
