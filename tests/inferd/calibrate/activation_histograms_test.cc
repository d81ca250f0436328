// Quantiles from histograms against sorted values.
#include "inferd/calibrate/activation_histograms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "common/profile/threshold_tables.h"

namespace sluice::inferd {
namespace {

// Returns the ceil(i n / steps)-th smallest value.
float OrderStatistic(const std::vector<float>& sorted, size_t i, size_t steps) {
  const size_t rank = (i * sorted.size() + steps - 1) / steps;
  return rank == 0 ? 0 : sorted[rank - 1];
}

std::vector<float> NormalValues(uint64_t seed, size_t count, float scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> SortedMagnitudes(std::vector<float> values) {
  for (float& value : values) value = std::abs(value);
  std::sort(values.begin(), values.end());
  return values;
}

TEST(ActivationHistogramsTest, QuantilesAreWithinHalfABucket) {
  for (const int bits : {4, 7, 10}) {
    const std::vector<float> values = NormalValues(1, 3000, 0.7f);
    ActivationHistograms histograms(2, bits);
    for (const float value : values) histograms.Add(1, value);
    std::vector<float> points(201);
    ASSERT_TRUE(histograms.Quantiles(1, 1, EvenShares(201), absl::MakeSpan(points)));
    EXPECT_FALSE(histograms.Quantiles(0, 1, EvenShares(201), absl::MakeSpan(points)));
    const std::vector<float> sorted = SortedMagnitudes(values);
    for (size_t i = 1; i < points.size(); ++i) {
      const float exact = OrderStatistic(sorted, i, 200);
      EXPECT_NEAR(points[i] / exact, 1, std::ldexp(1.0, -bits)) << bits << " bits, point " << i;
    }
    EXPECT_EQ(points[0], 0);
    EXPECT_TRUE(std::is_sorted(points.begin(), points.end()));
  }
}

// The measure is the share of values below the threshold.
TEST(ActivationHistogramsTest, ShareBelowAQuantileIsAccurateForManyValues) {
  const std::vector<float> values = NormalValues(2, 1'000'000, 0.03f);
  ActivationHistograms histograms(1, 10);
  for (const float value : values) histograms.Add(0, value);
  std::vector<float> points(201);
  ASSERT_TRUE(histograms.Quantiles(0, 1, EvenShares(201), absl::MakeSpan(points)));
  const std::vector<float> sorted = SortedMagnitudes(values);
  for (const size_t i : {100u, 120u, 140u, 160u, 180u}) {
    const auto below = std::lower_bound(sorted.begin(), sorted.end(), points[i]) - sorted.begin();
    EXPECT_NEAR(static_cast<double>(below) / 1e6, static_cast<double>(i) / 200, 5e-5);
  }
}

// Looks up calibrated thresholds as masks do: the share kept by a target (or, near zero, skipped) is off by
// at most a few percent, within the sample's resolution.
TEST(ActivationHistogramsTest, TargetsNearZeroAndOneAreMet) {
  const std::vector<float> values = NormalValues(4, 4'000'000, 0.3f);
  ActivationHistograms histograms(1, 10);
  for (const float value : values) histograms.Add(0, value);
  ThresholdTables tables("", 1, {1}, FineShares());
  ASSERT_TRUE(histograms.Quantiles(0, 1, tables.shares(), tables.table(Lead::kUp, 0, 0)));
  const std::vector<float> sorted = SortedMagnitudes(values);
  for (const double target : {0.0001, 0.0007, 0.003, 0.012, 0.5, 0.9, 0.9823, 0.991, 0.9925, 0.9963, 0.997,
                              0.998, 0.999, 0.9993, 0.9999, 0.99995}) {
    const float threshold = tables.Threshold(Lead::kUp, 0, 0, target);
    const auto below = std::lower_bound(sorted.begin(), sorted.end(), threshold) - sorted.begin();
    const double achieved = static_cast<double>(below) / static_cast<double>(sorted.size());
    EXPECT_NEAR(achieved, target, 0.02 * std::min(target, 1 - target)) << target;
  }
}

TEST(ActivationHistogramsTest, PooledTablesEqualTheUnion) {
  ActivationHistograms histograms(3, 10);
  ActivationHistograms together(1, 10);
  for (uint64_t table = 0; table < 3; ++table) {
    for (const float value : NormalValues(table, 100 * (table + 1), 1.0f + static_cast<float>(table))) {
      histograms.Add(table, value);
      together.Add(0, value);
    }
  }
  std::vector<float> pooled(101);
  std::vector<float> expected(101);
  ASSERT_TRUE(histograms.Quantiles(0, 3, EvenShares(101), absl::MakeSpan(pooled)));
  ASSERT_TRUE(together.Quantiles(0, 1, EvenShares(101), absl::MakeSpan(expected)));
  EXPECT_EQ(pooled, expected);
  EXPECT_EQ(histograms.Count(2), 300u);
}

TEST(ActivationHistogramsTest, ExtremeValuesFallIntoEndBuckets) {
  ActivationHistograms histograms(3, 4);
  for (const float value : {0.0f, -0.0f, 1e-38f, std::numeric_limits<float>::denorm_min()}) {
    histograms.Add(0, value);
  }
  std::vector<float> points(3);
  ASSERT_TRUE(histograms.Quantiles(0, 1, EvenShares(3), absl::MakeSpan(points)));
  EXPECT_LT(points[2], 1e-8f);
  EXPECT_FALSE(histograms.HasHugeValue(0));
  histograms.Add(1, std::numeric_limits<float>::infinity());
  EXPECT_TRUE(histograms.HasHugeValue(1));
  histograms.Add(2, -std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(histograms.HasHugeValue(2));
}

TEST(ActivationHistogramsTest, SavedStateIsRestoredAndContinued) {
  const std::vector<float> values = NormalValues(3, 1000, 1);
  ActivationHistograms whole(2, 7);
  ActivationHistograms half(2, 7);
  for (size_t i = 0; i < 500; ++i) half.Add(i % 2, values[i]);
  std::string state;
  half.Save(&state);
  ActivationHistograms resumed(2, 7);
  ByteReader reader(state, "state");
  ASSERT_TRUE(resumed.Load(&reader).ok());
  ASSERT_TRUE(reader.Finish().ok());
  for (size_t i = 500; i < 1000; ++i) resumed.Add(i % 2, values[i]);
  for (size_t i = 0; i < 1000; ++i) whole.Add(i % 2, values[i]);
  std::string a;
  std::string b;
  whole.Save(&a);
  resumed.Save(&b);
  EXPECT_EQ(a, b);
  ActivationHistograms other(2, 8);
  ByteReader again(state, "state");
  EXPECT_FALSE(other.Load(&again).ok());
}

TEST(ActivationHistogramsTest, MemoryBudgetSetsTheBucketWidth) {
  EXPECT_EQ(ActivationHistograms::MantissaBitsFor(144, 768ull << 20), 10);
  EXPECT_EQ(ActivationHistograms::MantissaBitsFor(3 * 48 * 128, 768ull << 20), 7);
  EXPECT_EQ(ActivationHistograms::MantissaBitsFor(3 * 48 * 128, 0), 4);
}

}  // namespace
}  // namespace sluice::inferd
