// Plans, tables, ratios and explanations of the comparison of presets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lab/preset_report.h"
#include "lab/preset_rows.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// 10 steps of one sequence: `busy_ms` a step of which `stall_ms` were waiting; the link carries 1e6 bytes/s.
PresetResult Result(double busy_ms, double stall_ms, uint64_t link_bytes) {
  PresetResult result;
  result.link_bytes_per_second = 1e6;
  PresetMeasure m;
  m.tpot_ms = busy_ms;
  m.ttft_ms = 100;
  m.decode.steps = 10;
  m.decode.generated = 10;
  m.decode.busy_seconds = busy_ms * 1e-2;
  m.decode.stall_seconds = stall_ms * 1e-2;
  m.decode.bytes_link = link_bytes;
  m.decode.expert_requests = 100;
  m.decode.expert_hits = 50;
  result.measures.push_back(m);
  return result;
}

PresetPlan ThreeRows() {
  PresetPlan plan = PlanOfPresets({"resident", "exact", "corm"});
  plan.ratios.push_back({"slower", "exact", "resident", "tpot_ms", 1, {}, 1.5, "-24 %"});
  plan.ratios.push_back({"speed", "exact", "resident", "tokens_per_second", 1, 0.4, {}, ""});
  plan.ratios.push_back({"none", "corm", "resident", "tokens_per_second", 1, 0.4, {}, ""});
  return plan;
}

std::vector<PresetResult> ThreeResults() {
  PresetResult refused;
  refused.refused = "not in | this build";
  return {Result(10, 0, 0), Result(20, 10, 150000), refused};
}

TEST(PresetPlanTest, ResidentIsTheBaseOfAnyList) {
  std::vector<std::string> names;
  for (const PresetRow& row : PlanOfPresets({"exact", "resident", "floe"}).rows) names.push_back(row.preset);
  EXPECT_THAT(names, ElementsAre("resident", "exact", "floe"));
}

TEST(PresetPlanTest, ReadsPacksRowsAndRatios) {
  const auto plan = ParsePresetPlan(R"(
    [[pack]]
    name = "q4"
    args = ["--bits", "q4"]
    calibrate = true
    [[pack]]
    name = "made"
    args = ["--shape", "tiny"]
    synth = true
    [[row]]
    name = "base"
    pack = "q4"
    [[row]]
    name = "gating"
    preset = "adapmoe"
    options = ["--policy", "first_layer=off"]
    [[ratio]]
    name = "faster"
    row = "gating"
    of = "base"
    batch = 3
    at_least = 1.36
    paper = "1.36"
  )",
                                    "f.toml");
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->rows.size(), 2u);
  EXPECT_FALSE(plan->packs[0].synth);
  EXPECT_TRUE(plan->packs[1].synth);
  EXPECT_EQ(plan->rows[0].preset, "exact");
  EXPECT_EQ(plan->rows[0].pack, "q4");
  EXPECT_THAT(plan->rows[1].options, ElementsAre("--policy", "first_layer=off"));
  ASSERT_EQ(plan->ratios.size(), 1u);
  EXPECT_EQ(plan->ratios[0].batch, 3u);
  EXPECT_EQ(plan->ratios[0].metric, "tokens_per_second");
}

TEST(PresetPlanTest, SaysWhatIsWrongAndWhere) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"[[row]]\nname = \"a\"\npack = \"p\"", "no pack \"p\""},
      {"[[row]]\nname = \"a\"\n[[row]]\nname = \"a\"", "there twice"},
      {"[[row]]\nname = \"a\"\n[[ratio]]\nname = \"r\"\nrow = \"a\"\nof = \"b\"", "no row \"b\""},
      {"[[row]]\nname = \"a\"\nspeed = 3", "speed is not known"},
      {"[[ratio]]\nname = \"r\"", "no [[row]]"},
      {"[[row", "line 1"}};
  for (const auto& [text, words] : kWrong) {
    const auto plan = ParsePresetPlan(text, "f.toml");
    ASSERT_FALSE(plan.ok()) << text;
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(words));
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr("f.toml"));
  }
}

TEST(PresetSweepTest, TakesSharesAndNumbersOnly) {
  const auto sweep = ParseSweep("device-budget=25%,50%");
  ASSERT_TRUE(sweep.ok());
  EXPECT_EQ(sweep->name, "device-budget");
  for (const char* wrong : {"device-budget", "=1", "a=", "a=1,x", "a=nan", "a=1,inf"}) {
    EXPECT_FALSE(ParseSweep(wrong).ok()) << wrong;
  }
}

