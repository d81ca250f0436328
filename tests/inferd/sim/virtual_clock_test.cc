// Tests of --clock virtual: times come from the model, equal in every run, and nothing else changes.
#include "inferd/sim/virtual_clock.h"

#include <set>
#include <vector>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/policy/cache_allocation.h"
#include "inferd/policy/router_trace.h"
#include "inferd/policy/slot_eviction.h"
#include "inferd/sim/virtual_device.h"
#include "inferd/sim/virtual_weight_client.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

TEST(VirtualCostsTest, ParsesItsOwnOutput) {
  const absl::StatusOr<VirtualCosts> costs = ParseVirtualCosts("link_ms=15,compute_ms=0.5");
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->link_ms, 15);
  EXPECT_EQ(costs->compute_ms, 0.5);
  EXPECT_EQ(costs->attention_ms, 0.3);
  const absl::StatusOr<VirtualCosts> regime = ParseVirtualCosts("30x,cpu_ms=2");
  ASSERT_TRUE(regime.ok());
  EXPECT_EQ(regime->link_ms, 15);
  EXPECT_EQ(regime->compute_ms, 0.5);
  EXPECT_EQ(regime->cpu_ms, 2);
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
    absl::StatusOr<TestEngine> test = StartEngine(pack_->dir(), options);
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

TEST_F(VirtualClockTest, AllResidentStepCostsComputeOnly) {
  std::vector<int32_t> ids;
  const FinishInfo info = Answer(Options(0, 15, 5), &ids);
  // 19 steps after the first token: 3 layers of 2 experts and attention.
  EXPECT_NEAR(info.timings.decode_seconds, 19 * 3 * (2 * 5e-3 + 0.25e-3), 1e-6);
  EXPECT_EQ(info.timings.stall_seconds, 0);
  EXPECT_EQ(info.timings.bytes_link, 0u);
}

// Nothing is cached and nothing predicted: every step waits for each expert's bytes, less the overlapped
// computing.
TEST_F(VirtualClockTest, UncachedStepCostsLinkAndLastTile) {
  TestEngineOptions options = Options(SmallestDeviceBudget(*pack_), 15, 5);
  options.engine.policies.policy = {"cache=none", "expert_predictor=none"};
  options.engine.slab.tile_neurons = 64;  // three tiles
  std::vector<int32_t> ids;
  const FinishInfo info = Answer(options, &ids);
  const double step = 3 * (0.25e-3 + 2 * 15e-3 + 5e-3 / 3);
  EXPECT_NEAR(info.timings.decode_seconds, 19 * step, 19 * step * 0.01);
  EXPECT_EQ(info.timings.expert_hits, 0u);
}

// Only the experts' leads are cached: each costs a third of an expert's compute, and the other two thirds
// only for active neurons, on the link and on the device.
TEST_F(VirtualClockTest, ByNeuronAStepCostsLeadsAndActiveNeurons) {
  TestEngineOptions options = Options(0, 15, 5);
  options.engine.policies.sparsity = "gate";
  options.engine.policies.policy = {"cache_granularity=neuron", "cache=resident", "expert_predictor=none"};
  std::vector<int32_t> ids;
  options.engine.policies.sparsity_threshold = 1e9;  // none active
  FinishInfo info = Answer(options, &ids);
  EXPECT_NEAR(info.timings.decode_seconds, 19 * 3 * (2 * 5e-3 / 3 + 0.25e-3), 1e-5);
  options.engine.policies.sparsity_threshold = 0;  // all active
  info = Answer(options, &ids);
  EXPECT_NEAR(info.timings.decode_seconds, 19 * 3 * (2 * 5e-3 + 0.25e-3), 1e-5);
  EXPECT_EQ(info.timings.bytes_link, 0u);
  // Both other thirds travel in one copy of three tiles; the computing of leads and of the last tile is not
  // overlapped.
  options.engine.policies.policy = {"cache_granularity=neuron", "cache=none", "lead_resident=on",
                                    "expert_predictor=none"};
  options.engine.slab = {.budget = pack_->total_expert_bytes(), .tile_neurons = 64};
  info = Answer(options, &ids);
  const double step = 3 * (0.25e-3 + 2 * 5e-3 / 3 + 2 * 15e-3 * 2 / 3 + 5e-3 * 2 / 9);
  EXPECT_NEAR(info.timings.decode_seconds, 19 * step, 19 * step * 0.01);
  // None of them travels.
  options.engine.policies.sparsity_threshold = 1e9;
  info = Answer(options, &ids);
  EXPECT_NEAR(info.timings.decode_seconds, 19 * 3 * (2 * 5e-3 / 3 + 0.25e-3), 1e-5);
  EXPECT_EQ(info.timings.bytes_link, 0u);
}

// The CPU computes every miss, the device the hits; a layer takes the slower of the two.
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

