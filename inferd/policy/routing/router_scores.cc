#include "inferd/policy/routing/router_scores.h"

#include <algorithm>
#include <cmath>

#include "common/status.h"

namespace sluice::inferd {
namespace {

void Softmax(float* values, uint32_t count) {
  const float most = *std::max_element(values, values + count);
  double sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    values[i] = std::exp(values[i] - most);
    sum += double{values[i]};
  }
  for (uint32_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(double{values[i]} / sum);
  }
}

}  // namespace

RouterScores::RouterScores(uint32_t most_tokens, uint32_t most_experts)
    : scores_(uint64_t{most_tokens} * most_experts), mean_(most_experts) {}

absl::Status RouterScores::Read(Rows logits, uint32_t experts, absl::Span<const uint32_t> rows,
                                Queue* queue) {
  RETURN_IF_ERROR(Ask(logits, experts, rows, queue));
  RETURN_IF_ERROR(queue->Wait(queue->Record()));
  Take();
  return absl::OkStatus();
}

absl::Status RouterScores::Ask(Rows logits, uint32_t experts, absl::Span<const uint32_t> rows, Queue* queue) {
  rows_ = static_cast<uint32_t>(rows.size());
  experts_ = experts;
  float* to = scores_.data();
  for (const uint32_t row : rows) {
    const BufferRef from = logits.base + uint64_t{row} * logits.stride * sizeof(float);
    RETURN_IF_ERROR(queue->Download(from, uint64_t{experts_} * sizeof(float), to));
    to += experts_;
  }
  return absl::OkStatus();
}

void RouterScores::Take() {
  for (uint32_t i = 0; i < rows_; ++i) {
    Softmax(scores_.data() + uint64_t{i} * experts_, experts_);
  }
}

absl::Span<const float> RouterScores::Mean() {
  for (uint32_t expert = 0; expert < experts_; ++expert) {
    double sum = 0;
    for (uint32_t i = 0; i < rows_; ++i) sum += double{row(i)[expert]};
    mean_[expert] = rows_ == 0 ? 0.0f : static_cast<float>(sum / rows_);
  }
  return absl::MakeConstSpan(mean_.data(), experts_);
}

bool WeighsBySoftmax(RouterKind kind) {
  return kind == RouterKind::kSoftmaxTopK || kind == RouterKind::kTopKSoftmax;
}

void WeighBySoftmax(const RouterArgs& args, const float* scores, const int32_t* ids, float* weights) {
  double chosen = 0;
  for (uint32_t rank = 0; rank < args.top_k; ++rank) chosen += double{scores[ids[rank]]};
  const bool normalised = args.norm_topk_prob || args.kind == RouterKind::kTopKSoftmax;
  const double factor = (normalised && chosen > 0 ? 1 / chosen : 1) * args.routed_scale;
  for (uint32_t rank = 0; rank < args.top_k; ++rank) {
    weights[rank] = static_cast<float>(double{scores[ids[rank]]} * factor);
  }
}

}  // namespace sluice::inferd
