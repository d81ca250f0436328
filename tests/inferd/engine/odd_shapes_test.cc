// Every preset on edge cases of models and devices: one layer, all experts chosen, more than two per token,
// shared experts, the minimum budget, a very slow link, eight sequences at once. A preset answers every
// request in full or refuses at the start, naming the missing feature.
//
// Thread safety: tests; one thread besides the engine's.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "inferd/engine/cache_setup.h"
#include "inferd/policy/policies.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kAnswer = 12;

struct Shape {
  const char* name;
  const char* family;  // a family in tests/data/tiny; empty: a Mixtral made here
  TinyModelSpec model;
};

std::vector<Shape> Shapes() {
  TinyModelSpec one_layer;
  one_layer.layers = 1;
  TinyModelSpec all;
  all.experts = all.top_k = 3;
  TinyModelSpec single;
  single.top_k = 1;
  TinyModelSpec five;
  five.experts = 6;
  five.top_k = 5;
  five.layers = 3;
  five.width = 200;
  return {{"OneLayer", "", one_layer},        {"AllExpertsChosen", "", all},
          {"OneExpertAToken", "", single},    {"FiveOfSix", "", five},
          {"SharedExperts", "qwen2_moe", {}}, {"DenseLayersFirst", "deepseek_v3", {}},
          {"ScaledInputs", "llama4", {}},     {"SinksAndBiases", "gpt_oss", {}},
          {"WeightsAsTheyAre", "olmoe", {}}};
}

// Overrides a preset's policies that need a profile.
std::vector<std::string> WithoutProfile(const std::string& preset) {
  if (preset == "adapmoe") return {"first_layer=off", "score_threshold=0.1"};
  if (preset.starts_with("floe")) return {"sparsity_threshold=0.01", "expert_predictor=gate_reuse"};
  if (preset == "intra") return {"sparsity_threshold=0.001"};
  return {};
}

class OddShapesTest : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    const std::string family = GetParam().family;
    const absl::Status packed = family.empty()
                                    ? PackTiny(GetParam().model, dir_.File("model"), dir_.File("pack"))
                                    : PackFolder("tests/data/tiny/" + family, dir_.File("pack"));
    ASSERT_TRUE(packed.ok()) << packed;
    pack_ = *Pack::Open(dir_.File("pack"));
  }

  uint64_t LeastBudget(const Policies& policies) const {
    uint64_t least = 1;
    while (!CheckSlotBudget(policies, *pack_, least).ok()) least += std::max<uint64_t>(1, least / 16);
    return least;
  }

  // True if it ran; otherwise checks that it was refused with a reason.
  bool Answers(const std::string& preset, TestEngineOptions options, uint64_t budget, int texts) {
    SCOPED_TRACE(absl::StrCat(preset, ", budget ", budget, ", ", texts, " texts"));
    options.threads = 1;
    options.engine.device = DeviceKind::kSim;
    options.engine.preset = preset;
    options.engine.policies.policy = WithoutProfile(preset);
    options.engine.slab.budget = budget;
    options.engine.parallel = 8;
    options.engine.context = 64;
    options.engine.stall_limit = absl::Seconds(60);  // a loaded machine must not fail the test
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options);
    if (!test.ok()) {
      EXPECT_TRUE(absl::IsUnimplemented(test.status()) || absl::IsInvalidArgument(test.status()) ||
                  absl::IsNotFound(test.status()) || absl::IsFailedPrecondition(test.status()))
          << test.status();
      EXPECT_GT(test.status().message().size(), 20u);
      refusals_.push_back(absl::StrCat(preset, ": ", test.status().ToString()));
      return false;
    }
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (int i = 0; i < texts; ++i) {
      sinks.push_back(std::make_shared<CollectingSink>());
      const GenerateSpec spec = GreedySpec(absl::StrCat("g", i), {4, 5 + i, 6, 7}, kAnswer);
      EXPECT_TRUE(test->engine->Generate(spec, sinks.back()).ok());
    }
    for (const auto& sink : sinks) {
      EXPECT_TRUE(sink->Await().ok()) << sink->Await();
      EXPECT_EQ(sink->ids().size(), kAnswer);
    }
    EXPECT_EQ(test->client->violation(), "");
    return true;
  }

  TempDir dir_;
  std::unique_ptr<Pack> pack_;
  std::vector<std::string> refusals_;
};