// The CPU's last result lies in the past; the clock must advance to the landing of the link's bytes.
TEST_F(VirtualClockTest, LinkLandsAfterAWaitForTheCpu) {
  TestEngineOptions options = Options(pack_->total_expert_bytes() / 3, 15, 0.5);
  options.engine.costs.cpu_ms = 1;
  options.engine.policies.policy = {"expert_predictor=gate_reuse", "expert_miss=cpu"};
  absl::StatusOr<TestEngine> test = StartEngine(pack_->dir(), options);
  ASSERT_TRUE(test.ok()) << test.status();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(GenerateIds(test->engine.get(), GreedySpec(absl::StrCat(i), {7 + i}, 2 + i)).ok());
    const absl::Time patience = SteadyNow() + absl::Seconds(60);
    while (test->engine->Stats().fetches_outstanding > 0 && SteadyNow() < patience) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    ASSERT_EQ(test->engine->Stats().fetches_outstanding, 0u) << "after request " << i;
  }
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

// Both experts are resident, and the CPU is as fast as the device: each computes one.
TEST_F(VirtualClockTest, BalanceGivesResidentExpertsToTheCpu) {
  TestEngineOptions options = Options(0, 15, 5);
  options.engine.costs.cpu_ms = 5;
  options.engine.policies.policy = {"expert_predictor=none"};
  std::vector<int32_t> alone;
  EXPECT_NEAR(Answer(options, &alone).timings.decode_seconds, 19 * 3 * (0.25e-3 + 2 * 5e-3), 1e-5);
  options.engine.policies.policy.push_back("expert_miss=balance");
  std::vector<int32_t> shared;
  const FinishInfo info = Answer(options, &shared);
  EXPECT_NEAR(info.timings.decode_seconds, 19 * 3 * (0.25e-3 + 5e-3), 1e-5);
  EXPECT_EQ(shared, alone);
  EXPECT_EQ(info.timings.bytes_link, 0u);
  options.engine.costs.cpu_ms = 11;  // the device finishes both before
  EXPECT_NEAR(Answer(options, &shared).timings.decode_seconds, 19 * 3 * (0.25e-3 + 2 * 5e-3), 1e-5);
}

// Both experts are missing, in three tiles each: 5 ms of the link, 10/3 of the CPU, 5/3 of the device.
// Loaded: both over the link, then the last tile's computing. Two tiles over the link, there and computed at
// 35/3, leave the CPU four: 40/3.
TEST_F(VirtualClockTest, TilesAreSplitBetweenLinkAndCpu) {
  model_.hidden = 128;  // 32 link chunks per expert, so a cancelled one has sent little
  ASSERT_TRUE(PackTiny(model_, dir_.File("wide-model"), dir_.File("wide")).ok());
  pack_ = *Pack::Open(dir_.File("wide"));
  TestEngineOptions options = Options(SmallestDeviceBudget(*pack_), 15, 5);
  options.engine.costs.cpu_ms = 10;
  options.engine.slab.tile_neurons = 64;
  options.engine.policies.policy = {"cache=none", "expert_predictor=none"};
  std::vector<int32_t> whole;
  const double loaded = 19 * 3 * (0.25e-3 + 30e-3 + 5e-3 / 3);
  EXPECT_NEAR(Answer(options, &whole).timings.decode_seconds, loaded, loaded * 0.01);
  options.engine.policies.policy.push_back("expert_miss=balance");
  std::vector<int32_t> shared;
  const double step = 19 * 3 * (0.25e-3 + 40e-3 / 3);
  EXPECT_NEAR(Answer(options, &shared).timings.decode_seconds, step, step * 0.01);
  EXPECT_EQ(shared, whole);
}

// A quarter of the experts is in slots: a link too slow for any prediction, and one fast enough for all.
TEST_F(VirtualClockTest, InReachFetchesOnlyInTime) {
  TestEngineOptions options = Options(pack_->total_expert_bytes() / 4, 100, 5);
  options.engine.costs.cpu_ms = 5;
  options.engine.policies.policy = {"expert_miss=balance", "expert_predictor=gate_reuse",
                                    "predictor_depth=2"};
  for (const double link_ms : {100.0, 6.0}) {
    options.engine.costs.link_ms = link_ms;
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options);
    ASSERT_TRUE(test.ok()) << test.status();
    ASSERT_TRUE(GenerateIds(test->engine.get(), GreedySpec("warm", {7}, 20)).ok());
    const uint64_t before = test->engine->Stats().prefetch_issued;
    ASSERT_TRUE(GenerateIds(test->engine.get(), GreedySpec("g", {7}, 20)).ok());
    EXPECT_EQ(test->engine->Stats().prefetch_issued > before, link_ms < 50) << link_ms;
  }
}

