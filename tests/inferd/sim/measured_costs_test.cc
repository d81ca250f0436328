// Tables of costs that are measured, read from files and charged by encoding.
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/file_io.h"
#include "gtest/gtest.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/sim/measured_device.h"
#include "inferd/sim/virtual_clock.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

constexpr auto kBf16 = static_cast<size_t>(Encoding::kBf16);
constexpr auto kQ4 = static_cast<size_t>(Encoding::kQ4);

TEST(CostFileTest, FilesSetValuesAndLaterOnesWin) {
  TempDir dir;
  std::ofstream(dir.File("first")) << "# measured\nattention_ms=2\n\n  q4_all_ns=200 # of a row\ncpu_ms=7\n";
  std::ofstream(dir.File("second")) << "q4_kept_ns=300\nattention_ms=3";
  const auto costs =
      ParseVirtualCosts("30x,@" + dir.File("first") + ",@" + dir.File("second") + ",head_ms=1");
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->compute_ms, 0.5) << "of 30x";
  EXPECT_EQ(costs->attention_ms, 3);
  EXPECT_EQ(costs->head_ms, 1);
  EXPECT_EQ(costs->cpu_ms, 7);
  EXPECT_EQ(costs->rows[kQ4].all_ns, 200);
  EXPECT_EQ(costs->rows[kQ4].kept_ns, 300);
  const auto again = ParseVirtualCosts(ShowVirtualCosts(*costs));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ShowVirtualCosts(*again), ShowVirtualCosts(*costs));
  EXPECT_EQ(again->rows[kQ4].kept_ns, 300);
}

TEST(CostFileTest, InvalidLinesAreNamedWithTheFile) {
  TempDir dir;
  std::ofstream(dir.File("bad")) << "q5_all_ns=1";
  const absl::Status status = ParseVirtualCosts("@" + dir.File("bad")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.message().find(dir.File("bad")), std::string::npos) << status;
  EXPECT_TRUE(absl::IsNotFound(ParseVirtualCosts("@" + dir.File("none")).status()));
  for (const char* bad : {"q4_all_ns=-1", "q4_some_ns=1", "_all_ns=1", "cpu_ms=x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseVirtualCosts(bad).status())) << bad;
  }
}

TEST(CostTableTest, TableHoldsMediansOfUniformCalls) {
  ReferenceBackend backend({});
  const uint32_t row = 0;
  const WeightView q4 = {{Encoding::kQ4, 16, 64, 0}, {}, 0, 100, 64, {}};
  const WeightView q2 = {{Encoding::kQ2, 16, 64, 0}, {}, 0, 100, 64, {}};
  ExpertWork whole = {.up = q4, .gate = q4, .down = q4, .rows = {&row, 1}};
  CostTable table(/*expert_bytes=*/3 * 100 * 64 * 2);
  MoeExpertsArgs args;
  args.experts = absl::MakeConstSpan(&whole, 1);
  for (const double us : {60, 30, 90}) table.AddExperts(args, us * 1e-6, &backend);
  whole.up = q2;  // a call with two encodings is not measured
  table.AddExperts(args, 1, &backend);
  // A quarter of the neurons is active: 25 neurons of two parts.
  std::vector<float> values(100);
  for (size_t i = 0; i < 25; ++i) values[4 * i] = i % 2 == 0 ? 2.0f : -2.0f;
  const BufferId leads = *backend.Allocate(400, BufferKind::kActivations);
  ASSERT_TRUE(backend.queue().Upload(values.data(), 400, {leads, 0}).ok());
  whole.sparsity = SparsityOrder::kUp;
  whole.threshold = 1;
  whole.lead_values = {{leads, 0}, 100};
  table.AddExperts(args, 50 * 400e-9, &backend);
  const LeadWork lead = {.lead = q2, .rows = {&row, 1}};
  ExpertLeadsArgs leading;
  leading.experts = absl::MakeConstSpan(&lead, 1);
  table.AddLeads(leading, 100 * 150e-9);
  table.AddStep(8e-3, 4, 0.5e-3);
  TempDir dir;
  std::ofstream(dir.File("costs")) << table.Text();
  const auto read = ParseVirtualCosts("@" + dir.File("costs"));
  ASSERT_TRUE(read.ok()) << read.status() << table.Text();
  EXPECT_NEAR(read->rows[kQ4].all_ns, 200, 1e-6) << "60 us for 300 rows";
  EXPECT_NEAR(read->rows[kQ4].kept_ns, 400, 1e-6);
  EXPECT_NEAR(read->rows[static_cast<size_t>(Encoding::kQ2)].all_ns, 150, 1e-6);
  EXPECT_NEAR(read->attention_ms, 2, 1e-9);
  EXPECT_NEAR(read->head_ms, 0.5, 1e-9);
  // In proportion to the bytes: 64 columns are 32 bytes of codes and a group of four.
  EXPECT_NEAR(read->compute_ms, 0.06 * 128 / 36, 1e-6);
  EXPECT_EQ(read->cpu_ms, read->compute_ms);
}

class MeasuredCostsTest : public testing::Test {
 protected:
  void SetUp() override {
    model_.layers = 3;
    model_.experts = 8;
    model_.width = 192;
    ASSERT_TRUE(PackTiny(model_, dir_.File("model"), dir_.File("pack")).ok());
    pack_ = *Pack::Open(dir_.File("pack"));
    options_.engine.device = DeviceKind::kSim;
    options_.engine.virtual_clock = true;
    options_.engine.costs = {5, 0.25, 0, 15, 0};
  }

  FinishInfo Answer() {
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options_);
    EXPECT_TRUE(test.ok()) << test.status();
    // The second time weightd has read all that the answer needs.
    EXPECT_TRUE(GenerateIds(test->engine.get(), GreedySpec("warm", {7}, 20)).ok());
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(test->engine->Generate(GreedySpec("g", {7}, 20), sink).ok());
    EXPECT_TRUE(sink->Await().ok());
    return sink->info();
  }

  TempDir dir_;
  TinyModelSpec model_;
  std::unique_ptr<Pack> pack_;
  TestEngineOptions options_;
};

