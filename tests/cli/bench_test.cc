// Plans, statistics and output formats of `sluice bench`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "cli/measure/accept_run.h"
#include "cli/measure/bench_report.h"
#include "cli/measure/bench_run.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Names(const BenchLists& lists) {
  std::vector<std::string> names;
  for (const BenchTest& test : PlanTests(lists)) {
    names.push_back(absl::StrCat(test.name(), "x", test.batch));
  }
  return names;
}

TEST(PlanTestsTest, DefaultsAreThoseOfLlamaBench) {
  EXPECT_THAT(Names({}), ElementsAre("pp512x1", "tg128x1"));
}

TEST(PlanTestsTest, ListsMakeAMatrixAndZeroLeavesAKindOut) {
  BenchLists lists;
  lists.prompts = {0};
  lists.generates = {8, 16};
  lists.batches = {1, 3};
  lists.pairs = {4, 2, 5, 1};
  EXPECT_THAT(Names(lists), ElementsAre("tg8x1", "tg16x1", "pp4+tg2x1", "pp5+tg1x1", "tg8x3", "tg16x3",
                                        "pp4+tg2x3", "pp5+tg1x3"));
}

TEST(PlanTestsTest, NothingAskedForIsNothing) {
  BenchLists lists;
  lists.prompts = {0};
  lists.generates = {};
  EXPECT_TRUE(PlanTests(lists).empty());
}

TEST(SummarizeTest, StandardDeviationIsTheSamples) {
  const MeanStddev three = Summarize({2, 4, 6});
  EXPECT_DOUBLE_EQ(three.mean, 4);
  EXPECT_DOUBLE_EQ(three.stddev, 2);
  EXPECT_EQ(Summarize({5}).stddev, 0);
}

BenchResult DecodeResult() {
  BenchResult result{{0, 4, 2}, "exact", {}, {}};
  for (const double seconds : {0.5, 1.0}) {
    BenchSample sample;
    sample.seconds = seconds;
    sample.ttft_ms = 10;
    sample.tpot_ms = 100;
    sample.tokens = 8;
    sample.generated = 8;
    sample.expert_requests = 100;
    sample.expert_hits = 75;
    sample.bytes_ssd = 3'000'000'000;
    sample.weight_bytes = 6'000'000'000;
    sample.decode_seconds = 0.5;
    sample.device_waits = 24;
    sample.device_kernels = 96;
    sample.device_graph_launches = 8;
    sample.device_graph_changes = 2;
    sample.fork_joins = 80;
    sample.fork_join_seconds = 0.4;
    sample.stall_seconds = 0.25;
    result.samples.push_back(sample);
  }
  return result;
}

BenchSetting Setting() {
  return {.version = "1",
          .model = "pack \"one\"",
          .model_id = "id",
          .model_bytes = 1 << 30,
          .device = "host",
          .backend = "avx2",
          .threads = "2",
          .read_bandwidth = 20e9,
          .read_bytes = 1 << 30};
}

TEST(ResultJsonTest, HasEveryKeyOfTheContractWithTheRightFigures) {
  const auto json = nlohmann::json::parse(ResultJson(DecodeResult(), Setting()).Dump());
  EXPECT_EQ(json["test"], "tg4");
  EXPECT_EQ(json["preset"], "exact");
  EXPECT_EQ(json["batch"], 2);
  EXPECT_THAT(json["samples_ts"].get<std::vector<double>>(), ElementsAre(16, 8));
  EXPECT_DOUBLE_EQ(json["avg_ts"], 12);
  EXPECT_NEAR(json["stddev_ts"], std::sqrt(32.0), 1e-9);
  EXPECT_DOUBLE_EQ(json["ttft_ms"], 10);
  EXPECT_DOUBLE_EQ(json["tpot_ms"], 100);
  EXPECT_DOUBLE_EQ(json["hit_rate"], 0.75);
  EXPECT_TRUE(json["predictor_precision"].is_null());
  EXPECT_TRUE(json["predictor_recall"].is_null());
  EXPECT_DOUBLE_EQ(json["stall_seconds"], 0.25);
  EXPECT_DOUBLE_EQ(json["ssd_gbps"], 4);
  EXPECT_DOUBLE_EQ(json["link_gbps"], 0);
  EXPECT_DOUBLE_EQ(json["read_bandwidth_share"], 12.0 / 20);
  EXPECT_DOUBLE_EQ(json["device_waits_per_token"], 3);
  EXPECT_DOUBLE_EQ(json["device_kernels_per_token"], 12);
  EXPECT_DOUBLE_EQ(json["device_graph_launches_per_token"], 1);
  EXPECT_DOUBLE_EQ(json["device_graph_changes_per_token"], 0.25);
  EXPECT_DOUBLE_EQ(json["fork_joins_per_token"], 10);
  EXPECT_DOUBLE_EQ(json["fork_join_ms_per_token"], 50);
}

TEST(ResultJsonTest, PrefillHasNoTimePerTokenAndNoShare) {
  BenchResult result = DecodeResult();
  result.test = {512, 0, 1};
  const auto json = nlohmann::json::parse(ResultJson(result, Setting()).Dump());
  EXPECT_EQ(json["test"], "pp512");
  EXPECT_TRUE(json["tpot_ms"].is_null());
  EXPECT_TRUE(json["read_bandwidth_share"].is_null());
}

