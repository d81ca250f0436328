#include "inferd/policy/slot_eviction.h"

#include <algorithm>
#include <cmath>

namespace sluice::inferd {
namespace {

constexpr double kUnit = 4294967295.0;  // fixed-point value of a score of 1

uint32_t FixedPoint(float score) {
  const double clamped = score > 0 ? std::min(double{score}, 1.0) : 0.0;  // NaN counts as 0
  return static_cast<uint32_t>(std::lround(clamped * kUnit));
}

}  // namespace

SlotEvictionPolicy::SlotEvictionPolicy(const SlotEvictionOptions& options, absl::Span<const uint32_t> experts)
    : options_{options.kind, std::max(1u, options.score_window), std::max(1u, options.lfru_half_life)},
      layers_(experts.size()) {
  uint64_t all = 0;
  for (size_t i = 0; i < experts.size(); ++i) {
    layers_[i].first = all;
    layers_[i].experts = experts[i];
    all += experts[i];
  }
  uses_.resize(all);
  if (NeedsScores()) {
    sums_.resize(all);
    past_.resize(all * options_.score_window);
  }
}

void SlotEvictionPolicy::BeginLayer(uint32_t layer, absl::Span<const float> scores,
                                    absl::Span<const uint32_t> chosen) {
  Layer& state = layers_[layer];
  state.passes++;
  state.open = true;
  if (NeedsScores() && scores.size() == state.experts) {
    Observe(state, scores);
    state.observed++;
  }
  for (const uint32_t expert : chosen) {
    Use& use = uses_[state.first + expert];
    use.count = CountNow(state, use) + 1;
    use.pass = state.passes;
    use.last = ++clock_;
    use.shielded = state.passes;
  }
}

void SlotEvictionPolicy::EndLayer(uint32_t layer) { layers_[layer].open = false; }

bool SlotEvictionPolicy::Shielded(uint32_t layer, uint32_t expert) const {
  const Layer& state = layers_[layer];
  return state.open && uses_[state.first + expert].shielded == state.passes;
}

double SlotEvictionPolicy::MeanScore(uint32_t layer, uint32_t expert) const {
  const Layer& state = layers_[layer];
  const uint64_t passes = std::min<uint64_t>(state.observed, options_.score_window);
  return passes == 0 ? 0 : static_cast<double>(sums_[state.first + expert]) / kUnit / double(passes);
}

void SlotEvictionPolicy::Observe(const Layer& layer, absl::Span<const float> scores) {
  const uint64_t place = layer.observed % options_.score_window;
  for (uint32_t expert = 0; expert < layer.experts; ++expert) {
    const uint64_t at = layer.first + expert;
    uint32_t& past = past_[at * options_.score_window + place];
    const uint32_t now = FixedPoint(scores[expert]);
    sums_[at] += uint64_t{now} - past;
    past = now;
  }
}

double SlotEvictionPolicy::CountNow(const Layer& layer, const Use& use) const {
  return use.count * std::exp2(-static_cast<double>(layer.passes - use.pass) / options_.lfru_half_life);
}

// True if `a` is evicted before `b`, two different experts.
bool SlotEvictionPolicy::Before(const Layer& layer, uint32_t a, uint32_t b) const {
  const Use& use_a = uses_[layer.first + a];
  const Use& use_b = uses_[layer.first + b];
  if (options_.kind == SlotEviction::kScore) {
    const uint64_t sum_a = sums_[layer.first + a];
    const uint64_t sum_b = sums_[layer.first + b];
    if (sum_a != sum_b) return sum_a < sum_b;
  } else if (options_.kind == SlotEviction::kLfru) {
    const double count_a = CountNow(layer, use_a);
    const double count_b = CountNow(layer, use_b);
    if (count_a != count_b) return count_a < count_b;
  }
  return use_a.last != use_b.last ? use_a.last < use_b.last : a < b;
}

uint32_t SlotEvictionPolicy::Victim(uint32_t layer, absl::Span<const uint32_t> candidates) const {
  uint32_t victim = kNoVictim;
  for (uint32_t i = 0; i < candidates.size(); ++i) {
    if (!Shielded(layer, candidates[i]) &&
        (victim == kNoVictim || Before(layers_[layer], candidates[i], candidates[victim]))) {
      victim = i;
    }
  }
  return victim;
}

}  // namespace sluice::inferd
