// The number of experts that a row needs (AdapMoE eq. 8). Every device and the host use this rule.
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/types/span.h"

namespace sluice {

// Number of experts kept: the smallest j with (1 - share of the first j)^2 sensitivity <= limit, at least
// one. `weights`: the top K, best first; shares are of their sum. For K = 2 and j = 1 the share is the
// paper's alpha.
inline uint32_t ExpertsKept(absl::Span<const float> weights, double sensitivity, double limit) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double first = 0;
  for (uint32_t kept = 1; kept < weights.size(); ++kept) {
    first += weights[kept - 1];
    const double rest = sum > 0 ? std::max(1 - first / sum, 0.0) : 0;
    if (rest * rest * sensitivity <= limit) return kept;
  }
  return static_cast<uint32_t>(weights.size());
}

// Scales the first `kept` weights to the sum of all, in their old proportions, and sets the others to 0.
// Where weights sum to 1 a single expert gets 1 (AdapMoE 4.2).
inline void KeepExperts(absl::Span<float> weights, uint32_t kept) {
  if (kept >= weights.size()) return;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double first = std::accumulate(weights.begin(), weights.begin() + kept, 0.0);
  for (uint32_t rank = 0; rank < weights.size(); ++rank) {
    weights[rank] = rank < kept && first > 0 ? static_cast<float>(weights[rank] * (sum / first)) : 0.0f;
  }
}

}  // namespace sluice