TEST_F(MeasuredCostsTest, RowCostsOverrideByteCosts) {
  options_.engine.costs.rows[kBf16] = {1e3, 4e3};
  EXPECT_NEAR(Answer().timings.decode_seconds, 19 * 3 * (0.25e-3 + 2 * 3 * 192 * 1e-6), 1e-6);
  // Active neurons cost more each, leads cost the same.
  options_.engine.policies.sparsity = "gate";
  options_.engine.policies.sparsity_threshold = 0;
  options_.engine.policies.policy = {"cache_granularity=neuron", "cache=resident", "expert_predictor=none"};
  EXPECT_NEAR(Answer().timings.decode_seconds, 19 * 3 * (0.25e-3 + 2 * 192 * (1e-6 + 2 * 4e-6)), 1e-5);
}

TEST_F(MeasuredCostsTest, CpuWorkCostsTheDeviceNothing) {
  options_.engine.slab.budget = SmallestDeviceBudget(*pack_);
  options_.engine.policies.policy = {"cache=none", "expert_predictor=none", "expert_miss=cpu"};
  options_.engine.costs.cpu_ms = 5;
  options_.engine.costs.compute_ms = 8;  // the device's
  const FinishInfo info = Answer();
  EXPECT_NEAR(info.timings.decode_seconds, 19 * 3 * (0.25e-3 + 2 * 5e-3), 1e-4);
  EXPECT_EQ(info.timings.bytes_link, 0u);
}

TEST_F(MeasuredCostsTest, UnwritableFileFailsTheStart) {
  options_.engine.virtual_clock = false;
  for (const std::string& path : {std::string("/dev/full"), dir_.File("nowhere/costs")}) {
    options_.engine.measure_costs = path;
    const absl::Status status = StartEngine(dir_.File("pack"), options_).status();
    EXPECT_NE(status.message().find("--measure-costs"), std::string::npos) << status;
    EXPECT_NE(status.message().find(path), std::string::npos) << status;
  }
}

TEST_F(MeasuredCostsTest, ARunOfAFewTokensWritesItsTableToo) {
  options_.engine.virtual_clock = false;
  options_.engine.measure_costs = dir_.File("costs");
  {
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options_);
    ASSERT_TRUE(test.ok()) << test.status();
    ASSERT_TRUE(GenerateIds(test->engine.get(), GreedySpec("g", {7}, 2)).ok());
  }
  const auto costs = ParseVirtualCosts("@" + dir_.File("costs"));
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_GT(costs->rows[kBf16].all_ns, 0);
  EXPECT_GT(costs->attention_ms, 0);
}

TEST_F(MeasuredCostsTest, RealTimeTableWorksInVirtualTime) {
  options_.engine.virtual_clock = false;
  options_.engine.measure_costs = dir_.File("costs");
  Answer();
  const auto costs = ParseVirtualCosts("@" + dir_.File("costs"));
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_GT(costs->rows[kBf16].all_ns, 0);
  EXPECT_EQ(costs->rows[kBf16].kept_ns, 0) << "nothing was left out";
  EXPECT_GT(costs->head_ms, 0);
  // A bf16 expert costs the sum of its rows.
  EXPECT_NEAR(costs->compute_ms, costs->rows[kBf16].all_ns * 3 * 192 * 1e-6, 1e-4 * costs->compute_ms);
  options_.engine.virtual_clock = true;
  options_.engine.measure_costs.clear();
  options_.engine.costs = *costs;
  EXPECT_NEAR(Answer().timings.decode_seconds,
              19 * (3 * (costs->attention_ms + 2 * costs->compute_ms) + costs->head_ms) * 1e-3, 1e-4);
}

}  // namespace
}  // namespace sluice::inferd
