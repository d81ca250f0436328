// 16-bit conversions against exact arithmetic, over every 16-bit value and every rounding boundary.
#include "common/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace sluice {
namespace {

// Value of a half or bfloat16 by its definition, in double.
double Meaning(uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = std::ldexp(bits & ((1 << fraction_bits) - 1), -fraction_bits);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

struct Format {
  int exponent_bits;
  int fraction_bits;
  uint16_t infinity;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
};
const Format kFormats[] = {{5, 10, 0x7c00, F16ToFloat, FloatToF16}, {8, 7, 0x7f80, Bf16ToFloat, FloatToBf16}};

TEST(Half, WideningIsExactAndNarrowingInvertsIt) {
  for (const Format& f : kFormats) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      if ((bits & 0x7fff) >= f.infinity) continue;
      const float value = f.widen(static_cast<uint16_t>(bits));
      ASSERT_EQ(static_cast<double>(value),
                Meaning(static_cast<uint16_t>(bits), f.exponent_bits, f.fraction_bits));
      ASSERT_EQ(f.narrow(value), bits);
    }
  }
}

TEST(Half, NarrowingRoundsToNearestAndTiesToEven) {
  for (const Format& f : kFormats) {
    for (uint16_t bits = 0; bits + 1 < f.infinity; ++bits) {
      const double low = Meaning(bits, f.exponent_bits, f.fraction_bits);
      const double high = Meaning(bits + 1, f.exponent_bits, f.fraction_bits);
      const float middle = static_cast<float>((low + high) / 2);
      ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);  // exact: one more fraction bit
      const uint16_t even = bits % 2 == 0 ? bits : bits + 1;
      ASSERT_EQ(f.narrow(middle), even);
      ASSERT_EQ(f.narrow(std::nextafter(middle, 0.0f)), bits);
      ASSERT_EQ(f.narrow(std::nextafter(middle, INFINITY)), bits + 1);
      ASSERT_EQ(f.narrow(-middle), even | 0x8000);
    }
  }
}

TEST(Half, LargeValuesBecomeInfinityAndNanStaysNan) {
  for (const Format& f : kFormats) {
    EXPECT_EQ(f.narrow(INFINITY), f.infinity);
    EXPECT_EQ(f.narrow(-INFINITY), f.infinity | 0x8000);
    EXPECT_EQ(f.narrow(std::numeric_limits<float>::max()), f.infinity);
    EXPECT_TRUE(std::isinf(f.widen(f.infinity)));
    EXPECT_TRUE(std::isnan(f.widen(f.narrow(NAN))));
    EXPECT_TRUE(std::isnan(f.widen(static_cast<uint16_t>(f.infinity + 1))));
  }
  EXPECT_EQ(FloatToF16(65519.996f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
}

}  // namespace
}  // namespace sluice
