#include "inferd/policy/routing/expert_choice.h"

#include <algorithm>
#include <functional>

namespace sluice::inferd {

ExpertExchange::ExpertExchange(uint32_t most_tokens, uint32_t most_experts)
    : sorted_(most_experts), beta_(most_tokens), users_(most_experts), there_(most_experts) {
  leaving_.reserve(most_experts);
  joining_.reserve(most_experts);
}

double ExpertExchange::Beta(const float* scores, const ExchangeBatch& batch) {
  std::copy(scores, scores + batch.experts, sorted_.begin());
  std::nth_element(sorted_.begin(), sorted_.begin() + batch.top_k, sorted_.begin() + batch.experts,
                   std::greater<float>());
  return sorted_[batch.top_k];
}

uint32_t ExpertExchange::Choose(const ExchangeBatch& batch, double alpha,
                                absl::FunctionRef<bool(uint32_t)> resident) {
  low_scores_ = 0;
  if (batch.experts <= batch.top_k) return 0;
  for (uint32_t expert = 0; expert < batch.experts; ++expert) {
    there_[expert] = resident(expert);
    users_[expert] = 0;
  }
  for (uint32_t token = 0; token < batch.tokens; ++token) {
    const float* scores = batch.scores + uint64_t{token} * batch.experts;
    beta_[token] = Beta(scores, batch);
    for (uint32_t rank = 0; rank < batch.top_k; ++rank) {
      const uint32_t expert = static_cast<uint32_t>(batch.ids[uint64_t{token} * batch.top_k + rank]);
      users_[expert]++;
      const bool low = scores[expert] <= (1 + alpha) * beta_[token];
      low_scores_ += low;
      if (!low) there_[expert] = true;
    }
  }
  uint32_t exchanged = 0;
  for (uint32_t token = 0; token < batch.tokens; ++token) {
    exchanged += ChooseToken(batch, token, alpha);
  }
  return exchanged;
}

uint32_t ExpertExchange::ChooseToken(const ExchangeBatch& batch, uint32_t token, double alpha) {
  const float* scores = batch.scores + uint64_t{token} * batch.experts;
  const absl::Span<int32_t> ids(batch.ids + uint64_t{token} * batch.top_k, batch.top_k);
  leaving_.clear();
  for (uint32_t rank = batch.top_k; rank-- > 0;) {
    const uint32_t expert = static_cast<uint32_t>(ids[rank]);
    if (!there_[expert] && scores[expert] <= (1 + alpha) * beta_[token]) leaving_.push_back(rank);
  }
  if (leaving_.empty()) return 0;
  joining_.clear();
  for (uint32_t expert = 0; expert < batch.experts; ++expert) {
    const double p = scores[expert];
    if (there_[expert] && p <= beta_[token] && p >= (1 - alpha) * beta_[token] &&
        std::find(ids.begin(), ids.end(), static_cast<int32_t>(expert)) == ids.end()) {
      joining_.push_back(expert);
    }
  }
  const auto better = [&](uint32_t a, uint32_t b) {
    if (scores[a] != scores[b]) return scores[a] > scores[b];
    return users_[a] != users_[b] ? users_[a] > users_[b] : a < b;
  };
  std::sort(joining_.begin(), joining_.end(), better);
  const size_t exchanged = std::min(leaving_.size(), joining_.size());
  for (size_t i = 0; i < exchanged; ++i) ids[leaving_[i]] = static_cast<int32_t>(joining_[i]);
  std::sort(ids.begin(), ids.end(),
            [&](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  return static_cast<uint32_t>(exchanged);
}

}  // namespace sluice::inferd
