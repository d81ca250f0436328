#include "inferd/policy/predict/first_layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/status.h"

namespace sluice::inferd {

absl::StatusOr<std::unique_ptr<FirstLayerPredictor>> FirstLayerPredictor::Create(
    const ModelConfig& config, const PredictorProfile& profile, const NormSpec* final_norm, Backend* backend,
    uint32_t max_tokens, uint32_t max_sequences) {
  if (!profile.first_layer.has_value()) {
    return absl::FailedPreconditionError(
        "--policy first_layer=on: the profile holds no gate for the first layer; make it anew with `sluice "
        "calibrate`");
  }
  std::unique_ptr<FirstLayerPredictor> made(
      new FirstLayerPredictor(config, *profile.first_layer, final_norm, backend));
  while (config.layers[made->layer_].moe.experts == 0) ++made->layer_;
  if (made->gate_.final_norm) {
    const uint64_t bytes = uint64_t{max_tokens} * config.hidden * sizeof(float);
    ASSIGN_OR_RETURN(const BufferId rows, backend->Allocate(bytes, BufferKind::kActivations));
    made->normed_ = {{rows, 0}, config.hidden};
  }
  const MoeConfig& moe = config.layers[made->layer_].moe;
  made->inputs_.resize(uint64_t{max_sequences} * config.hidden);
  made->scores_.resize(moe.experts);
  made->order_.resize(moe.experts);
  made->ids_.resize(uint64_t{max_sequences} * moe.top_k);
  made->chances_.resize(made->ids_.size());
  return made;
}

absl::Status FirstLayerPredictor::Ask(const LayerEnd& end, absl::Span<const uint32_t> rows) {
  Queue& queue = backend_->queue();
  const uint32_t tokens = end.batch->tokens();
  if (gate_.final_norm) {
    RETURN_IF_ERROR(queue.Norm({end.residual, tokens, config_.hidden, *final_norm_, normed_}));
  }
  const Rows from = gate_.final_norm ? normed_ : end.residual;
  asked_ = static_cast<uint32_t>(rows.size());
  for (uint32_t i = 0; i < asked_; ++i) {
    RETURN_IF_ERROR(queue.Download(from.base + uint64_t{rows[i]} * from.stride * sizeof(float),
                                   uint64_t{config_.hidden} * sizeof(float),
                                   inputs_.data() + uint64_t{i} * config_.hidden));
  }
  return absl::OkStatus();
}

Routing FirstLayerPredictor::Answer() {
  const uint32_t experts = static_cast<uint32_t>(scores_.size());
  const uint32_t top_k = config_.layers[layer_].moe.top_k;
  for (uint32_t i = 0; i < asked_; ++i) {
    gate_.net.Run(inputs_.data() + uint64_t{i} * config_.hidden, nullptr, scores_.data());
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(order_.begin(), order_.begin() + top_k, order_.end(), [&](int32_t a, int32_t b) {
      return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
    });
    double sum = 0;
    for (uint32_t e = 0; e < experts; ++e) sum += std::exp(double{scores_[e]} - scores_[order_[0]]);
    for (uint32_t rank = 0; rank < top_k; ++rank) {
      ids_[uint64_t{i} * top_k + rank] = order_[rank];
      chances_[uint64_t{i} * top_k + rank] =
          static_cast<float>(std::exp(double{scores_[order_[rank]]} - scores_[order_[0]]) / sum);
    }
  }
  return Routing{asked_, top_k, top_k, ids_.data(), chances_.data()};
}

}  // namespace sluice::inferd
