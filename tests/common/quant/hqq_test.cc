#include "common/base/hqq.h"

#include <bit>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "common/base/checksum.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

struct Result {
  GroupQuantizer quantizer;
  std::vector<uint8_t> codes;
  double squared_error = 0;
};

Result Quantized(const std::vector<float>& weights, uint32_t bits, bool solve = true) {
  Result result;
  result.codes.resize(weights.size());
  const auto quantize = solve ? QuantizeGroupHqq : QuantizeGroupNearest;
  result.quantizer = quantize(weights, bits, absl::MakeSpan(result.codes));
  for (size_t i = 0; i < weights.size(); ++i) {
    const double value =
        (static_cast<double>(result.codes[i]) - result.quantizer.zero) * result.quantizer.scale;
    result.squared_error += (weights[i] - value) * (weights[i] - value);
  }
  return result;
}

std::vector<float> Normal(uint32_t seed, size_t count, float mean = 0, float deviation = 0.02f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(mean, deviation);
  std::vector<float> weights(count);
  for (float& weight : weights) {
    weight = distribution(random);
  }
  return weights;
}

TEST(HqqTest, EqualValuesAreExact) {
  for (const float value : {0.0f, 0.5f, -0.375f, 60000.0f}) {
    for (const uint32_t bits : {2u, 3u, 4u, 8u}) {
      EXPECT_EQ(0.0, Quantized(std::vector<float>(64, value), bits).squared_error)
          << value << " bits " << bits;
    }
  }
}

TEST(HqqTest, EightBitErrorIsWithinHalfAStep) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> weights = Normal(seed, 16 + seed * 2);
    for (const uint32_t bits : {2u, 3u, 4u, 8u}) {
      const Result result = Quantized(weights, bits);
      for (const uint8_t code : result.codes) {
        EXPECT_LT(code, 1u << bits);
      }
    }
    const Result fine = Quantized(weights, 8);
    const double step = fine.quantizer.scale;
    EXPECT_LE(fine.squared_error, weights.size() * step * step);
  }
}

TEST(HqqTest, SolverBeatsRoundToNearestOnAverageAtLowBits) {
  for (const uint32_t bits : {2u, 3u, 4u}) {
    double solved = 0;
    double nearest = 0;
    for (uint32_t seed = 0; seed < 200; ++seed) {
      const std::vector<float> weights = Normal(seed, 64);
      solved += Quantized(weights, bits, true).squared_error;
      nearest += Quantized(weights, bits, false).squared_error;
    }
    EXPECT_LT(solved, nearest) << bits;
  }
}

TEST(HqqTest, GroupFarFromZeroLosesLittleToRoundedZero) {
  // Over the range of about 0.04 around 5 the zero is thousands of steps away, where f16 is coarse.
  const std::vector<float> weights = Normal(3, 64, 5.0f, 0.01f);
  for (const uint32_t bits : {4u, 8u}) {
    const Result result = Quantized(weights, bits);
    EXPECT_TRUE(std::isfinite(result.quantizer.scale) && std::isfinite(result.quantizer.zero));
    EXPECT_LT(std::sqrt(result.squared_error / 64), 5.0 / (1 << bits));
  }
}

TEST(HqqTest, ExtremeValuesGiveFiniteScaleAndZero) {
  for (const float magnitude : {1e-38f, 1e-7f, 1e4f, 3e38f}) {
    const Result result = Quantized({magnitude, -magnitude, magnitude / 3, 0.0f, -magnitude / 7}, 4);
    EXPECT_TRUE(std::isfinite(result.quantizer.scale)) << magnitude;
    EXPECT_TRUE(std::isfinite(result.quantizer.zero)) << magnitude;
    EXPECT_LE(std::fabs(result.quantizer.zero), 65504.0f);
  }
}

TEST(HqqTest, AShortTailGroupEqualsTheSameValuesAlone) {
  const std::vector<float> weights = Normal(9, 5);
  const Result once = Quantized(weights, 3);
  const Result again = Quantized(weights, 3);
  EXPECT_EQ(once.codes, again.codes);
  EXPECT_EQ(once.quantizer.scale, again.quantizer.scale);
  EXPECT_LT(once.squared_error, 5 * 0.02 * 0.02);
}

// Groups of every length and kind: small and large spread, on one side of 0, zeros of both signs.
std::vector<float> AnyGroup(std::mt19937* random) {
  std::vector<float> weights(1 + (*random)() % kMaxQuantGroup);
  const float spread = std::ldexp(1.0f, static_cast<int>((*random)() % 24) - 16);
  const float middle = (*random)() % 3 == 0 ? spread * static_cast<float>((*random)() % 5) : 0;
  const uint32_t kind = (*random)() % 8;
  for (float& weight : weights) {
    const auto step = static_cast<int32_t>((*random)() % 2001) - 1000;
    weight = middle + spread * static_cast<float>(step) / 1000;
    if (kind == 0) weight = std::fabs(weight);
    if (kind == 1 && (*random)() % 2 == 0) weight = (*random)() % 2 == 0 ? 0.0f : -0.0f;
  }
  return weights;
}

// A pack made by another release, or on a CPU with other vectors, holds the same bytes: the digest is that of
// the solver's output when its sums were plain loops.
TEST(HqqTest, BitsAreThoseOfTheFirstSolver) {
  std::mt19937 random(1);
  Hasher128 hasher;
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<float> weights = AnyGroup(&random);
    for (const uint32_t bits : {2u, 3u, 4u, 8u}) {
      const Result result = Quantized(weights, bits, i % 4 != 0);
      hasher.UpdateU64(std::bit_cast<uint32_t>(result.quantizer.scale));
      hasher.UpdateU64(std::bit_cast<uint32_t>(result.quantizer.zero));
      hasher.Update(std::as_bytes(std::span(result.codes)));
    }
  }
  EXPECT_EQ(hasher.Finish().ToHex(), "35040a8c0ee639081e65f123895e6b81");
}

}  // namespace
}  // namespace sluice
