#include "inferd/forward/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace sluice::inferd {
namespace {

uint64_t MixBits(uint64_t x) {  // the finalizer of splitmix64
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

constexpr uint32_t kLanes = 16;  // independent sums, so that the compiler may use vectors

float MaxOf(absl::Span<const float> values) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    }
  }
  float best = *std::max_element(lanes, lanes + kLanes);
  for (; i < values.size(); ++i) {
    best = std::max(best, values[i]);
  }
  return best;
}

// Copies the logits of the allowed tokens; the others get -infinity. An empty mask allows all.
void CopyAllowed(absl::Span<const float> logits, absl::Span<const uint32_t> allowed, float* out) {
  if (allowed.empty()) {
    std::copy(logits.begin(), logits.end(), out);
    return;
  }
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (size_t begin = 0; begin < logits.size(); begin += 32) {
    const size_t end = std::min(begin + 32, logits.size());
    const uint32_t word = allowed[begin / 32];
    if (word == 0) {  // most words of most masks
      std::fill(out + begin, out + end, kNever);
      continue;
    }
    for (size_t i = begin; i < end; ++i) {
      out[i] = (word >> (i - begin) & 1) != 0 ? logits[i] : kNever;
    }
  }
}

}  // namespace

// A hash of seed and position rather than a generator's next number: a sequence that is preempted and
// computed anew, or shares its batch with others, draws the same numbers.
double UniformAt(uint64_t seed, uint64_t position) {
  const uint64_t bits =
      MixBits(MixBits(seed + 0x9e3779b97f4a7c15ull) + (position + 1) * 0xd1b54a32d192ed03ull);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

float SamplerExp(float x) {
  // Cody-Waite reduction and the polynomial of kernels/ARITHMETIC.md 7, but without fma: this file is
  // compiled for plain x86-64. Selects, not branches, so that loops over it become vector code.
  const float clamped = x > -87.0f ? x : -87.0f;
  const float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const float power = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return x > -87.0f ? p * power : 0.0f;
}

void TokenCounts::Reserve(uint32_t tokens) {
  items_.clear();
  items_.reserve(tokens);
  slots_.assign(tokens == 0 ? 0 : std::bit_ceil(size_t{tokens} * 2), 0);
}

// Open addressing in a table at most half full, so that a search ends; 0 marks a free slot, other values are
// indices in items_ plus one.
TokenCounts::Item* TokenCounts::Find(int32_t token) {
  const size_t mask = slots_.size() - 1;
  size_t at = MixBits(static_cast<uint32_t>(token)) & mask;
  while (slots_[at] != 0) {
    Item* item = &items_[slots_[at] - 1];
    if (item->token == token) {
      return item;
    }
    at = (at + 1) & mask;
  }
  items_.push_back({token, 0, 0});
  slots_[at] = static_cast<uint32_t>(items_.size());
  return &items_.back();
}

Sampler::Sampler(uint32_t vocab)
    : adjusted_(vocab), weights_(vocab), block_mass_((vocab + kBlock - 1) / kBlock) {
  candidates_.reserve(vocab);
}

// Returns the logits with mask, penalties, biases and bans applied; without any, the input's own logits,
// which saves copying a row of the vocabulary.
absl::Span<const float> Sampler::Adjust(const SampleInput& input) {
  const SamplingParams& params = *input.params;
  const bool penalties = input.counts != nullptr && HasPenalties(params);
  if (!penalties && params.logit_bias.empty() && input.banned.empty() && input.allowed.empty()) {
    return input.logits;
  }
  CopyAllowed(input.logits, input.allowed, adjusted_.data());
  if (penalties) {
    for (const TokenCounts::Item& item : input.counts->items()) {
      float& logit = adjusted_[item.token];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
      logit -= params.frequency_penalty * static_cast<float>(item.generated);
      logit -= item.generated > 0 ? params.presence_penalty : 0.0f;
    }
  }
  for (const auto& [id, bias] : params.logit_bias) {
    adjusted_[id] += bias;
  }
  for (const int32_t id : input.banned) {
    adjusted_[id] = -std::numeric_limits<float>::infinity();
  }
  return absl::MakeConstSpan(adjusted_.data(), input.logits.size());
}

int32_t Sampler::Sample(const SampleInput& input) {
  const SamplingParams& params = *input.params;
  const absl::Span<const float> logits = Adjust(input);
  const float best = MaxOf(logits);
  if (params.temperature < kGreedyTemperature || params.top_k == 1) {
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), best) - logits.begin());
  }
  const float inverse_temperature = 1.0f / params.temperature;
  const double u = UniformAt(input.seed, input.position);
  if (params.top_k > 0 && params.top_k < logits.size()) {
    SelectBest(logits, params.top_k);
    double mass = 0;
    for (const Candidate& candidate : candidates_) {
      mass += SamplerExp((candidate.logit - best) * inverse_temperature);
    }
    return DrawFromBest(params, best, inverse_temperature, mass, u);
  }
  if (params.top_p >= 1.0f && params.min_p <= 0.0f) {
    return DrawFromAll(logits, best, inverse_temperature, u);
  }
  // Maximum distance of a logit below the best, in units of the temperature. Below ln(min_p) a candidate is
  // dropped anyway, and below e^-87 its weight is 0; the bound is slightly lower, so that its rounding
  // decides nothing.
  const float deepest = params.min_p > 0.0f ? std::log(params.min_p) - 0.01f : -88.0f;
  if (params.top_p >= 1.0f) {
    SelectAbove(logits, best + deepest * params.temperature);
    return DrawFromBest(params, best, inverse_temperature, 0, u);
  }
  const double mass = MassOf(logits, best, inverse_temperature);
  // Top-p needs only candidates down to an unknown depth. Most rows reach the share within a few e-folds of
  // the best, and sorting these candidates is cheap; otherwise the search doubles the depth.
  for (float depth = -3.0f;; depth *= 2) {
    depth = std::max(depth, deepest);
    const double reached = SelectAbove(logits, best + depth * params.temperature);
    if (reached >= params.top_p * mass || depth == deepest) {
      return DrawFromBest(params, best, inverse_temperature, mass, u);
    }
  }
}

