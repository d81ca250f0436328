// Files of a profile: round trips; another model's file is refused, damage is named.
#include "common/profile/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "common/profile/predictor_weights.h"
#include "common/profile/profile_file.h"
#include "common/profile/threshold_tables.h"
#include "tests/support/mutator.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr char kSource[] = "00112233445566778899aabbccddeeff";
constexpr char kModel[] = "ffeeddccbbaa99887766554433221100";
constexpr char kOther[] = "0123456789abcdef0123456789abcdef";

// Layers of 2, 0 (dense) and 3 experts, hidden 4.
ModelConfig Config() {
  ModelConfig config;
  config.hidden = 4;
  config.layers.resize(3);
  config.layers[0].moe.experts = 2;
  config.layers[2].moe.experts = 3;
  return config;
}

// Two adjacent routed layers, as learned predictors need them.
ModelConfig RoutedConfig() {
  ModelConfig config = Config();
  config.layers[1].moe.experts = 2;
  return config;
}

UsageProfile Usage() { return {kSource, 10, {{3, 7}, {}, {5, 10, 5}}}; }

ThresholdTables Thresholds() {
  ThresholdTables tables(kModel, 10, {2, 0, 3}, EvenShares(5));
  for (const Lead lead : {Lead::kUp, Lead::kGate, Lead::kProduct}) {
    for (size_t i = 0; i < 5; ++i) {
      tables.pooled(lead)[i] = 0.5f * static_cast<float>(i);
      tables.table(lead, 0, 1)[i] = static_cast<float>(i * (1 + static_cast<size_t>(lead)));
      tables.table(lead, 2, 2)[i] = 10.0f * static_cast<float>(i);
    }
  }
  return tables;
}

PredictorProfile Predictors() {
  PredictorProfile profile{kModel, 10, {}, {}};
  // Layer 0: inputs hidden 4 + 2 + 2 (none before), one unit, 2 outputs.
  profile.learned.push_back({0, {8, 1, 2, 0.75, std::vector<float>(8, 0.5f), {-1}, {1, -2}, {0, 3}}});
  profile.learned.push_back({1, {8, 0, 3, 0.5, {}, {}, std::vector<float>(24, 0.25f), {1, 2, 3}}});
  profile.first_layer = FirstLayerGate{true, 0.125, {4, 0, 2, 0.5, {}, {}, std::vector<float>(8, 1), {0, 1}}};
  return profile;
}

TEST(ProfileTest, UsageComesBackAndRanksByUseThenById) {
  const auto usage = ParseUsage(SerializeUsage(Usage()), "u", Config(), kSource);
  ASSERT_TRUE(usage.ok()) << usage.status();
  EXPECT_EQ(usage->tokens, 10u);
  EXPECT_EQ(usage->experts, Usage().experts);
  EXPECT_EQ(usage->Ranked(0), (std::vector<uint32_t>{1, 0}));
  EXPECT_EQ(usage->Ranked(2), (std::vector<uint32_t>{1, 0, 2}));
}

TEST(ProfileTest, SensitivitiesAndCutoffsComeBack) {
  const SensitivityProfile sensitivity{kSource, 10, {{-0.5, -0.1, 0.2}, {}, {1e9, 0, 1}}};
  const auto s = ParseSensitivity(SerializeSensitivity(sensitivity), "s", Config(), kSource);
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_EQ(s->layers[0].measured, -0.5);
  EXPECT_EQ(s->layers[0].mean_square, 0.2);
  EXPECT_EQ(s->layers[2].measured, 1e9);
  const CutoffProfile cutoffs{kModel, 10, {{Lead::kGate, 0.01, 0.35, 0.0099}, {Lead::kUp, 0.02, 0, 0}}};
  const auto c = ParseCutoffs(SerializeCutoffs(cutoffs), "c", kModel);
  ASSERT_TRUE(c.ok()) << c.status();
  ASSERT_EQ(c->cutoffs.size(), 2u);
  EXPECT_EQ(c->cutoffs[0].sparsity, 0.35);
  EXPECT_EQ(c->cutoffs[1].lead, Lead::kUp);
}

