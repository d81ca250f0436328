#include "inferd/policy/prefetcher.h"

#include <algorithm>
#include <utility>

#include "common/status.h"

namespace sluice {

Prefetcher::Prefetcher(const ModelConfig& config, uint32_t max_tokens, uint32_t max_prefetch,
                       std::unique_ptr<ExpertPredictor> predictor, Residency* residency)
    : max_prefetch_(max_prefetch),
      predictor_(std::move(predictor)),
      residency_(residency),
      ids_(uint64_t{max_tokens} * LargestTopK(config)),
      ranking_(MostExperts(config)),
      next_routed_(config.layers.size(), kNoLayer),
      counters_(config.layers.size()) {
  uint32_t next = kNoLayer;
  for (uint32_t layer = static_cast<uint32_t>(config.layers.size()); layer > 0; --layer) {
    next_routed_[layer - 1] = next;
    next = config.layers[layer - 1].moe.experts > 0 ? layer - 1 : next;
  }
}

PredictionCounters Prefetcher::total() const {
  PredictionCounters sum;
  for (const PredictionCounters& layer : counters_) {
    sum.predicted += layer.predicted;
    sum.right += layer.right;
    sum.wanted += layer.wanted;
  }
  return sum;
}

absl::Status Prefetcher::AfterRouter(const RouterTap& tap) {
  Compare(tap);
  const uint32_t target = next_routed_[tap.layer];
  predicted_layer_ = 0;
  if (target == kNoLayer || residency_->AllResident(target)) {
    return absl::OkStatus();
  }
  return PredictLayer(tap, target);
}

void Prefetcher::Compare(const RouterTap& tap) {
  if (predicted_layer_ != tap.layer || predicted_step_ != tap.batch->step() || tap.layer == 0) {
    return;
  }
  const uint32_t k = tap.routing.top_k;
  PredictionCounters& counters = counters_[tap.layer];
  for (uint32_t token = 0; token < tap.routing.tokens; ++token) {
    if (tap.batch->lost(token)) {
      continue;
    }
    const int32_t* chosen = tap.routing.ids + uint64_t{token} * tap.routing.ranks;
    counters.wanted += k;
    for (uint32_t rank = 0; rank < top_k_; ++rank) {
      counters.predicted++;
      counters.right += std::find(chosen, chosen + k, ids_[uint64_t{token} * top_k_ + rank]) != chosen + k;
    }
  }
}

absl::Status Prefetcher::PredictLayer(const RouterTap& tap, uint32_t target) {
  ASSIGN_OR_RETURN(const Routing prediction, predictor_->Predict(tap, target));
  top_k_ = prediction.top_k;
  std::copy(prediction.ids, prediction.ids + uint64_t{prediction.tokens} * top_k_, ids_.begin());
  predicted_step_ = tap.batch->step();
  predicted_layer_ = target;
  AskFor(tap, target);
  return absl::OkStatus();
}

void Prefetcher::AskFor(const RouterTap& tap, uint32_t target) {
  for (uint32_t expert = 0; expert < ranking_.size(); ++expert) {
    ranking_[expert] = {expert, 0};
  }
  for (uint32_t token = 0; token < tap.routing.tokens; ++token) {
    for (uint32_t rank = 0; rank < top_k_ && !tap.batch->lost(token); ++rank) {
      const uint32_t expert = static_cast<uint32_t>(ids_[uint64_t{token} * top_k_ + rank]);
      if (expert < ranking_.size()) {
        ranking_[expert].tokens++;
      }
    }
  }
  const auto wanted_more = [](const ExpertDemand& a, const ExpertDemand& b) {
    return a.tokens > b.tokens || (a.tokens == b.tokens && a.expert < b.expert);
  };
  const size_t asked = std::min<size_t>(max_prefetch_, ranking_.size());
  std::partial_sort(ranking_.begin(), ranking_.begin() + asked, ranking_.end(), wanted_more);
  for (size_t i = 0; i < asked && ranking_[i].tokens > 0; ++i) {
    residency_->Prefetch(target, ranking_[i].expert);
  }
}

}  // namespace sluice