TEST(PresetTableTest, ARefusedPresetIsARowThatSaysWhy) {
  const std::string table = PresetTable(ThreeRows(), ThreeResults());
  EXPECT_THAT(table, HasSubstr("| corm | corm | refused: not in / this build |"));
  EXPECT_THAT(table, HasSubstr("| exact | exact | 1 | 50.00 | 50.0 |"));
  EXPECT_THAT(table, Not(HasSubstr("ppl")));  // nobody measured it
}

TEST(PresetTableTest, TimesOfAStepAreComputeStallAndWhatOverlapped) {
  const std::vector<PresetResult> results = ThreeResults();
  const auto metric = [&](const char* name) {
    return MetricOf(results[1], 1, name, results[0]).value_or(-1);
  };
  EXPECT_DOUBLE_EQ(metric("compute_ms"), 10);
  EXPECT_DOUBLE_EQ(metric("stall_ms"), 10);
  EXPECT_DOUBLE_EQ(metric("load_ms"), 15);
  EXPECT_DOUBLE_EQ(metric("overlap_ms"), 5);
  EXPECT_DOUBLE_EQ(metric("link_bytes_per_token"), 15000);
  EXPECT_DOUBLE_EQ(metric("hit_rate"), 0.5);
  EXPECT_DOUBLE_EQ(metric("share_of_resident"), 0.5);
  EXPECT_EQ(metric("predictor_recall"), -1);
}

TEST(PresetTableTest, EngineTimeIsNeitherKernelsNorWaits) {
  PresetResult result = Result(20, 10, 0);
  EXPECT_FALSE(MetricOf(result, 1, "engine_ms", result).has_value());
  result.real_time = true;
  result.measures[0].decode.kernel_seconds = 0.09;
  EXPECT_NEAR(MetricOf(result, 1, "engine_ms", result).value_or(-1), 1, 1e-9);
  EXPECT_NEAR(MetricOf(result, 1, "engine_share", result).value_or(-1), 0.1, 1e-9);
}

TEST(PresetTableTest, PredictionsAreInTheJsonByLayerAndDepth) {
  std::vector<PresetResult> results = ThreeResults();
  AddDepths({{1, 1, 10, 6, 12}, {2, 1, 10, 9, 10}}, 1, &results[1].measures[0].decode.depths);
  AddDepths({{2, 2, 4, 1, 0}, {1, 1, 10, 6, 12}}, 1, &results[1].measures[0].decode.depths);
  AddDepths({{2, 1, 5, 4, 6}}, -1, &results[1].measures[0].decode.depths);
  const auto json = nlohmann::json::parse(PresetJson(ThreeRows(), results, false).Dump());
  EXPECT_FALSE(json["rows"][0]["batches"][0].contains("predictions"));
  const auto& depths = json["rows"][1]["batches"][0]["predictions"];
  ASSERT_EQ(depths.size(), 3u);
  EXPECT_EQ(depths[0]["layer"], 1);
  EXPECT_EQ(depths[0]["depth"], 1);
  EXPECT_DOUBLE_EQ(depths[0]["precision"], 0.6);
  EXPECT_DOUBLE_EQ(depths[0]["recall"], 0.5);
  EXPECT_DOUBLE_EQ(depths[1]["precision"], 1);
  EXPECT_DOUBLE_EQ(depths[1]["recall"], 5.0 / 4);
  EXPECT_EQ(depths[2]["depth"], 2);
  EXPECT_TRUE(depths[2]["recall"].is_null());
}

TEST(PresetTableTest, NeuronCacheReportsBreakEvenAndLeads) {
  std::vector<PresetResult> results = ThreeResults();
  EXPECT_THAT(PresetTable(ThreeRows(), results), Not(HasSubstr("one copy above")));
  results[1].copy_all_share = 0.875;
  results[1].leads_stay = true;
  EXPECT_THAT(PresetTable(ThreeRows(), results), HasSubstr("| one copy above % |"));
  EXPECT_THAT(PresetTable(ThreeRows(), results), HasSubstr(" 87.5 |"));
  const auto json = nlohmann::json::parse(PresetJson(ThreeRows(), results, false).Dump());
  EXPECT_TRUE(json["rows"][0]["lead_resident"].is_null());
  EXPECT_EQ(json["rows"][1]["lead_resident"], true);
  EXPECT_DOUBLE_EQ(json["rows"][1]["batches"][0]["copy_all_share"], 0.875);
}