// Version 0.1 wrote other definitions of a sensitivity beside the measured one.
TEST(ProfileTest, SensitivitiesOfAnOlderVersionAreRead) {
  std::string zeros = "0";
  for (int i = 1; i < 101; ++i) zeros += ",0";
  const std::string kind = R"({"thresholds": [)" + zeros + R"(], "rises": [{"share": 0.1, "rise": 0.5}]})";
  const std::string head =
      R"({"format": 1, "source_digest": ")" + std::string(kSource) + R"(", "tokens": 1, )";
  const auto gating =
      ParseGating(head + R"("held_out": 1, "kinds": {"fisher": )" + kind + R"(, "measured": )" + kind + "}}",
                  "g", kSource);
  ASSERT_TRUE(gating.ok()) << gating.status();
  EXPECT_EQ(gating->table.rises[0].rise, 0.5);
  const std::string layer =
      R"({"measured": 2, "fisher": 3, "quadratic": 4, "loss_rise": 1, "mean_square": 0.5})";
  const auto sensitivity = ParseSensitivity(
      head + R"("layers": [)" + layer + "," + layer + "," + layer + "]}", "s", Config(), kSource);
  ASSERT_TRUE(sensitivity.ok()) << sensitivity.status();
  EXPECT_EQ(sensitivity->layers[1].measured, 2);
  EXPECT_TRUE(absl::IsDataLoss(
      ParseGating(head + R"("held_out": 1, "kinds": {"fisher": )" + kind + "}}", "g", kSource).status()));
}

TEST(ProfileTest, AnotherModelsFileIsRefusedNamingBothIds) {
  const auto check = [](const absl::Status& status, const char* stored) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(stored));
    EXPECT_THAT(std::string(status.message()), HasSubstr(kOther));
    EXPECT_THAT(std::string(status.message()), HasSubstr("sluice calibrate"));
  };
  check(ParseUsage(SerializeUsage(Usage()), "u", Config(), kOther).status(), kSource);
  check(ParseCutoffs(SerializeCutoffs({kModel, 1, {}}), "c", kOther).status(), kModel);
  check(ParseThresholds(SerializeThresholds(Thresholds()), "t", {2, 0, 3}, kOther).status(), kModel);
  check(ParsePredictors(SerializePredictors(Predictors()), "p", RoutedConfig(), kOther).status(), kModel);
  EXPECT_TRUE(ParseUsage(SerializeUsage(Usage()), "u", Config(), "").ok());
}

TEST(ProfileTest, AMissingFileNamesTheCommandThatMakesIt) {
  TempDir dir;
  const absl::Status status = ReadUsage(dir.path(), Config(), kSource).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sluice calibrate"));
}

TEST(ProfileTest, FilesAreFoundInAPackAndInAFolderOfTheirOwn) {
  TempDir dir;
  const std::string folder = dir.File("profile");
  EXPECT_EQ(ProfileFolder(dir.path()), folder);
  ASSERT_TRUE(WriteProfileFile(folder, kUsageName, SerializeUsage(Usage())).ok());
  ASSERT_TRUE(WriteProfileFile(folder, kThresholdsName, SerializeThresholds(Thresholds())).ok());
  EXPECT_EQ(ProfileFolder(dir.path()), folder);
  EXPECT_EQ(ProfileFolder(folder), folder);
  EXPECT_TRUE(ReadUsage(folder, Config(), kSource).ok());
  const auto tables = ReadThresholds(folder, Config(), kModel);
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_EQ(*tables, Thresholds());
}

TEST(ProfileTest, ThresholdsAreInterpolatedBetweenPoints) {
  const ThresholdTables tables = Thresholds();
  EXPECT_EQ(tables.Threshold(Lead::kUp, 0, 1, 0), 0);
  EXPECT_EQ(tables.Threshold(Lead::kUp, 0, 1, 0.25), 1);
  EXPECT_EQ(tables.Threshold(Lead::kProduct, 0, 1, 0.75), 9);
  EXPECT_EQ(tables.Threshold(Lead::kGate, 2, 2, 1), 40);
  EXPECT_FLOAT_EQ(tables.Threshold(Lead::kUp, 0, 1, 0.3), 1.2f);
  EXPECT_FLOAT_EQ(tables.PooledThreshold(Lead::kGate, 0.5), 1.0f);
  const ThresholdTables fine(kModel, 1, {1});
  for (int percent = 0; percent <= 100; ++percent) {
    EXPECT_EQ(fine.PooledThreshold(Lead::kUp, percent / 100.0), 0);  // no lookup leaves the table
  }
}

// Version 1 had no shares: its points are spaced evenly.
TEST(ProfileTest, ThresholdsOfAnOlderVersionAreRead) {
  std::string bytes = SerializeThresholds(Thresholds());
  constexpr size_t kSharesAt = 8 + 4 + 4 + 32 + 8 + 8 + 3 * 4;
  bytes.erase(kSharesAt, 5 * sizeof(double));
  bytes[8] = 1;
  bytes.resize(bytes.size() - 16);
  Seal(&bytes);
  const auto tables = ParseThresholds(bytes, "t", {2, 0, 3}, kModel);
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_EQ(*tables, Thresholds());
  EXPECT_TRUE(tables->Resolves(0.75));
  EXPECT_FALSE(tables->Resolves(0.76));
  EXPECT_TRUE(tables->Resolves(1));
}

