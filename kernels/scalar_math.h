// Scalar functions that host and reference share to the bit (ARITHMETIC.md 6 and 7).
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "absl/types/span.h"

namespace sluice {

// The natural logarithm of y >= 1, to about 2^-44 of its value.
inline double LogOf(double y) {
  int exponent = 0;
  double f = std::frexp(y, &exponent);
  if (f < 0.70710678118654752) {
    f = f * 2;
    --exponent;
  }
  const double s = (f - 1) / (f + 1);
  const double z = s * s;
  double p = 1.0 / 15;
  for (int odd = 13; odd >= 1; odd -= 2) {
    p = p * z + 1.0 / odd;
  }
  return exponent * 0.69314718055994531 + 2 * s * p;
}

// softplus(x) from x and e = exp(x).
inline float SoftplusOf(float x, float e) {
  if (x > 20.0f || std::isnan(x)) {
    return x;
  }
  return e < 0x1p-24f ? e : static_cast<float>(LogOf(1 + double{e}));
}

// The factor of q at a position.
inline float TemperatureAt(uint32_t position, float scale, uint32_t floor, uint32_t offset) {
  const uint64_t steps = (uint64_t{position} + offset) / floor;
  return static_cast<float>(1 + double{scale} * LogOf(1 + static_cast<double>(steps)));
}

// Scalar conversions of bfloat16 and IEEE half, bit-equal to the vector instructions (round to nearest, ties
// to even, denormals kept), and unaligned loads.
//
// Thread safety: pure functions.

inline float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Rounds to nearest even; a NaN stays a (quiet) NaN.
inline uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float F16ToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) {
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0;
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t FloatToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: quiet, upper payload kept
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x47800000u) {  // 65536 and more
    return sign | 0x7c00u;
  }
  if (magnitude < 0x38800000u) {
    // Denormal in half: adding 0.5 puts the bits that stay at the end of the mantissa, rounded by the adder.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline uint16_t LoadU16(const void* place) {
  uint16_t value;
  std::memcpy(&value, place, sizeof value);
  return value;
}

inline float LoadF32(const void* place) {
  float value;
  std::memcpy(&value, place, sizeof value);
  return value;
}

// The number of experts that a row needs (AdapMoE eq. 8). Every device and the host use this rule.
//
// Thread safety: pure functions.

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