// Two layers, all experts resident, four a token at 5 ms each wherever they run, beside a shared one of twice
// their width: the device computes that and one of them while the CPU computes three.
TEST_F(VirtualClockTest, SharedExpertCountsInTheBalance) {
  ASSERT_TRUE(PackFolder("tests/data/tiny/qwen2_moe", dir_.File("shared")).ok());
  pack_ = *Pack::Open(dir_.File("shared"));
  TestEngineOptions options = Options(pack_->total_expert_bytes(), 15, 5);
  options.engine.costs.cpu_ms = 5;
  options.engine.preset = "importance";
  std::vector<int32_t> ids;
  const FinishInfo info = Answer(options, &ids);
  EXPECT_NEAR(info.timings.decode_seconds, static_cast<double>(ids.size() - 1) * 2 * (15e-3 + 0.25e-3), 1e-6);
}

TEST_F(VirtualClockTest, LayerCountersAddUpToTheTotals) {
  absl::StatusOr<TestEngine> test =
      StartEngine(dir_.File("pack"), Options(pack_->total_expert_bytes() / 2, 15, 5));
  ASSERT_TRUE(test.ok()) << test.status();
  ASSERT_TRUE(GenerateIds(test->engine.get(), GreedySpec("g", {7}, 20)).ok());
  const EngineStats stats = test->engine->Stats();
  const std::vector<LayerStats> layers = test->engine->Layers();
  ASSERT_EQ(layers.size(), 3u);
  LayerStats sum;
  for (const LayerStats& layer : layers) {
    EXPECT_EQ(layer.requests, 20 * 2u) << "a token chooses two experts";
    sum.requests += layer.requests;
    sum.hits += layer.hits;
    sum.prefetch_issued += layer.prefetch_issued;
    sum.predictions.predicted += layer.predictions.predicted;
    sum.predictions.right += layer.predictions.right;
    sum.bytes_link += layer.bytes_link;
  }
  EXPECT_EQ(layers[0].predictions.predicted, 0u) << "nothing predicts the first layer";
  EXPECT_EQ(sum.requests, stats.expert_requests);
  EXPECT_EQ(sum.hits, stats.expert_hits);
  EXPECT_EQ(sum.prefetch_issued, stats.prefetch_issued);
  EXPECT_EQ(sum.predictions.predicted, stats.predictions);
  EXPECT_EQ(sum.predictions.right, stats.predictions_right);
  EXPECT_EQ(sum.bytes_link, stats.bytes_link);
  EXPECT_NEAR(stats.times.step_seconds, stats.prompt_seconds + stats.decode_seconds, 1e-9);
  EXPECT_NEAR(stats.times.compute_seconds(), 20 * 3 * (2 * 5e-3 + 0.25e-3), 1e-6);
  EXPECT_GT(stats.times.stall_seconds, 0);
  EXPECT_GT(stats.times.overlap_seconds(), 0) << "later tiles travel while the first computes";
  EXPECT_GT(stats.real_times.step_seconds, 0);
  EXPECT_EQ(stats.real_times.load_seconds, 0) << "the modelled link takes no time";
}

// Simulates the device's cache without the device: hits of a cache that ranks by the mean scores of the
// last steps, on a recorded trace, beginning with the first `quota` experts.
uint64_t HitsByScores(const TraceLayer& layer, uint32_t quota) {
  SlotEvictionPolicy policy({SlotEviction::kScore}, std::vector<uint32_t>{layer.experts});
  std::set<uint32_t> resident;
  for (uint32_t expert = 0; expert < quota; ++expert) resident.insert(expert);
  uint64_t hits = 0;
  for (uint64_t token = 0; token < layer.tokens();) {
    std::set<uint32_t> chosen;
    std::vector<double> sums(layer.experts);
    const uint64_t first = token;
    for (; token < layer.tokens() && layer.steps[token] == layer.steps[first]; ++token) {
      chosen.insert(layer.Chosen(token).begin(), layer.Chosen(token).end());
      for (uint32_t expert = 0; expert < layer.experts; ++expert) sums[expert] += layer.Scores(token)[expert];
    }
    std::vector<float> means;
    for (const double sum : sums)
      means.push_back(static_cast<float>(sum / static_cast<double>(token - first)));
    policy.BeginLayer(0, means, std::vector<uint32_t>(chosen.begin(), chosen.end()));
    const std::set<uint32_t> before = resident;
    for (const uint32_t expert : chosen) {
      if (before.count(expert) > 0) {
        ++hits;
        continue;
      }
      const std::vector<uint32_t> candidates(resident.begin(), resident.end());
      const uint32_t victim = policy.Victim(0, candidates);
      EXPECT_NE(victim, SlotEvictionPolicy::kNoVictim);
      EXPECT_EQ(chosen.count(candidates[victim]), 0u) << "the shield";
      resident.erase(candidates[victim]);
      resident.insert(expert);
    }
    policy.EndLayer(0);
  }
  return hits;
}