TEST(ProfileTest, SharesOfThresholdsThatDoNotAscendAreDamage) {
  for (const std::vector<double>& shares : {std::vector<double>{0, 0.5, 0.5, 1}, {0, 0.5}, {0.1, 1}}) {
    const ThresholdTables tables(kModel, 1, {1}, shares);
    EXPECT_EQ(ParseThresholds(SerializeThresholds(tables), "t", {1}, kModel).status().code(),
              absl::StatusCode::kDataLoss);
  }
}

// Steps near the ends shrink in proportion to the distance from the end.
TEST(ProfileTest, FineSharesHoldEveryHalfPercentAndBothEnds) {
  const std::vector<double> shares = FineShares();
  for (const double share : EvenShares(kThresholdPoints)) {
    EXPECT_TRUE(std::binary_search(shares.begin(), shares.end(), share)) << share;
  }
  EXPECT_LT(shares.size(), 300u);
  for (size_t i = 1; i < shares.size(); ++i) {
    EXPECT_LT(shares[i - 1], shares[i]);
    const double from_end = std::min(shares[i], 1 - shares[i - 1]);
    EXPECT_LE(shares[i] - shares[i - 1], std::max(0.251 * from_end, 1.1e-6)) << shares[i];
  }
}

TEST(ProfileTest, PredictorsComeBackAndRunAsWritten) {
  const auto profile = ParsePredictors(SerializePredictors(Predictors()), "p", RoutedConfig(), kModel);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(*profile, Predictors());
  EXPECT_EQ(profile->Learned(2), nullptr);
  const PredictorNet* net = profile->Learned(0);
  ASSERT_NE(net, nullptr);
  const float x[8] = {1, 1, 1, 1, 0, 2, 0, 0};
  float unit = 0;
  float out[2];
  net->Run(x, &unit, out);
  EXPECT_FLOAT_EQ(unit, 2);  // relu(0.5 * 6 - 1)
  EXPECT_FLOAT_EQ(out[0], 2);
  EXPECT_FLOAT_EQ(out[1], -1);
}

TEST(ProfileTest, ShapesOfAnotherModelAreDamage) {
  EXPECT_EQ(ParseUsage(SerializeUsage(Usage()), "u", RoutedConfig(), kSource).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParseThresholds(SerializeThresholds(Thresholds()), "t", {2, 3}, kModel).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParsePredictors(SerializePredictors(Predictors()), "p", Config(), kModel).status().code(),
            absl::StatusCode::kDataLoss);
}

// `pack` reads the usage before the source, whose key it must match.
TEST(ProfileTest, UsageOfAnotherShapeIsRefusedWithoutKey) {
  const absl::Status status = ParseUsage(SerializeUsage(Usage()), "u", RoutedConfig(), "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another model"));
  ModelConfig fewer = Config();
  fewer.layers.pop_back();
  EXPECT_EQ(ParseUsage(SerializeUsage(Usage()), "u", fewer, "").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(ParseUsage(SerializeUsage(Usage()), "u", Config(), "").ok());
}

TEST(ProfileTest, ValuesThatCannotBeAreDamage) {
  UsageProfile usage = Usage();
  usage.experts[0][1] = 11;  // of 10 tokens
  EXPECT_THAT(std::string(ParseUsage(SerializeUsage(usage), "u", Config(), kSource).status().message()),
              HasSubstr("11"));
  ThresholdTables falling = Thresholds();
  falling.table(Lead::kUp, 2, 2)[4] = 1;
  EXPECT_EQ(ParseThresholds(SerializeThresholds(falling), "t", {2, 0, 3}, kModel).status().code(),
            absl::StatusCode::kDataLoss);
  PredictorProfile profile = Predictors();
  profile.learned[0].net.b2[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(ParsePredictors(SerializePredictors(profile), "p", RoutedConfig(), kModel).status().code(),
            absl::StatusCode::kDataLoss);
}

CacheProfile Uses() {
  LayerCacheProfile layer;
  layer.accesses = 20;
  layer.distances = {4, 8, 2};
  layer.squares.resize(LayerCacheProfile::kPoints);
  for (size_t i = 0; i < layer.squares.size(); ++i) layer.squares[i] = 0.0025 * static_cast<double>(i);
  layer.accuracy = {0.75, 0.5, 0};
  CacheProfile profile{kSource, 10, {{}, {}, layer}};
  profile.layers[0].accuracy = {};
  return profile;
}

ModelConfig LastLayerRouted() {
  ModelConfig config = Config();
  for (LayerConfig& layer : config.layers) layer.moe.experts = 0;
  config.layers[2].moe.experts = 3;
  config.layers[2].moe.top_k = 2;
  return config;
}

TEST(CacheProfile, ReadsWhatItWrote) {
  const auto parsed = ParseCacheProfile(SerializeCacheProfile(Uses()), "c", LastLayerRouted(), kSource);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->tokens, 10u);
  EXPECT_EQ(parsed->layers[2].accesses, 20u);
  EXPECT_EQ(parsed->layers[2].distances, Uses().layers[2].distances);
  EXPECT_EQ(parsed->layers[2].squares, Uses().layers[2].squares);
  EXPECT_EQ(parsed->layers[2].accuracy, Uses().layers[2].accuracy);
  EXPECT_FALSE(ParseCacheProfile(SerializeCacheProfile(Uses()), "c", LastLayerRouted(), "other").ok());
}

