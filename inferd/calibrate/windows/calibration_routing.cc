#include "inferd/calibrate/windows/calibration_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/status.h"
#include "kernels/expert_cut.h"

namespace sluice::inferd {
namespace {

// True if the weights depend only on the scores of the chosen experts. Other routers (SparseMixer, scaled
// inputs) keep their own choice.
bool WeightsFollowFromScores(RouterKind kind) {
  return kind == RouterKind::kSoftmaxTopK || kind == RouterKind::kTopKSoftmax ||
         kind == RouterKind::kSigmoidTopK;
}

// Computes one token's weights for the experts `ids` by the model's own rule, even if it would not choose
// them.
void WeighChoice(const RouterArgs& args, const std::vector<float>& scores, const int32_t* ids,
                 float* weights) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double all = 0;
  for (const float score : scores) all += std::exp(score - most);
  double chosen = 0;
  for (uint32_t rank = 0; rank < args.top_k; ++rank) {
    const double score = scores[static_cast<size_t>(ids[rank])];
    const double weight =
        args.kind == RouterKind::kSigmoidTopK ? 1 / (1 + std::exp(-score)) : std::exp(score - most) / all;
    weights[rank] = static_cast<float>(weight);
    chosen += weight;
  }
  const bool normalised = args.norm_topk_prob || args.kind == RouterKind::kTopKSoftmax;
  const double factor = (normalised && chosen > 0 ? 1 / chosen : 1) * args.routed_scale;
  for (uint32_t rank = 0; rank < args.top_k; ++rank) {
    weights[rank] = static_cast<float>(weights[rank] * factor);
  }
}

}  // namespace

absl::Status CalibrationRouting::Decide(const RoutingInput& input, Queue* queue) {
  const RouterArgs& args = input.model;
  const bool single = static_cast<int>(input.layer) == single_layer_;
  const bool keep = choice_ != nullptr && WeightsFollowFromScores(args.kind);
  if (!single && !keep && gating_ == nullptr) return absl::OkStatus();
  const uint32_t ranks = args.top_k + (args.shared ? 1 : 0);
  const uint64_t bytes = uint64_t{args.tokens} * ranks * sizeof(float);
  int32_t* ids = reinterpret_cast<int32_t*>(backend_->HostWrite(args.ids, bytes));
  float* weights = reinterpret_cast<float*>(backend_->HostWrite(args.weights, bytes));
  if (ids == nullptr || weights == nullptr) {
    return absl::InternalError("the router's staging memory cannot be written");
  }
  if (keep) RETURN_IF_ERROR(Keep(args, (*choice_)[input.layer], queue, ids, weights));
  for (uint32_t token = 0; gating_ != nullptr && token < args.tokens; ++token) {
    const absl::Span<float> of_token(weights + uint64_t{token} * ranks, args.top_k);
    KeepExperts(of_token, ExpertsKept(of_token, gating_->sensitivities[input.layer], gating_->threshold));
  }
  // The best expert gets the weight of all, like the gating at run time.
  for (uint32_t token = 0; single && token < args.tokens; ++token, weights += ranks) {
    weights[0] = std::accumulate(weights, weights + args.top_k, 0.0f);
    std::fill(weights + 1, weights + args.top_k, 0.0f);
  }
  return absl::OkStatus();
}

absl::Status CalibrationRouting::Keep(const RouterArgs& args, const std::vector<int32_t>& choice,
                                      Queue* queue, int32_t* ids, float* weights) {
  const uint32_t ranks = args.top_k + (args.shared ? 1 : 0);
  if (choice.size() != uint64_t{args.tokens} * args.top_k) {
    return absl::InternalError(
        absl::StrCat("a choice of ", choice.size(), " experts for ", args.tokens, " tokens of ", args.top_k));
  }
  scores_.resize(args.experts);
  for (uint32_t token = 0; token < args.tokens; ++token) {
    const BufferRef row = args.logits.base + token * args.logits.stride * sizeof(float);
    RETURN_IF_ERROR(queue->Download(row, args.experts * sizeof(float), scores_.data()));
    RETURN_IF_ERROR(queue->Wait(queue->Record()));
    const int32_t* chosen = choice.data() + uint64_t{token} * args.top_k;
    std::copy_n(chosen, args.top_k, ids + uint64_t{token} * ranks);
    WeighChoice(args, scores_, chosen, weights + uint64_t{token} * ranks);
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