TEST(PresetTableTest, NeuronsHaveColumnsWhereTheyAreCounted) {
  std::vector<PresetResult> results = ThreeResults();
  EXPECT_THAT(PresetTable(ThreeRows(), results), Not(HasSubstr("neuron")));
  BenchSample& sample = results[1].measures[0].decode;
  sample.neurons = 100;
  sample.neuron_hits = 25;
  sample.neurons_predicted = 40;
  sample.neurons_right = 30;
  sample.neurons_wanted = 60;
  sample.sparse_neurons = 500;
  sample.sparse_kept = 100;
  EXPECT_THAT(PresetTable(ThreeRows(), results), HasSubstr("neuron hit %"));
  const auto metric = [&](const char* name) {
    return MetricOf(results[1], 1, name, results[0]).value_or(-1);
  };
  EXPECT_DOUBLE_EQ(metric("neuron_hit_rate"), 0.25);
  EXPECT_DOUBLE_EQ(metric("neuron_precision"), 0.75);
  EXPECT_DOUBLE_EQ(metric("neuron_recall"), 0.5);
  EXPECT_DOUBLE_EQ(metric("sparsity"), 0.8);
  sample.load_seconds = 0.2;
  EXPECT_DOUBLE_EQ(metric("load_ms"), 20);
}

TEST(RatioTableTest, HoldsRatiosAgainstTheirMarks) {
  const std::string table = RatioTable(ThreeRows(), ThreeResults());
  EXPECT_THAT(table, HasSubstr("| slower | 1 | 2.000 | <= 1.5 | missed | -24 % |"));
  EXPECT_THAT(table, HasSubstr("| speed | 1 | 0.500 | >= 0.4 | met |"));
  EXPECT_THAT(table, HasSubstr("| none | 1 | not measured | >= 0.4 |"));
  EXPECT_EQ(RatioTable(PlanOfPresets({"exact"}), ThreeResults()), "");
}

TEST(PresetJsonTest, HasEveryRowAndTheReasonOfTheRefusedOne) {
  const nlohmann::json json =
      nlohmann::json::parse(PresetJson(ThreeRows(), ThreeResults(), /*explain=*/true).Dump());
  ASSERT_EQ(json["rows"].size(), 3u);
  EXPECT_EQ(json["rows"][2]["refused"], "not in | this build");
  EXPECT_TRUE(json["rows"][1]["refused"].is_null());
  EXPECT_EQ(json["rows"][1]["batches"][0]["tokens_per_second"], 50);
  EXPECT_FALSE(json["rows"][1]["batches"][0]["explanation"].empty());
  EXPECT_EQ(json["ratios"][0]["verdict"], "missed");
  EXPECT_EQ(json["ratios"][2]["verdict"], "not measured");
}

TEST(SweepTest, ACurveLeavesOutWhatWasRefused) {
  SweepResults sweep;
  sweep.sweep = {"device-budget", {"25%", "50%"}};
  sweep.results = {{Result(10, 0, 0), Result(40, 30, 0), ThreeResults()[2]}, ThreeResults()};
  const std::string table = SweepTable(ThreeRows(), sweep);
  EXPECT_THAT(table, HasSubstr("| exact | 25.00 (50.0) | 50.00 (50.0) |"));
  EXPECT_THAT(table, HasSubstr("| corm | refused | refused |"));
}

TEST(ExplainTest, NamesWhatBoundsTheRun) {
  EXPECT_THAT(ExplainRun(Result(10, 0.1, 1000), 0), HasSubstr("Compute bounds it"));
  EXPECT_THAT(ExplainRun(Result(20, 15, 195000), 0), HasSubstr("The link bounds it"));
  EXPECT_THAT(ExplainRun(Result(20, 15, 100000), 0), HasSubstr("Router and policy bound it"));
  EXPECT_THAT(ExplainRun(Result(20, 15, 1000), 0), HasSubstr("The CPU bounds it"));
  PresetResult shared = Result(20, 5, 100000);
  shared.measures[0].decode.bytes_dram = shared.measures[0].decode.bytes_link;
  EXPECT_THAT(ExplainRun(shared, 0), HasSubstr("Device, link and CPU share the experts"));
  EXPECT_THAT(ExplainRun(shared, 0), HasSubstr("50 % are the CPU's"));
  PresetResult from_ssd = Result(20, 15, 195000);
  from_ssd.measures[0].decode.bytes_ssd = 190000;
  EXPECT_THAT(ExplainRun(from_ssd, 0), HasSubstr("The SSD bounds it"));
  PresetResult unknown = Result(20, 15, 195000);
  unknown.link_bytes_per_second = 0;
  EXPECT_THAT(ExplainRun(unknown, 0), HasSubstr("--link-gbps"));
}

}  // namespace
}  // namespace sluice::cli