TEST_P(OddShapesTest, EveryPresetAnswersOrSaysWhyNot) {
  for (const std::string& preset : PresetNames()) {
    const auto policies = PoliciesOf(preset, {.policy = WithoutProfile(preset)}, DeviceKind::kSim);
    if (!policies.ok()) continue;
    const uint64_t least = LeastBudget(*policies);
    for (const uint64_t budget : {least, pack_->total_expert_bytes() / 2, uint64_t{0}}) {
      if (budget != 0 && budget < least) continue;
      TestEngineOptions virtual_time;
      virtual_time.engine.virtual_clock = true;
      virtual_time.engine.costs.link_ms = 500;  // a very slow link
      const bool ran = Answers(preset, virtual_time, budget, 8);
      TestEngineOptions real_time;
      real_time.weights.max_delay_polls = 5;
      real_time.weights.ring_entries = 4;
      EXPECT_EQ(Answers(preset, real_time, budget, 8), ran);
      Answers(preset, real_time, budget, 1);
    }
  }
  for (const std::string& refusal : refusals_) {
    RecordProperty("refused", refusal);
    EXPECT_FALSE(absl::StrContains(refusal, "exact:") || absl::StrContains(refusal, "resident:")) << refusal;
    std::printf("refused: %s\n", refusal.c_str());
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, OddShapesTest, testing::ValuesIn(Shapes()),
                         [](const testing::TestParamInfo<Shape>& info) { return info.param.name; });

// Runs floe at a budget that leaves two slots beside the up parts: prefetched neurons find no slot, so
// nothing is predicted, and the start log tells this; if told to count, it predicts anyway.
TEST(FewSlotsTest, NeuronsAreNotPredictedWithoutRoomForThem) {
  TempDir dir;
  TinyModelSpec model;
  model.layers = 3;
  model.experts = 6;
  model.width = 200;
  ASSERT_TRUE(PackTiny(model, dir.File("model"), dir.File("pack")).ok());
  const std::unique_ptr<Pack> pack = *Pack::Open(dir.File("pack"));
  const auto predicted = [&](uint64_t budget, bool said) {
    TestEngineOptions options;
    options.engine.device = DeviceKind::kSim;
    options.engine.preset = "floe";
    options.engine.policies.policy = {"sparsity_threshold=0.3,expert_predictor=gate_reuse"};
    options.engine.slab.budget = budget;
    options.engine.virtual_clock = true;
    absl::StatusOr<TestEngine> test = StartEngine(dir.File("pack"), options);
    EXPECT_TRUE(test.ok()) << test.status();
    EXPECT_EQ(absl::StrContains(test->engine->description(), "no room for neurons"), said)
        << test->engine->description();
    EXPECT_TRUE(GenerateIds(test->engine.get(), GreedySpec("g", {4, 5, 6}, 70)).ok());
    uint64_t sum = 0;
    for (const LayerStats& layer : test->engine->Layers()) sum += layer.neurons_predicted;
    return sum;
  };
  const uint64_t least = SmallestNeuronBudget(*pack, Part::kUp, /*lead_resident=*/true);
  EXPECT_EQ(predicted(least, true), 0u);
  const uint64_t slot = NeuronLayoutOf(*pack, 0, 0, Part::kUp, true).slot_bytes;
  EXPECT_GT(predicted(least + 6 * (slot + PositionBytes(*pack, 1)), false), 0u);
}

}  // namespace
}  // namespace sluice::inferd
