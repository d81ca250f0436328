#include "inferd/policy/predict/predictor.h"

#include <algorithm>
#include <numeric>

#include "common/status.h"
#include "inferd/policy/routing/routing.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<GateReuse>> GateReuse::Create(const ModelConfig& config,
                                                             const DenseWeights* weights, Backend* backend,
                                                             uint32_t max_tokens, bool confidence) {
  std::unique_ptr<GateReuse> predictor(new GateReuse(config, weights, backend));
  const uint64_t pairs = uint64_t{max_tokens} * LargestTopK(config);
  const uint64_t stride = MostExperts(config);
  ASSIGN_OR_RETURN(const BufferId scores,
                   backend->Allocate(max_tokens * stride * sizeof(float), BufferKind::kActivations));
  ASSIGN_OR_RETURN(const BufferId choice, backend->Allocate(2 * pairs * sizeof(float), BufferKind::kStaging));
  predictor->scores_ = {{scores, 0}, stride};
  predictor->ids_ = {choice, 0};
  predictor->chances_ = {choice, pairs * sizeof(float)};
  if (confidence) {
    predictor->told_.emplace(max_tokens, MostExperts(config));
    predictor->rows_.resize(max_tokens);
    std::iota(predictor->rows_.begin(), predictor->rows_.end(), 0);
    predictor->confidence_.resize(pairs);
  }
  return predictor;
}

absl::StatusOr<Routing> GateReuse::Predict(const RouterTap& tap, uint32_t target) {
  Queue& queue = backend_->queue();
  const LayerWeights& w = weights_->layer(target);
  const MoeConfig& moe = config_.layers[target].moe;
  const uint32_t tokens = tap.routing.tokens;
  const MatMulPart router[] = {{w.router, scores_, w.router_bias}};
  MatMulArgs args;
  args.x = tap.residual;
  args.tokens = tokens;
  args.cols = config_.hidden;
  args.norm = w.RouterNorm();
  args.parts = router;
  RETURN_IF_ERROR(queue.MatMul(args));
  RouterArgs router_args = ModelRouterArgs(moe, w);
  router_args.logits = scores_;
  router_args.tokens = tokens;
  router_args.ids = ids_;
  router_args.weights = chances_;
  RETURN_IF_ERROR(queue.Router(router_args));
  RETURN_IF_ERROR(queue.Wait(queue.Record()));
  const uint64_t bytes = uint64_t{tokens} * moe.top_k * sizeof(float);
  const std::byte* ids = backend_->HostRead(ids_, bytes);
  const std::byte* chances = backend_->HostRead(chances_, bytes);
  if (ids == nullptr || chances == nullptr) {
    return absl::InternalError("the predictor's staging memory cannot be read");
  }
  const Routing routing{tokens, moe.top_k, moe.top_k, reinterpret_cast<const int32_t*>(ids),
                        reinterpret_cast<const float*>(chances)};
  if (told_.has_value()) RETURN_IF_ERROR(JudgeRows(routing, moe.experts));
  return routing;
}

absl::Status GateReuse::JudgeRows(const Routing& routing, uint32_t experts) {
  const auto rows = absl::MakeConstSpan(rows_).first(routing.tokens);
  RETURN_IF_ERROR(told_->Read(scores_, experts, rows, &backend_->queue()));
  top_k_ = routing.top_k;
  for (const uint32_t row : rows) {
    const int32_t* ids = routing.ids + uint64_t{row} * routing.ranks;
    const float* p = told_->row(row);
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
  return absl::OkStatus();
}

}  // namespace sluice
