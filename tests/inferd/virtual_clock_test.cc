// --clock virtual: times are those of the model, the same in every run, and nothing else changes.
#include "gtest/gtest.h"
#include "inferd/residency/virtual_costs.h"
#include "inferd/residency/virtual_device.h"
#include "inferd/residency/virtual_weight_client.h"
#include "tests/support/engine_testing.h"

namespace sluice {
namespace {

TEST(VirtualCostsTest, ParsesWhatItShows) {
  const absl::StatusOr<VirtualCosts> costs = ParseVirtualCosts("link_ms=15,compute_ms=0.5");
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->link_ms, 15);
  EXPECT_EQ(costs->compute_ms, 0.5);
  EXPECT_EQ(costs->attention_ms, 0.3);
  const absl::StatusOr<VirtualCosts> again = ParseVirtualCosts(ShowVirtualCosts(*costs));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ShowVirtualCosts(*again), ShowVirtualCosts(*costs));
  for (const char* bad : {"link=15", "link_ms", "link_ms=-1", "link_ms=x", "link_ms=inf", ","}) {
    EXPECT_EQ(ParseVirtualCosts(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

class VirtualClockTest : public testing::Test {
 protected:
  void SetUp() override {
    model_.layers = 3;
    model_.experts = 8;
    model_.width = 192;
    const absl::Status packed = PackTiny(model_, dir_.File("model"), dir_.File("pack"));
    ASSERT_TRUE(packed.ok()) << packed;
    pack_ = *Pack::Open(dir_.File("pack"));
  }

  TestEngineOptions Options(uint64_t budget, double link_ms, double compute_ms) const {
    TestEngineOptions options;
    options.engine.device = DeviceKind::kSim;
    options.engine.slab.budget = budget;
    options.engine.virtual_clock = true;
    options.engine.costs = {compute_ms, 0.25, 0, link_ms, 0};
    return options;
  }

  // One answer of 20 tokens to a prompt of one, given twice: weightd has read all it needs the second time.
  FinishInfo Answer(const TestEngineOptions& options, std::vector<int32_t>* ids) {
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options);
    EXPECT_TRUE(test.ok()) << test.status();
    EXPECT_TRUE(GenerateIds(test->engine.get(), GreedySpec("warm", {7}, 20)).ok());
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(test->engine->Generate(GreedySpec("g", {7}, 20), sink).ok());
    EXPECT_TRUE(sink->Await().ok());
    *ids = sink->ids();
    EXPECT_EQ(test->client->violation(), "");
    return sink->info();
  }

  TempDir dir_;
  TinyModelSpec model_;
  std::unique_ptr<Pack> pack_;
};

TEST_F(VirtualClockTest, TwoRunsTakeTheSameTimeToTheBit) {
  const TestEngineOptions options = Options(pack_->total_expert_bytes() / 3, 15, 5);
  std::vector<int32_t> first_ids;
  std::vector<int32_t> ids;
  const FinishInfo first = Answer(options, &first_ids);
  const FinishInfo again = Answer(options, &ids);
  EXPECT_EQ(ids, first_ids);
  EXPECT_GT(first.timings.decode_seconds, 0);
  EXPECT_GT(first.timings.stall_seconds, 0);
  EXPECT_EQ(first.timings.decode_seconds, again.timings.decode_seconds);
  EXPECT_EQ(first.timings.prompt_seconds, again.timings.prompt_seconds);
  EXPECT_EQ(first.timings.stall_seconds, again.timings.stall_seconds);
  EXPECT_EQ(first.timings.bytes_link, again.timings.bytes_link);
  EXPECT_EQ(first.timings.expert_hits, again.timings.expert_hits);
}

TEST_F(VirtualClockTest, WithEveryExpertResidentAStepTakesItsComputeAlone) {
  std::vector<int32_t> ids;
  const FinishInfo info = Answer(Options(0, 15, 5), &ids);
  // 19 steps after the first token: 3 layers of 2 experts and attention.
  EXPECT_NEAR(info.timings.decode_seconds, 19 * 3 * (2 * 5e-3 + 0.25e-3), 1e-6);
  EXPECT_EQ(info.timings.stall_seconds, 0);
  EXPECT_EQ(info.timings.bytes_link, 0u);
}

// Nothing is kept and nothing predicted: every step waits for each expert's bytes but for what computes
// meanwhile.
TEST_F(VirtualClockTest, WithoutACacheAStepTakesTheLinksTimeAndTheLastTilesCompute) {
  TestEngineOptions options = Options(SmallestDeviceBudget(*pack_), 15, 5);
  options.engine.policies.policy = {"cache=none", "expert_predictor=none"};
  options.engine.slab.tile_neurons = 64;  // three tiles
  std::vector<int32_t> ids;
  const FinishInfo info = Answer(options, &ids);
  const double step = 3 * (0.25e-3 + 2 * 15e-3 + 5e-3 / 3);
  EXPECT_NEAR(info.timings.decode_seconds, 19 * step, 19 * step * 0.01);
  EXPECT_EQ(info.timings.expert_hits, 0u);
}

// Every miss is the CPU's: the device computes hits alone, and waits for the slower of the two.
TEST_F(VirtualClockTest, TheCpuComputesMissesBesideTheDevice) {
  TestEngineOptions options = Options(SmallestDeviceBudget(*pack_), 15, 5);
  options.engine.policies.policy = {"cache=none", "expert_predictor=none", "expert_miss=cpu"};
  std::vector<int32_t> ids;
  const FinishInfo info = Answer(options, &ids);
  // A CPU expert takes a third of a load.
  EXPECT_NEAR(info.timings.decode_seconds, 19 * 3 * (0.25e-3 + 2 * 5e-3), 1e-4);
  EXPECT_EQ(info.timings.bytes_link, 0u);
  options.engine.policies.policy.back() = "expert_miss=load";
  std::vector<int32_t> loaded;
  Answer(options, &loaded);
  EXPECT_EQ(ids, loaded);
}

// Two misses of one row each: the link takes 15 ms for one while the CPU takes 12 for the other.
TEST_F(VirtualClockTest, BalanceIsNeverSlowerThanEitherSideAlone) {
  TestEngineOptions options = Options(SmallestDeviceBudget(*pack_), 15, 5);
  options.engine.costs.cpu_ms = 12;
  double seconds[3] = {};
  const char* misses[] = {"expert_miss=load", "expert_miss=cpu", "expert_miss=balance"};
  for (int i = 0; i < 3; ++i) {
    options.engine.policies.policy = {"cache=none", "expert_predictor=none", misses[i]};
    std::vector<int32_t> ids;
    seconds[i] = Answer(options, &ids).timings.decode_seconds;
  }
  EXPECT_LT(seconds[2], seconds[0]);
  EXPECT_LT(seconds[2], seconds[1]);
}

TEST_F(VirtualClockTest, TokensAreThoseOfTheHost) {
  TestEngineOptions host;
  absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), host);
  ASSERT_TRUE(test.ok()) << test.status();
  const absl::StatusOr<std::vector<int32_t>> wanted =
      GenerateIds(test->engine.get(), GreedySpec("g", {7}, 20));
  ASSERT_TRUE(wanted.ok());
  std::vector<int32_t> ids;
  Answer(Options(pack_->total_expert_bytes() / 4, 15, 0.5), &ids);
  EXPECT_EQ(ids, *wanted);
}

// Predictions and prompts of many rows: prefetches are joined, dropped and overtaken in every way.
TEST_F(VirtualClockTest, EveryRequestEndsWhateverItJoins) {
  for (const double compute_ms : {0.1, 5.0, 40.0}) {
    TestEngineOptions options = Options(pack_->total_expert_bytes() * 5 / 6, 15, compute_ms);
    options.engine.stall_limit = absl::Seconds(2);
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options);
    ASSERT_TRUE(test.ok()) << test.status();
    for (int32_t i = 0; i < 30; ++i) {
      const std::vector<int32_t> prompt = {i, 2 * i % 64, 9, 10, 63 - i, 12, 13, 7 * i % 64};
      const auto ids = GenerateIds(test->engine.get(), GreedySpec(absl::StrCat("g", i), prompt, 8));
      ASSERT_TRUE(ids.ok()) << ids.status();
    }
  }
}

}  // namespace
}  // namespace sluice
