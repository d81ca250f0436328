// Exact conversion of the 8- and 4-bit floats of checkpoints to float32.
//
// Thread safety: pure functions.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "absl/types/span.h"

namespace sluice {

// E4M3 without infinities: sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x7f and 0xff are NaN.
inline constexpr float E4m3ToFloat(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude < 8) {  // subnormal: mantissa * 2^-9
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f));
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

// Computes E4m3ToFloat(code) * scale for each of `codes`; the bits of a resulting NaN are unspecified.
void ScaleE4m3(absl::Span<const uint8_t> codes, float scale, float* out);

// E8M0: 2^(bits - 127); 255 is NaN, 0 is a subnormal float32.
inline constexpr float E8m0ToFloat(uint8_t bits) {
  if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
  return bits == 0 ? 0x1p-127f : std::bit_cast<float>(static_cast<uint32_t>(bits) << 23);
}

// E2M1: bit 3 is the sign, the low three bits choose the magnitude.
inline constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace sluice
