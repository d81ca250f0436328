// Parts, bounds and shares of `sluice bench --explain`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/measure/bench_run.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

BenchResult TwoSamples() {
  BenchResult result{{0, 10, 2}, "exact", {}, {}};
  for (int i = 0; i < 2; ++i) {
    BenchSample sample;
    sample.tokens = 20;
    sample.busy_seconds = 2;
    sample.stall_seconds = 0.5;
    sample.parts = {{"attention", 0.4, 2'000'000'000, 1'000'000'000},
                    {"router", 0, 0, 0},
                    {"experts", 0.9, 6'000'000'000, 4'000'000'000},
                    {"head", 0.1, 1'000'000'000, 0},
                    {"other", 0.05, 0, 0}};
    result.samples.push_back(sample);
  }
  return result;
}

TEST(ExplainTest, PartsWaitsAndGapsAddUpToTheStep) {
  const Explanation explained = Explain(TwoSamples(), {10e9, 4e9, 5e9}, {2, 1});
  ASSERT_EQ(explained.lines.size(), 7u);
  EXPECT_DOUBLE_EQ(explained.seconds, 0.1);
  double share = 0;
  for (const ExplainLine& line : explained.lines) share += line.share;
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_EQ(explained.lines[5].part, "waits");
  EXPECT_DOUBLE_EQ(explained.lines[5].share, 0.25);
  EXPECT_EQ(explained.lines[6].part, "between");
  EXPECT_NEAR(explained.lines[6].seconds, 0.05 / 20, 1e-12);
}

TEST(ExplainTest, TheLongerOfReadingAndComputingBounds) {
  const Explanation explained = Explain(TwoSamples(), {10e9, 4e9, 5e9}, {2, 1});
  const ExplainLine& attention = explained.lines[0];  // 0.2 s to read, 0.25 s to compute, in 20 tokens
  EXPECT_EQ(attention.bound, Bound::kInstructions);
  EXPECT_NEAR(attention.bound_seconds, 0.25 / 20, 1e-12);
  EXPECT_EQ(explained.lines[1].bound, Bound::kNone) << "it did nothing";
  EXPECT_EQ(explained.lines[2].bound, Bound::kInstructions)
      << "0.8 s at the experts' own rate, 0.6 s to read";
  EXPECT_EQ(explained.lines[3].bound, Bound::kMemory);
  EXPECT_EQ(explained.lines[4].bound, Bound::kNone);
  const Explanation memory_alone = Explain(TwoSamples(), {10e9, 0, 0}, {2, 1});
  EXPECT_EQ(memory_alone.lines[0].bound, Bound::kMemory);
}

TEST(ExplainTest, TextAndJsonSayTheSame) {
  const BenchResult result = TwoSamples();
  const Explanation explained = Explain(result, {10e9, 4e9, 5e9}, {2, 1});
  const std::string text = ExplainText(result, explained);
  EXPECT_THAT(text, HasSubstr("exact tg10 x 2: 100.000 ms a token, memory read at 10.0 GB/s"));
  EXPECT_THAT(
      text, HasSubstr("attention     20.000   20.0 %    100.00     0.050  instructions    12.500   62.5 %"));
  EXPECT_THAT(text, HasSubstr("waits         25.000   25.0 %\n"));
  const nlohmann::json json = nlohmann::json::parse(ExplainJson(explained).Dump());
  EXPECT_EQ(json["parts"][0]["part"], "attention");
  EXPECT_EQ(json["parts"][0]["bound"], "instructions");
  EXPECT_NEAR(json["parts"][0]["reached"].get<double>(), 0.625, 1e-9);
  EXPECT_TRUE(json["parts"][5]["bound"].is_null());
  EXPECT_EQ(json["rows"], 2);
}

TEST(ExplainTest, ADeviceThatDoesNotTellIsSaidToDoSo) {
  BenchResult result = TwoSamples();
  for (BenchSample& sample : result.samples) sample.parts.clear();
  EXPECT_THAT(ExplainText(result, Explain(result, {}, {})), HasSubstr("does not tell"));
}

TEST(ExplainTest, RowsAreTheBatchOrTheChunkSpreadOverTheExperts) {
  EXPECT_EQ(RowsOf({0, 128, 4}, 128, 8, 512).step, 4u);
  EXPECT_EQ(RowsOf({0, 128, 4}, 128, 8, 512).expert, 1u);
  EXPECT_EQ(RowsOf({2048, 0, 1}, 128, 8, 512).step, 512u);
  EXPECT_EQ(RowsOf({2048, 0, 1}, 128, 8, 512).expert, 32u);
  EXPECT_EQ(RowsOf({100, 0, 1}, 8, 8, 512).expert, 100u);
  EXPECT_EQ(RowsOf({100, 0, 1}, 0, 0, 512).expert, 1u);
}

}  // namespace
}  // namespace sluice::cli
