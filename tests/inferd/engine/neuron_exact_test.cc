// A neuron cache does not change results: with misses loaded, logits are bit for bit those of the resident
// model at the same sparsity, over random draws of encoding, layout, order, budget, link, tile, batch,
// prefill chunk, prefetch, location of leads, faults and deaths of weightd.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "gtest/gtest.h"
#include "inferd/cache/neuron_layout.h"
#include "pack/writer/pack_writer.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kVocab = 80;
constexpr int kInputs = 3;
constexpr uint32_t kAnswer = 10;

uint32_t Draws(uint32_t in_ci) {
  const char* stress = std::getenv("SLUICE_STRESS");
  return stress != nullptr && std::string(stress) == "full" ? 10 * in_ci : in_ci;
}

template <typename T>
T OneOf(std::mt19937* random, std::initializer_list<T> values) {
  return *(values.begin() + (*random)() % values.size());
}

struct Case {
  const char* name;
  const char* bits;
  const char* layout;
  SparsityOrder order;
  uint32_t experts;
};

class NeuronExactTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    TinyModelSpec spec;
    spec.vocab = kVocab;
    spec.hidden = 48;
    spec.layers = 3;
    spec.heads = 6;
    spec.kv_heads = 3;
    spec.head_dim = 16;
    spec.experts = GetParam().experts;
    spec.top_k = 2;
    spec.width = 200;
    ASSERT_TRUE(WriteTinyModel(spec, dir_.File("model")).ok());
    auto options = PackOptionsFromText(GetParam().bits, "", 64, "bf16", GetParam().layout);
    ASSERT_TRUE(options.ok()) << options.status();
    options->threads = 1;
    const auto packed = PackModel(dir_.File("model"), dir_.File("pack"), *options, nullptr, nullptr);
    ASSERT_TRUE(packed.ok()) << packed.status();
    pack_ = *Pack::Open(dir_.File("pack"));
    std::mt19937 random(3);
    for (int i = 0; i < kInputs; ++i) {
      std::vector<int32_t> ids(5 + 33 * i);
      std::generate(ids.begin(), ids.end(), [&] { return static_cast<int32_t>(random() % kVocab); });
      inputs_.push_back(std::move(ids));
    }
  }

  Part Lead() const { return GetParam().order == SparsityOrder::kUp ? Part::kUp : Part::kGate; }

  // Results of the host with every neuron resident.
  struct Wanted {
    std::vector<std::vector<float>> logits;
    std::vector<std::vector<int32_t>> greedy;
  };
  const Wanted& WantedFor(double threshold) {
    Wanted& wanted = wanted_[threshold];
    if (wanted.logits.empty()) {
      TestEngineOptions options;
      options.engine.parallel = 1;
      options.engine.prefetch = false;
      options.engine.policies = Sparsity(threshold);
      absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options);
      EXPECT_TRUE(test.ok()) << test.status();
      for (int i = 0; i < kInputs; ++i) {
        wanted.logits.push_back(*ScoreLogits(test->engine.get(), "s", inputs_[i]));
        wanted.greedy.push_back(*GenerateIds(test->engine.get(), GreedySpec("g", inputs_[i], kAnswer)));
      }
    }
    return wanted;
  }

  PolicyOverrides Sparsity(double threshold) const {
    PolicyOverrides overrides;
    overrides.sparsity = SparsityWord(GetParam().order);
    overrides.sparsity_threshold = threshold;
    return overrides;
  }

  TestEngineOptions Draw(std::mt19937* random, double threshold) const {
    TestEngineOptions options;
    options.threads = OneOf(random, {0u, 1u, 2u});
    options.engine.parallel = OneOf(random, {1u, 8u});
    options.engine.prefill_chunk = OneOf(random, {1u, 8u, 64u, 512u});
    options.engine.prefetch = (*random)() % 2 == 0;
    options.engine.context = 256;
    options.engine.stall_limit = absl::Seconds(60);  // a loaded machine must not fail the test
    options.engine.weightd_grace = absl::Seconds(60);
    options.engine.device = DeviceKind::kSim;
    options.engine.policies = Sparsity(threshold);
    const bool resident = (*random)() % 2 == 0;
    options.engine.policies.policy = {
        "cache_granularity=neuron", absl::StrCat("lead_resident=", resident ? "on" : "off"),
        absl::StrCat("cache=", OneOf(random, {"slots", "slots", "slots", "none", "resident"})),
        absl::StrCat("cache_eviction=", OneOf(random, {"lru", "lfru", "score"}))};
    if ((*random)() % 2 == 0) {
      options.engine.policies.policy.push_back(GetParam().order == SparsityOrder::kUp
                                                   ? "neuron_predictor=up_reuse"
                                                   : "neuron_predictor=gate_reuse");
      // No layer's predictions are complete, so no layer proceeds with them alone.
      if ((*random)() % 3 == 0) {
        options.engine.policies.policy.push_back(
            "expert_miss=proceed,neuron_miss=proceed,predictor_recall=1");
      }
    }
    const uint64_t least = SmallestNeuronBudget(*pack_, Lead(), resident);
    const uint64_t most = 2 * pack_->total_expert_bytes();
    options.engine.slab.budget =
        OneOf(random, {least, least, least + (*random)() % (most - least + 1), uint64_t{0}});
    options.engine.slab.link_latency_us = OneOf(random, {0.0, 40.0});
    options.engine.slab.tile_neurons = OneOf(random, {0u, 64u, 128u});
    options.engine.virtual_clock = (*random)() % 3 == 0;
    options.engine.costs.link_ms = OneOf(random, {0.0, 0.5, 15.0});
    const uint64_t smallest = SmallestBudget(dir_.File("pack"), std::max(1u, options.threads));
    const uint64_t all = pack_->dense_bytes() + pack_->total_expert_bytes();
    options.weights.dram_budget = std::max(smallest, OneOf(random, {all, all / 2, smallest}));
    options.weights.seed = (*random)();
    options.weights.max_delay_polls = OneOf(random, {0u, 1u, 3u, 9u});  // the link's rate
    options.weights.no_room_chance = OneOf(random, {0.0, 0.0, 0.1});
    options.weights.evict_chance = OneOf(random, {0.0, 0.2});
    options.weights.ring_entries = OneOf(random, {4u, 64u});
    return options;
  }

  void RunDraw(uint32_t draw) {
    std::mt19937 random(7000 + draw);
    const double threshold = OneOf(&random, {0.05, 0.3, 0.3, 1e9});
    TestEngineOptions options = Draw(&random, threshold);
    options.delay_seed = draw % 2 == 1 && !options.engine.virtual_clock ? draw : 0;
    const Wanted& wanted = WantedFor(threshold);
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options);
    ASSERT_TRUE(test.ok()) << test.status();
    if (random() % 4 == 0) {
      test->client->DisconnectAfterPolls(random() % 300);
    }
    std::vector<std::shared_ptr<CollectingScoreSink>> scores;
    std::vector<std::shared_ptr<CollectingSink>> answers;
    for (int i = 0; i < kInputs; ++i) {
      ScoreSpec spec;
      spec.request_id = absl::StrCat("s", i);
      spec.input = inputs_[i];
      spec.want_logits = true;
      scores.push_back(std::make_shared<CollectingScoreSink>());
      ASSERT_TRUE(test->engine->Score(spec, scores.back()).ok());
      answers.push_back(std::make_shared<CollectingSink>());
      ASSERT_TRUE(
          test->engine->Generate(GreedySpec(absl::StrCat("g", i), inputs_[i], kAnswer), answers.back()).ok());
    }
    for (int i = 0; i < kInputs; ++i) {
      ASSERT_TRUE(scores[i]->Await().ok()) << scores[i]->Await();
      ASSERT_EQ(scores[i]->logits(), wanted.logits[i]) << "input " << i;
      ASSERT_TRUE(answers[i]->Await().ok()) << answers[i]->Await();
      ASSERT_EQ(answers[i]->ids(), wanted.greedy[i]) << "input " << i;
    }
    AwaitQuiet(*test->engine);
    EXPECT_EQ(test->client->violation(), "");
  }

  TempDir dir_;
  std::unique_ptr<Pack> pack_;
  std::vector<std::vector<int32_t>> inputs_;
  std::map<double, Wanted> wanted_;
};

TEST_P(NeuronExactTest, NeuronCacheLogitsEqualTheResidentModels) {
  for (uint32_t draw = 0; draw < Draws(10); ++draw) {
    RunDraw(draw);
    ASSERT_FALSE(HasFailure()) << "draw " << draw;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Packs, NeuronExactTest,
    testing::Values(Case{"Bf16UpApart", "bf16", "up|gate+down", SparsityOrder::kUp, 8},
                    Case{"Q4GateApart", "q4", "gate|up+down", SparsityOrder::kGate, 8},
                    Case{"Q8NothingInterleaved", "q8", "up|gate|down", SparsityOrder::kGate, 4},
                    Case{"Q2LeadInterleaved", "q2", "gate|up+down", SparsityOrder::kUp, 16},
                    Case{"F16NothingInterleaved", "f16", "up|gate|down", SparsityOrder::kUp, 5}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::inferd