TEST(FormatResultsTest, JsonIsAnArrayAndJsonLinesOneObjectALine) {
  const std::vector<BenchResult> results = {DecodeResult(), DecodeResult()};
  const auto array = nlohmann::json::parse(FormatResults(results, Setting(), BenchFormat::kJson));
  EXPECT_EQ(array.size(), 2u);
  std::istringstream lines(FormatResults(results, Setting(), BenchFormat::kJsonLines));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(nlohmann::json::parse(line), array[0]);
  }
  EXPECT_EQ(count, 2);
}

TEST(FormatResultsTest, MarkdownRowsHaveAsManyCellsAsTheHeader) {
  std::istringstream lines(FormatResults({DecodeResult()}, Setting(), BenchFormat::kMarkdown));
  std::string header;
  std::string rule;
  std::string row;
  std::getline(lines, header);
  std::getline(lines, rule);
  std::getline(lines, row);
  EXPECT_EQ(std::count(row.begin(), row.end(), '|'), std::count(header.begin(), header.end(), '|'));
  EXPECT_EQ(std::count(rule.begin(), rule.end(), '|'), std::count(header.begin(), header.end(), '|'));
  EXPECT_THAT(row, HasSubstr("| tg4 | 12.00 ± 5.66 |"));
  EXPECT_THAT(row, HasSubstr("| 60.0 |"));
}

TEST(FormatResultsTest, CsvQuotesAndKeepsTheColumnCount) {
  const std::string csv = FormatResults({DecodeResult()}, Setting(), BenchFormat::kCsv);
  EXPECT_THAT(csv, ::testing::StartsWith("test,preset,batch,avg_ts,stddev_ts,"));
  EXPECT_THAT(csv, HasSubstr("\"pack \"\"one\"\"\""));
  const std::string header = csv.substr(0, csv.find('\n'));
  const std::string row = csv.substr(csv.find('\n') + 1);
  EXPECT_EQ(std::count(header.begin(), header.end(), ','), std::count(row.begin(), row.end(), ','));
}

// Four GiB in a control group of three killed the program.
TEST(ReadBaseTest, ItTakesHalfOfWhatIsFreeAtMostAndSaysSo) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  EXPECT_EQ(SizeOfReadBase(30 * kGiB, 64 * kGiB).bytes, 4 * kGiB);
  EXPECT_EQ(SizeOfReadBase(30 * kGiB, 64 * kGiB).note, "");
  const ReadBaseSize capped = SizeOfReadBase(30 * kGiB, 3 * kGiB);
  EXPECT_EQ(capped.bytes, 3 * kGiB / 2);
  EXPECT_THAT(capped.note, HasSubstr("over 1.5 GiB, not 4.0 GiB: 3.0 GiB are free"));
  // Reads from caches do not measure memory bandwidth, unless the pack itself is so small.
  const ReadBaseSize none = SizeOfReadBase(30 * kGiB, kGiB / 4);
  EXPECT_EQ(none.bytes, 0u);
  EXPECT_THAT(none.note, HasSubstr("not measured"));
  EXPECT_EQ(SizeOfReadBase(12 << 20, kGiB / 4).bytes, 12u << 20);
  EXPECT_EQ(SizeOfReadBase(12 << 20, 0).bytes, 0u);
}

TEST(BenchFormatTest, UnknownNameIsRefused) {
  EXPECT_EQ(*BenchFormatFromName("csv"), BenchFormat::kCsv);
  EXPECT_FALSE(BenchFormatFromName("sql").ok());
}

// Two pairs of two sequences of 11 tokens: 20 tokens behind the first ones, 5 of them drafts.
AcceptResult Accepted() {
  AcceptResult result{{{0, 11, 2}, 0.75, 2, false}, "exact", {}, {}};
  for (const double tpot : {10.0, 20.0}) {
    BenchSample sample;
    sample.tpot_ms = tpot;
    result.plain.push_back(sample);
    sample.tpot_ms = tpot / 2;
    sample.drafts_verified = {6, 2, 0};
    sample.drafts_accepted = {4, 1, 0};
    result.speculative.push_back(sample);
  }
  return result;
}

TEST(AcceptFiguresTest, StepsAndSharesFollowFromTheDrafts) {
  const AcceptFigures figures = FiguresOf(Accepted());
  EXPECT_DOUBLE_EQ(figures.plain, 150);  // 200 and 100
  EXPECT_DOUBLE_EQ(figures.speculative, 300);
  EXPECT_DOUBLE_EQ(figures.ratio, 2);
  EXPECT_DOUBLE_EQ(figures.tokens_a_step, 20.0 / 15);
  EXPECT_THAT(figures.verified, ElementsAre(6.0 / 15, 2.0 / 15));
  EXPECT_THAT(figures.accepted, ElementsAre(4.0 / 6, 0.5));
}

TEST(AcceptFiguresTest, EveryFormatHasTheFigures) {
  AcceptResult result = Accepted();
  for (BenchSample& sample : result.speculative) sample.drafts_verified[1] = sample.drafts_accepted[1] = 0;
  const auto json = nlohmann::json::parse(FormatAccept({result}, Setting(), BenchFormat::kJson))[0];
  EXPECT_EQ(json["accept"], 0.75);
  EXPECT_EQ(json["drafts"], 2);
  EXPECT_EQ(json["ratio"], 2);
  EXPECT_EQ(json["same_tokens"], true);
  EXPECT_TRUE(json["accepted"][1].is_null()) << "none was verified";
  EXPECT_THAT(FormatAccept({result}, Setting(), BenchFormat::kMarkdown), HasSubstr("| 67 - | yes |"));
  EXPECT_THAT(FormatAccept({result}, Setting(), BenchFormat::kCsv), HasSubstr("speculative_ts"));
}

}  // namespace
}  // namespace sluice::cli
