#include "inferd/policy/cache_allocation.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace sluice::inferd {
namespace {

// Adds the rest of `total` to the layers in order, as far as they have experts.
void HandOutRest(absl::Span<const uint32_t> experts, uint64_t total, std::vector<uint32_t>* slots) {
  uint64_t rest = total - std::accumulate(slots->begin(), slots->end(), uint64_t{0});
  for (size_t layer = 0; layer < experts.size(); ++layer) {
    const uint64_t more = std::min<uint64_t>(rest, experts[layer] - (*slots)[layer]);
    (*slots)[layer] += static_cast<uint32_t>(more);
    rest -= more;
  }
}

// Probability of `successes` among `draws` with probability p each.
double Binomial(uint32_t draws, uint32_t successes, double p) {
  double chance = 1;
  for (uint32_t i = 0; i < successes; ++i) chance *= p * (draws - i) / (i + 1.0);
  for (uint32_t i = successes; i < draws; ++i) chance *= 1 - p;
  return chance;
}

// Expected waiting time of a token with k experts.
double WaitingOf(uint32_t k, double missing, double prefetched, const LayerTimes& times) {
  double sum = 0;
  for (uint32_t m = 1; m <= k; ++m) {
    for (uint32_t p = 0; p <= m; ++p) {
      const double late = m * times.load - std::min(p * times.load, times.before) - k * times.compute;
      sum += Binomial(k, m, missing) * Binomial(m, p, prefetched) * std::max(late, 0.0);
    }
  }
  return sum;
}

}  // namespace

double WaitingCost(const LayerDemand& layer, double misses, const LayerTimes& times) {
  const uint32_t k = std::min(layer.top_k, layer.experts);
  if (k == 0) return 0;
  const double missing = std::clamp(misses / k, 0.0, 1.0);
  return layer.single_share * WaitingOf(1, missing, layer.prefetch_accuracy, times) +
         (1 - layer.single_share) * WaitingOf(k, missing, layer.prefetch_accuracy, times);
}

std::vector<uint32_t> AllocateUniform(absl::Span<const uint32_t> experts, uint64_t total) {
  std::vector<uint32_t> slots(experts.size(), 0);
  uint64_t left = std::min(total, std::accumulate(experts.begin(), experts.end(), uint64_t{0}));
  while (left > 0) {
    const auto open = [&](size_t layer) { return slots[layer] < experts[layer]; };
    uint64_t layers = 0;
    for (size_t layer = 0; layer < experts.size(); ++layer) layers += open(layer);
    const uint64_t each = std::max<uint64_t>(left / layers, 1);
    for (size_t layer = 0; layer < experts.size() && left > 0; ++layer) {
      const uint64_t more = std::min({each, left, uint64_t{experts[layer]} - slots[layer]});
      slots[layer] += static_cast<uint32_t>(more);
      left -= more;
    }
  }
  return slots;
}

std::vector<uint32_t> AllocateByCost(absl::Span<const std::vector<double>> costs, uint64_t total) {
  std::vector<uint32_t> experts;
  for (const std::vector<double>& row : costs) {
    experts.push_back(row.empty() ? 0 : static_cast<uint32_t>(row.size() - 1));
  }
  const uint64_t all = std::accumulate(experts.begin(), experts.end(), uint64_t{0});
  const size_t units = static_cast<size_t>(std::min(total, all));
  // best[j]: least cost of the layers so far with up to j slots; taken[i][j]: slots of layer i in that
  // optimum.
  std::vector<double> best(units + 1, 0.0);
  std::vector<double> next(units + 1);
  std::vector<std::vector<uint32_t>> taken(costs.size(), std::vector<uint32_t>(units + 1, 0));
  for (size_t i = 0; i < costs.size(); ++i) {
    if (experts[i] == 0) continue;
    for (size_t j = 0; j <= units; ++j) {
      next[j] = std::numeric_limits<double>::infinity();
      for (uint32_t k = 0; k <= std::min<size_t>(j, experts[i]); ++k) {
        const double cost = best[j - k] + costs[i][k];
        if (cost < next[j]) {
          next[j] = cost;
          taken[i][j] = k;
        }
      }
    }
    std::swap(best, next);
  }
  std::vector<uint32_t> slots(costs.size(), 0);
  size_t j = units;
  for (size_t i = costs.size(); i-- > 0;) {
    slots[i] = taken[i][j];
    j -= slots[i];
  }
  HandOutRest(experts, units, &slots);
  return slots;
}

std::vector<uint32_t> AllocateLayers(absl::Span<const uint32_t> experts, uint64_t total) {
  std::vector<uint32_t> slots(experts.size(), 0);
  HandOutRest(experts, std::min(total, std::accumulate(experts.begin(), experts.end(), uint64_t{0})), &slots);
  return slots;
}

StackDistances::StackDistances(uint32_t experts) : at_(experts, 0) { stack_.reserve(experts); }

void StackDistances::Add(absl::Span<const uint32_t> chosen) {
  tokens_++;
  accesses_ += chosen.size();
  for (const uint32_t expert : chosen) {
    const auto place = std::find(stack_.begin(), stack_.end(), expert);
    if (place != stack_.end()) at_[static_cast<size_t>(place - stack_.begin())]++;
  }
  for (const uint32_t expert : chosen) {
    const auto place = std::find(stack_.begin(), stack_.end(), expert);
    if (place != stack_.end()) stack_.erase(place);
    stack_.insert(stack_.begin(), expert);
  }
}

uint64_t StackDistances::Hits(uint32_t slots) const {
  const size_t depth = std::min<size_t>(slots, at_.size());
  return std::accumulate(at_.begin(), at_.begin() + static_cast<ptrdiff_t>(depth), uint64_t{0});
}

std::vector<double> StackDistances::MissCurve() const {
  std::vector<double> curve;
  for (uint32_t slots = 0; slots <= at_.size(); ++slots) {
    curve.push_back(tokens_ == 0 ? 0 : double(accesses_ - Hits(slots)) / double(tokens_));
  }
  return curve;
}

}  // namespace sluice::inferd
