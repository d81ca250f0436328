// Scalar functions that host and reference share to the bit (ARITHMETIC.md 6 and 7).
//
// Thread safety: pure functions.
#pragma once

#include <cmath>
#include <cstdint>

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

}  // namespace sluice
