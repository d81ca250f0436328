#include "cli/plan/hit_rate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice::cli {
namespace {

// Requests per token of each expert.
std::vector<double> Rates(const ModelConfig& config, const std::vector<std::vector<uint64_t>>& usage) {
  std::vector<double> rates;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    double sum = 0;
    if (layer < usage.size()) sum = std::accumulate(usage[layer].begin(), usage[layer].end(), 0.0);
    for (uint32_t e = 0; e < moe.experts; ++e) {
      rates.push_back(moe.top_k * (sum > 0 ? static_cast<double>(usage[layer][e]) / sum : 1.0 / moe.experts));
    }
  }
  return rates;
}

// Experts that were asked for within the last `tokens` tokens.
double Held(const std::vector<double>& rates, double tokens) {
  double held = 0;
  for (const double rate : rates) held += -std::expm1(-rate * tokens);
  return held;
}

}  // namespace

double HitRate(const ModelConfig& config, const std::vector<std::vector<uint64_t>>& usage, double share) {
  if (share >= 1) return 1;
  const std::vector<double> rates = Rates(config, usage);
  const double room = share * static_cast<double>(rates.size());
  const double asked = std::accumulate(rates.begin(), rates.end(), 0.0);
  if (share <= 0 || asked <= 0) return 0;
  // The age at which an expert leaves: what was asked for since then fills the room.
  double low = 0;
  double high = 1;
  while (Held(rates, high) < room && high < 1e12) high *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (Held(rates, middle) < room ? low : high) = middle;
  }
  // When a layer asks, what it asked for last is a whole token old; that of all layers half a token on
  // average.
  const double layers = static_cast<double>(std::count_if(config.layers.begin(), config.layers.end(),
                                                          [](const auto& l) { return l.moe.experts > 0; }));
  const double age = std::max(0.0, high - (layers - 1) / (2 * layers));
  double hits = 0;
  for (const double rate : rates) hits += rate * -std::expm1(-rate * age);
  return std::clamp(hits / asked, 0.0, 1.0);
}

}  // namespace sluice::cli