// Prompts, single tokens and batches of three: every step's scores reach the eviction policy, and no expert
// chosen by the running layer is evicted.
TEST_F(VirtualClockTest, ScoresDecideEvictionInEveryStep) {
  TestEngineOptions options = Options(pack_->total_expert_bytes() * 7 / 8, 15, 5);
  options.engine.parallel = 3;
  options.engine.trace = dir_.File("trace");
  options.engine.policies.policy = {"expert_predictor=none,cache_eviction=score"};
  const absl::StatusOr<SlabPlan> plan = PlanSlab(*pack_, options.engine.slab.budget, AllocateUniform);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->classes.size(), 1u);
  std::vector<LayerStats> layers;
  {
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options);
    ASSERT_TRUE(test.ok()) << test.status();
    ASSERT_TRUE(GenerateIds(test->engine.get(), GreedySpec("alone", {7, 9}, 20)).ok());
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (int32_t i = 0; i < 3; ++i) {
      sinks.push_back(std::make_shared<CollectingSink>());
      const GenerateSpec spec = GreedySpec(absl::StrCat("g", i), {11 * i + 3}, 20);
      ASSERT_TRUE(test->engine->Generate(spec, sinks.back()).ok());
    }
    for (const auto& sink : sinks) ASSERT_TRUE(sink->Await().ok());
    layers = test->engine->Layers();
  }
  const absl::StatusOr<Trace> trace = ReadTrace(options.engine.trace);
  ASSERT_TRUE(trace.ok()) << trace.status();
  uint64_t requests = 0;
  uint64_t hits = 0;
  for (uint32_t layer = 0; layer < layers.size(); ++layer) {
    const uint32_t quota = plan->classes[0].quota[layer];
    ASSERT_GE(quota, 4u);
    EXPECT_EQ(layers[layer].hits, HitsByScores(trace->layers[layer], quota)) << layer;
    requests += layers[layer].requests;
    hits += layers[layer].hits;
  }
  EXPECT_LT(hits, requests);
}

// Resident experts are computed, the others travel: the next layer's attention runs on the partial residual.
TEST_F(VirtualClockTest, LookAheadCostsAttentionAndChangesNoToken) {
  TestEngineOptions options = Options(pack_->total_expert_bytes() / 2, 15, 5);
  std::vector<int32_t> plain;
  options.engine.policies.policy = {"expert_predictor=none"};
  Answer(options, &plain);
  options.engine.policies.policy = {"expert_predictor=lookahead"};
  absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options);
  ASSERT_TRUE(test.ok()) << test.status();
  const auto ids = GenerateIds(test->engine.get(), GreedySpec("g", {7}, 20));
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*ids, plain);
  LayerStats sum;
  for (const LayerStats& layer : test->engine->Layers()) {
    sum.predictions.rows += layer.predictions.rows;
    sum.predictions.predicted += layer.predictions.predicted;
    sum.predictions.right += layer.predictions.right;
    sum.prefetch_issued += layer.prefetch_issued;
    sum.prefetch_useful += layer.prefetch_useful + layer.late;
  }
  EXPECT_GT(sum.predictions.rows, 0u);
  EXPECT_LT(sum.predictions.rows, 20 * 2u) << "where nothing is missing nobody looks ahead";
  EXPECT_GT(sum.predictions.right, sum.predictions.predicted / 4);
  EXPECT_GT(sum.prefetch_useful, 0u);
  EXPECT_LE(sum.prefetch_useful, sum.prefetch_issued);
  const double compute = 20 * 3 * (2 * 5e-3 + 0.25e-3);
  EXPECT_NEAR(test->engine->Stats().times.compute_seconds(),
              compute + static_cast<double>(sum.predictions.rows) * 0.25e-3, 1e-6);
}

TEST_F(VirtualClockTest, TokensAreThoseOfTheHost) {
  TestEngineOptions host;
  absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), host);
  ASSERT_TRUE(test.ok()) << test.status();
  const absl::StatusOr<std::vector<int32_t>> wanted =
      GenerateIds(test->engine.get(), GreedySpec("g", {7}, 20));
  ASSERT_TRUE(wanted.ok());
  std::vector<int32_t> ids;
  TestEngineOptions options = Options(pack_->total_expert_bytes() / 4, 15, 0.5);
  Answer(options, &ids);
  EXPECT_EQ(ids, *wanted);
  options.engine.preset = "auto";
  Answer(options, &ids);
  EXPECT_EQ(ids, *wanted);
}

// Predictions and prompts of many rows: prefetches are coalesced, dropped and overtaken in every way.
TEST_F(VirtualClockTest, CoalescedRequestsAllEnd) {
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
}  // namespace sluice::inferd