// Puts the k best into candidates_, best first, ties to the lower id.
void Sampler::SelectBest(absl::Span<const float> logits, uint32_t k) {
  candidates_.clear();
  constexpr uint32_t kHeapLimit = 1024;  // beyond it one selection over all is faster than a large heap
  if (k > kHeapLimit) {
    for (size_t i = 0; i < logits.size(); ++i) {
      candidates_.push_back({logits[i], static_cast<int32_t>(i)});
    }
    std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(), Better);
    candidates_.resize(k);
    std::sort(candidates_.begin(), candidates_.end(), Better);
    return;
  }
  for (size_t i = 0; i < k; ++i) {
    candidates_.push_back({logits[i], static_cast<int32_t>(i)});
  }
  std::make_heap(candidates_.begin(), candidates_.end(), Better);  // the worst is in front
  for (size_t i = k; i < logits.size(); ++i) {
    if (logits[i] > candidates_.front().logit) {
      std::pop_heap(candidates_.begin(), candidates_.end(), Better);
      candidates_.back() = {logits[i], static_cast<int32_t>(i)};
      std::push_heap(candidates_.begin(), candidates_.end(), Better);
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), Better);
}

// Puts all candidates not below `lowest` into candidates_, in id order, and returns the sum of their
// weights_, which is meaningful only after MassOf().
double Sampler::SelectAbove(absl::Span<const float> logits, float lowest) {
  candidates_.clear();
  double mass = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= lowest) {
      candidates_.push_back({logits[i], static_cast<int32_t>(i)});
      mass += weights_[i];
    }
  }
  return mass;
}

// Fills weights_ and block_mass_ and returns the sum of all. The additions form a fixed tree over blocks and
// lanes, so the sum is the same on every machine.
double Sampler::MassOf(absl::Span<const float> logits, float best, float inverse_temperature) {
  float* const weights = weights_.data();
  const float* const values = logits.data();
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = SamplerExp((values[i] - best) * inverse_temperature);
  }
  double mass = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t end = std::min(begin + kBlock, logits.size());
    float lanes[kLanes] = {};  // at most 32 weights of at most 1 each: almost no bits are lost
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += weights[i + lane];
      }
    }
    double block = 0;
    for (; i < end; ++i) {
      block += weights[i];
    }
    for (const float lane : lanes) {
      block += lane;
    }
    block_mass_[begin / kBlock] = block;
    mass += block;
  }
  return mass;
}

int32_t Sampler::DrawFromAll(absl::Span<const float> logits, float best, float inverse_temperature,
                             double u) {
  double left = u * MassOf(logits, best, inverse_temperature);
  size_t block = 0;
  const size_t blocks = (logits.size() + kBlock - 1) / kBlock;
  while (block + 1 < blocks && block_mass_[block] <= left) {
    left -= block_mass_[block++];
  }
  // `left` was rounded at each subtraction: it may exceed the block slightly, or lead into a last block of
  // weight 0. Then the last token of non-zero weight is drawn.
  int32_t last = -1;
  for (size_t i = block * kBlock; i < std::min((block + 1) * kBlock, logits.size()); ++i) {
    if (weights_[i] > 0.0f) {
      last = static_cast<int32_t>(i);
      left -= weights_[i];
      if (left < 0) {
        return last;
      }
    }
  }
  for (size_t i = block * kBlock; last < 0 && i > 0; --i) {
    last = weights_[i - 1] > 0.0f ? static_cast<int32_t>(i - 1) : -1;
  }
  return last;
}

// Cuts candidates_ by top-p and min-p and draws one. candidates_ may be in any order, but then `mass` must be
// the whole row's.
int32_t Sampler::DrawFromBest(const SamplingParams& params, float best, float inverse_temperature,
                              double mass, double u) {
  const double enough = params.top_p < 1.0f ? params.top_p * mass : std::numeric_limits<double>::infinity();
  double kept = 0;
  size_t count = 0;
  size_t sorted = 0;
  while (count < candidates_.size() && kept < enough) {
    if (count == sorted) {  // sort a few more; most draws need few
      const size_t further = std::min(candidates_.size(), std::max<size_t>(64, sorted * 4));
      if (further < candidates_.size()) {
        std::nth_element(candidates_.begin() + sorted, candidates_.begin() + further, candidates_.end(),
                         Better);
      }
      std::sort(candidates_.begin() + sorted, candidates_.begin() + further, Better);
      sorted = further;
    }
    const float weight = SamplerExp((candidates_[count].logit - best) * inverse_temperature);
    if (count > 0 && weight < params.min_p) {
      break;
    }
    weights_[count] = weight;
    kept += weight;
    ++count;
  }
  const double target = u * kept;
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += weights_[i];
    if (sum > target) {
      return candidates_[i].id;
    }
  }
  return candidates_[count - 1].id;
}

}  // namespace sluice::inferd