TEST(CacheProfile, ComputesMissCurveAndSingleExpertShare) {
  const LayerCacheProfile layer = Uses().layers[2];
  EXPECT_EQ(layer.MissCurve(10), (std::vector<double>{2, 1.6, 0.8, 0.6}));
  EXPECT_EQ(layer.SingleExpertShare(-0.1), 0);
  EXPECT_EQ(layer.SingleExpertShare(0.25), 1);
  EXPECT_NEAR(layer.SingleExpertShare(0.06), 0.24, 1e-12);
}

TEST(CacheProfile, DamageIsNeverWorseThanAnError) {
  const std::string text = SerializeCacheProfile(Uses());
  const ModelConfig config = LastLayerRouted();
  Mutator mutator(4);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto parsed = ParseCacheProfile(mutator.Mutate(text), "c", config, kSource);
    refused += !parsed.ok();
    if (parsed.ok()) {
      EXPECT_GE(parsed->layers[2].MissCurve(parsed->tokens).back(), 0);
    }
  }
  EXPECT_GT(refused, 1500);
}

// Damaged bytes are refused or form another valid value; memory and time stay bounded in both cases.
TEST(ProfileMutation, DamageIsNeverWorseThanAnError) {
  const ModelConfig config = Config();
  const std::string texts[] = {SerializeUsage(Usage()),
                               SerializeSensitivity({kSource, 10, {{1, 4, 0.5}, {}, {}}}),
                               SerializeCutoffs({kModel, 9, {{Lead::kGate, 0.01, 0.35, 0.0099}}})};
  Mutator mutator(1);
  int refused = 0;
  for (int i = 0; i < 6000; ++i) {
    const std::string text = mutator.Mutate(texts[i % 3]);
    const auto usage = ParseUsage(text, "u", config, kSource);
    refused += !usage.ok() && !ParseSensitivity(text, "s", config, kSource).ok() &&
               !ParseCutoffs(text, "c", kModel).ok();
    if (usage.ok()) {
      EXPECT_EQ(usage->Ranked(2).size(), 3u);
    }
  }
  EXPECT_GT(refused, 3000);
}

// The seal detects accidents; here it is recomputed, so that the parser behind it sees the damage.
TEST(ProfileMutation, SealedDamageIsNeverWorseThanAnError) {
  const ModelConfig routed = RoutedConfig();
  const std::string thresholds = SerializeThresholds(Thresholds());
  const std::string predictors = SerializePredictors(Predictors());
  Mutator mutator(2);
  int refused = 0;
  for (int i = 0; i < 6000; ++i) {
    const bool first = i % 2 == 0;
    const std::string& whole = first ? thresholds : predictors;
    std::string bytes = mutator.Mutate(whole.substr(0, whole.size() - 16));
    Seal(&bytes);
    if (first) {
      const auto tables = ParseThresholds(bytes, "t", {2, 0, 3}, kModel);
      refused += !tables.ok();
      if (tables.ok()) {
        EXPECT_GE(tables->Threshold(Lead::kProduct, 2, 2, 0.5), 0);
      }
    } else {
      refused += !ParsePredictors(bytes, "p", routed, kModel).ok();
    }
  }
  EXPECT_GT(refused, 3000);
}

TEST(ProfileMutation, UnsealedDamageIsAlwaysRefused) {
  const std::string bytes = SerializeThresholds(Thresholds());
  Mutator mutator(3);
  for (int i = 0; i < 1000; ++i) {
    const std::string damaged = mutator.Mutate(bytes);
    if (damaged == bytes) continue;
    EXPECT_EQ(ParseThresholds(damaged, "t", {2, 0, 3}, kModel).status().code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace sluice
