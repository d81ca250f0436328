// Rope tables against transformers' frequencies.
#include "kernels/rope_table.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

// Frequencies as transformers computes them, in float32: a few roundings and a power.
void ExpectTransformersValues(const RopeConfig& rope, bool long_sequence, const std::string& name) {
  SCOPED_TRACE(name);
  const Goldens goldens;
  const std::vector<float>& expected = goldens.Floats("rope." + name + ".frequencies");
  const auto frequencies = RopeFrequencies(rope, long_sequence);
  ASSERT_TRUE(frequencies.ok()) << frequencies.status();
  ASSERT_EQ(frequencies->size(), expected.size());
  const uint32_t positions = 300;
  const auto table = ComputeRopeTable(rope, positions, long_sequence);
  ASSERT_TRUE(table.ok()) << table.status();
  const double factor = goldens.Floats("rope." + name + ".attention_factor")[0];
  const size_t half = expected.size();
  for (size_t i = 0; i < half; ++i) {
    const double tolerance = expected[i] * 16 * kRoundoff;
    ASSERT_NEAR((*frequencies)[i], expected[i], tolerance) << "pair " << i;
    for (const uint32_t p : {0u, 1u, 17u, 299u}) {
      ASSERT_NEAR((*table)[p * 2 * half + i], factor * std::cos(p * double{expected[i]}),
                  factor * (p * tolerance + 2 * kRoundoff));
      ASSERT_NEAR((*table)[p * 2 * half + half + i], factor * std::sin(p * double{expected[i]}),
                  factor * (p * tolerance + 2 * kRoundoff));
    }
  }
}

RopeConfig Rope(RopeKind kind, double theta) {
  RopeConfig rope;
  rope.kind = kind;
  rope.theta = theta;
  rope.dimensions = 32;
  return rope;
}

TEST(RopeTableTest, EveryKindGivesTheFrequenciesOfTransformers) {
  const Goldens goldens;
  RopeConfig linear = Rope(RopeKind::kLinear, 10000);
  linear.factor = 4;
  ExpectTransformersValues(linear, false, "linear");

  RopeConfig yarn = Rope(RopeKind::kYarn, 10000);
  yarn.factor = 40;
  yarn.original_max_position = 4096;
  yarn.attention_factor = 0.1 * std::log(40.0) + 1;
  ExpectTransformersValues(yarn, false, "yarn");

  RopeConfig exact = Rope(RopeKind::kYarn, 150000);
  exact.factor = 32;
  exact.original_max_position = 4096;
  exact.attention_factor = 0.1 * std::log(32.0) + 1;
  exact.truncate = false;
  ExpectTransformersValues(exact, false, "yarn_exact_range");

  RopeConfig llama = Rope(RopeKind::kLlama3, 500000);
  llama.factor = 8;
  llama.original_max_position = 8192;
  ExpectTransformersValues(llama, false, "llama3");

  RopeConfig longrope = Rope(RopeKind::kLongRope, 10000);
  longrope.original_max_position = 4096;
  const std::vector<float>& short_factors = goldens.Floats("rope.short_factors");
  const std::vector<float>& long_factors = goldens.Floats("rope.long_factors");
  longrope.short_factors.assign(short_factors.begin(), short_factors.end());
  longrope.long_factors.assign(long_factors.begin(), long_factors.end());
  longrope.attention_factor = std::sqrt(1 + std::log(32.0) / std::log(4096.0));
  longrope.long_attention_factor = longrope.attention_factor;
  ExpectTransformersValues(longrope, false, "longrope");
  ExpectTransformersValues(longrope, true, "longrope.long");
}

TEST(RopeTableTest, LongTextsHaveTheirOwnAttentionFactor) {
  RopeConfig rope = Rope(RopeKind::kLongRope, 10000);
  rope.short_factors.assign(16, 1.0);
  rope.long_factors.assign(16, 2.0);
  rope.attention_factor = 1.25;
  rope.long_attention_factor = 1.5;
  const auto short_table = ComputeRopeTable(rope, 2, false);
  const auto long_table = ComputeRopeTable(rope, 2, true);
  ASSERT_TRUE(short_table.ok() && long_table.ok());
  EXPECT_EQ((*short_table)[0], 1.25f);
  EXPECT_EQ((*long_table)[0], 1.5f);
  EXPECT_EQ((*long_table)[32], static_cast<float>(1.5 * std::cos(0.5)));
}

TEST(RopeTableTest, WhatAKindCannotUseIsRefusedByName) {
  const auto refused = [](const RopeConfig& rope, const std::string& words) {
    const auto table = ComputeRopeTable(rope, 4);
    ASSERT_FALSE(table.ok());
    EXPECT_NE(std::string(table.status().message()).find(words), std::string::npos) << table.status();
  };
  refused(Rope(RopeKind::kDynamic, 10000), "dynamic");
  refused(Rope(static_cast<RopeKind>(77), 10000), "77");
  refused(Rope(RopeKind::kDefault, 0), "theta is 0");
  RopeConfig rope = Rope(RopeKind::kLinear, 10000);
  rope.factor = -1;
  refused(rope, "factor is -1");
  refused(Rope(RopeKind::kYarn, 10000), "original_max_position is 0");
  rope = Rope(RopeKind::kLlama3, 10000);
  rope.original_max_position = 100;
  rope.high_freq_factor = rope.low_freq_factor;
  refused(rope, "high_freq_factor");
  rope = Rope(RopeKind::kLongRope, 10000);
  rope.short_factors.assign(15, 1.0);
  refused(rope, "15 numbers for 16 pairs");
  rope.short_factors.assign(16, 0.0);
  refused(rope, "short_factors is 0");
  rope = Rope(RopeKind::kDefault, 10000);
  rope.dimensions = 7;
  refused(rope, "dimensions are 7");
}

}  // namespace
}  // namespace sluice
