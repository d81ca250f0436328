// Predictors on hand-computed cases: neurons from a lead, the learned networks' inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/profile/predictor_weights.h"
#include "inferd/policy/expert_predictor.h"
#include "inferd/policy/neuron_predictor.h"
#include "inferd/policy/prefetcher.h"
#include "inferd/policy/sparsity.h"
#include "tests/inferd/policy/predictor_testing.h"

namespace sluice::inferd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// FloE 3.3.2: |U x| >= t. U x = (0.5, -1, -0.5, -1) for x = (0.5, -1).
TEST_F(PredictorsTest, UpReuseRequestsNeuronsWithLargeUpProduct) {
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const RouterState state = MakeState(0, RowsOf({0.5f, -1}), RowsOf({9, 9}), {1});
  ASSERT_TRUE(*neurons->Begin(state, 1, 1, std::vector<int32_t>{0}));
  EXPECT_THAT(residency_.neurons, ElementsAre(AskedResidency::Asked{1, 0, {1, 3}}));
}

// The residual (3, 4) has root mean square 3.5355: x = (0.8485, 1.1314), U x = (0.85, 1.13, 1.98, -1.70).
TEST_F(PredictorsTest, NormedInputUsesTheNextLayersNorm) {
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  const auto neurons = Neurons(SparsityOrder::kUp, 1.2);
  layers_[1].ffn_norm = {Floats({1, 1}), 0.0f};
  ASSERT_TRUE(
      *neurons->Begin(MakeState(0, RowsOf({3, 4}), RowsOf({0, 0}), {1}), 1, 1, std::vector<int32_t>{0}));
  EXPECT_THAT(residency_.neurons, ElementsAre(AskedResidency::Asked{1, 0, {2, 3}}));
  layers_[1].ffn_norm.weight = Floats({0.5f, 2});  // x = (0.4243, 2.2627): (0.42, 2.26, 2.69, -0.85)
  residency_.neurons.clear();
  ASSERT_TRUE(
      *neurons->Begin(MakeState(0, RowsOf({3, 4}), RowsOf({0, 0}), {1}), 1, 1, std::vector<int32_t>{0}));
  EXPECT_THAT(residency_.neurons, ElementsAre(AskedResidency::Asked{1, 0, {1, 2}}));
}

// CORM 4.2: |silu(G x)| >= theta. silu of 2, -1, -1.2785, 0.25: 1.7616, -0.2689, -0.2785, 0.1405.
TEST_F(PredictorsTest, GateReuseUsesTheGateActivation) {
  const float least = -1.28125f;  // silu(-1.28125) = -0.27846, near SiLU's minimum
  residency_.leads[{1, 1}] = LeadOf({2, 0, -1, 0, least, 0, 0.25f, 0});
  const RouterState state = MakeState(0, RowsOf({1, 0}), RowsOf({1, 0}), {0});
  ASSERT_TRUE(*Neurons(SparsityOrder::kGate, 0.25)->Begin(state, 1, 1, std::vector<int32_t>{1}));
  ASSERT_TRUE(*Neurons(SparsityOrder::kGate, 0.275)->Begin(state, 1, 1, std::vector<int32_t>{1}));
  ASSERT_TRUE(*Neurons(SparsityOrder::kGate, 0.28)->Begin(state, 1, 1, std::vector<int32_t>{1}));
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 1, {0, 1, 2}}, AskedResidency::Asked{1, 1, {0, 2}},
                          AskedResidency::Asked{1, 1, {0}}));
}

// U x = (0.5, -0.75, -0.25, -1): one of four is a quarter.
TEST_F(PredictorsTest, AShareTakesTheLargestProducts) {
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  NeuronPredictorOptions options;
  options.share = 0.25;
  const auto neurons = Neurons(SparsityOrder::kUp, 0.1, options);
  const RouterState state = MakeState(0, RowsOf({0.5f, -0.75f}), RowsOf({9, 9}), {1});
  ASSERT_TRUE(*neurons->Begin(state, 1, 1, std::vector<int32_t>{0}));
  EXPECT_THAT(residency_.neurons, ElementsAre(AskedResidency::Asked{1, 0, {3}}));
}

// Row 0 wants neurons 1 and 3, row 2 (x = (1, 0): 1, 0, 1, -2) neurons 0, 2 and 3; row 1 another expert.
TEST_F(PredictorsTest, RequestIsTheUnionOverAnExpertsRows) {
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  residency_.leads[{1, 1}] = LeadOf({0, 0, 0, 0, 0, 0, 1, 0});
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const RouterState state =
      MakeState(0, RowsOf({0.5f, -1, 2, 2, 1, 0}), RowsOf({0, 0, 0, 0, 0, 0}), {1, 1, 1});
  ASSERT_TRUE(*neurons->Begin(state, 1, 1, std::vector<int32_t>{0, 1, 0}));
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 0, {0, 1, 2, 3}}, AskedResidency::Asked{1, 1, {3}}));
}

TEST_F(PredictorsTest, ALeadThatIsMissingIsFetchedBeforeItsNeurons) {
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const RouterState state = MakeState(0, RowsOf({0.5f, -1}), RowsOf({0, 0}), {1});
  ASSERT_TRUE(*neurons->Begin(state, 1, 1, std::vector<int32_t>{0}));
  ASSERT_TRUE(neurons->Continue().ok());
  EXPECT_THAT(residency_.neurons, ElementsAre(AskedResidency::Asked{1, 0, {}}));
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  ASSERT_TRUE(neurons->Continue().ok());
  ASSERT_TRUE(neurons->Continue().ok());  // one call is enough
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 0, {}}, AskedResidency::Asked{1, 0, {1, 3}}));
}

// Expert 0 has half of its neurons, expert 1 a quarter; an expert requested without neurons is kept.
TEST_F(PredictorsTest, ExpertWithEnoughNeuronsIsNotPredicted) {
  residency_.leads[{1, 0}] = residency_.leads[{1, 1}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  residency_.shares = {{{1, 0}, 0.5}, {{1, 1}, 0.25}};
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const Rows x = RowsOf({0.5f, -1, 1, 0});
  ASSERT_TRUE(*neurons->Begin(MakeState(0, x, x, {1, 1}), 1, 1, std::vector<int32_t>{0, 1}));
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 0, {}}, AskedResidency::Asked{1, 1, {0, 2, 3}}));
  residency_.shares[{1, 1}] = 1;
  residency_.neurons.clear();
  EXPECT_FALSE(*neurons->Begin(MakeState(0, x, x, {1, 1}), 1, 1, std::vector<int32_t>{0, 1}));
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 0, {}}, AskedResidency::Asked{1, 1, {}}));
}

// Two experts a row, the better one first: row 0 names 0, then 1; row 1 names 1, then 0.
TEST_F(PredictorsTest, BusyLinkGetsOnlyTheBestExpertsOfARow) {
  residency_.leads[{1, 0}] = residency_.leads[{1, 1}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  NeuronPredictorOptions options;
  options.max_behind = 1;
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75, options);
  const Rows x = RowsOf({0.5f, -1, 1, 0});
  const RouterState state = MakeState(0, x, x, {0, 1, 0, 1}, {}, 2);
  const std::vector<int32_t> ids = {0, 1, 1, 0};
  ASSERT_TRUE(*neurons->Begin(state, 1, 2, ids));
  EXPECT_THAT(residency_.neurons, ElementsAre(AskedResidency::Asked{1, 0, {0, 1, 2, 3}},
                                              AskedResidency::Asked{1, 1, {0, 1, 2, 3}}));
  residency_.behind = true;
  residency_.neurons.clear();
  ASSERT_TRUE(*neurons->Begin(state, 1, 2, ids));
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 0, {1, 3}}, AskedResidency::Asked{1, 1, {0, 2, 3}}));
}

TEST_F(PredictorsTest, StepsAboveMaxRowsAreNotPredicted) {
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const std::vector<int32_t> ids(5, 0);
  const RouterState state = MakeState(0, RowsOf(std::vector<float>(10)), RowsOf(std::vector<float>(10)), ids);
  EXPECT_FALSE(*neurons->Begin(state, 1, 1, ids));
  EXPECT_THAT(residency_.neurons, IsEmpty());
}

// Predicted {1, 3}; with the true x = (1, -0.25) the products are 1, -0.25, 0.75, -2: neurons 0, 2 and 3.
TEST_F(PredictorsTest, NeuronsAreCountedForRowsWhoseExpertWasChosen) {
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const Rows x = RowsOf({0.5f, -1, 0.5f, -1, 0.5f, -1});
  const std::vector<int32_t> predicted = {0, 0, 0};
  ASSERT_TRUE(*neurons->Begin(MakeState(0, x, x, {1, 1, 1}), 1, 1, predicted));
  // Row 0 chose it, row 1 another, row 2 chose it but is left out.
  const Rows truth = RowsOf({1, -0.25f, 1, -0.25f, 1, -0.25f});
  ASSERT_TRUE(neurons->Compare(MakeState(1, truth, truth, {0, 1, 0}, {1, 1, 0})).ok());
  EXPECT_EQ(neurons->counters(1).predicted, 2u);
  EXPECT_EQ(neurons->counters(1).wanted, 3u);
  EXPECT_EQ(neurons->counters(1).right, 1u);
  ASSERT_TRUE(neurons->Compare(MakeState(1, truth, truth, {0, 1, 0})).ok());  // nothing is counted twice
  EXPECT_EQ(neurons->counters(1).predicted, 2u);
}

TEST_F(PredictorsTest, AnotherStepsPredictionIsNotCounted) {
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const Rows x = RowsOf({0.5f, -1});
  ASSERT_TRUE(*neurons->Begin(MakeState(0, x, x, {1}, {}, 1, 8), 1, 1, std::vector<int32_t>{0}));
  ASSERT_TRUE(neurons->Compare(MakeState(1, x, x, {0}, {}, 1, 9)).ok());
  EXPECT_EQ(neurons->counters(1).predicted, 0u);
}

// FloE 3.3.1: a network sees x_l, this layer's experts and those of the routed layer before.
class LearnedExpertsTest : public PredictorsTest {
 protected:
  void SetUp() override {
    PredictorsTest::SetUp();
    config_.layers.resize(3);
    for (LayerConfig& layer : config_.layers) {
      layer.moe.experts = 3;
      layer.moe.top_k = 2;
    }
  }

  // Linear over (x0, x1, own 0..2, before 0..2).
  PredictorNet Linear(std::vector<float> w, std::vector<float> b) {
    return {.inputs = 8,
            .units = 0,
            .outputs = 3,
            .precision = 0.5,
            .w1 = {},
            .b1 = {},
            .w2 = std::move(w),
            .b2 = std::move(b)};
  }
  std::unique_ptr<LearnedExperts> Learned(uint32_t layer, PredictorNet net) {
    PredictorProfile profile;
    profile.learned.push_back({layer, std::move(net)});
    return *LearnedExperts::Create(config_, std::move(profile), backend_.get());
  }
};

// Scores: expert 0 has x0 = 0.5; expert 1 has 2 if expert 2 was chosen here; expert 2 has 1 if expert 0 was
// chosen in the layer before.
TEST_F(LearnedExpertsTest, ItSeesTheHiddenStateAndTheChoicesOfTwoLayers) {
  const auto learned = Learned(1, Linear({1, 0, 0, 0, 0, 0, 0, 0,  //
                                          0, 0, 0, 0, 2, 0, 0, 0,  //
                                          0, 0, 0, 0, 0, 1, 0, 0},
                                         {0, 0, 0}));
  const Rows x = RowsOf({0.5f, 7, 3, 7});
  ASSERT_TRUE(learned->Observe(MakeState(0, x, x, {0, 1, 1, 2}, {}, 2)).ok());
  const RouterState state = MakeState(1, x, x, {2, 0, 1, 0}, {}, 2);
  ASSERT_TRUE(learned->Observe(state).ok());
  const auto routing = learned->Predict(state, 2);
  ASSERT_TRUE(routing.ok()) << routing.status();
  ASSERT_EQ(routing->tokens, 2u);
  // Row 0: scores 0.5, 2, 1. Row 1 chose neither: 3, 0, 0, the tie goes to the lower index.
  EXPECT_THAT(std::vector<int32_t>(routing->ids, routing->ids + 4), ElementsAre(1, 2, 0, 1));
  EXPECT_NEAR(routing->weights[0], 1 / (1 + std::exp(-2.0)), 1e-6);
}

// relu(x0 - 1) = 2 for x0 = 3, and relu(-x0) = 0.
TEST_F(LearnedExpertsTest, AHiddenLayerIsRectified) {
  PredictorNet net{.inputs = 8,
                   .units = 2,
                   .outputs = 3,
                   .precision = 0.5,
                   .w1 = std::vector<float>(16),
                   .b1 = {-1, 0},
                   .w2 = {0, 9, 1, 0, 0, 0},
                   .b2 = {1, 0, 1.5f}};
  net.w1[0] = 1;
  net.w1[8] = -1;
  const auto learned = Learned(0, std::move(net));
  const Rows x = RowsOf({3, 0});
  const RouterState state = MakeState(0, x, x, {0, 1}, {}, 2);
  ASSERT_TRUE(learned->Observe(state).ok());
  const auto routing = learned->Predict(state, 1);  // scores 1, 2, 1.5
  ASSERT_TRUE(routing.ok()) << routing.status();
  EXPECT_THAT(std::vector<int32_t>(routing->ids, routing->ids + 2), ElementsAre(1, 2));
}

TEST_F(LearnedExpertsTest, TheLayerBeforeOfAnotherStepCountsAsUnknown) {
  const auto learned = Learned(1, Linear({0, 0, 0, 0, 0, 0, 0, 0,  //
                                          0, 0, 0, 0, 0, 0, 0, 0,  //
                                          0, 0, 0, 0, 0, 1, 0, 0},
                                         {0.5f, 0.25f, 0}));
  const Rows x = RowsOf({0, 0});
  ASSERT_TRUE(learned->Observe(MakeState(0, x, x, {0, 1}, {}, 2, 4)).ok());
  const RouterState state = MakeState(1, x, x, {2, 1}, {}, 2, 5);
  ASSERT_TRUE(learned->Observe(state).ok());
  const auto routing = learned->Predict(state, 2);
  ASSERT_TRUE(routing.ok()) << routing.status();
  EXPECT_THAT(std::vector<int32_t>(routing->ids, routing->ids + 2), ElementsAre(0, 1));
}

TEST_F(LearnedExpertsTest, NoPredictionWithoutNetworkOrForLongSteps) {
  const auto learned = Learned(1, Linear(std::vector<float>(24), {0, 0, 0}));
  const Rows x = RowsOf(std::vector<float>(80));
  EXPECT_EQ(learned->Predict(MakeState(0, x, x, {0, 1}, {}, 2), 1)->tokens, 0u);
  EXPECT_EQ(learned->Predict(MakeState(1, x, x, std::vector<int32_t>(80, 0), {}, 2), 2)->tokens, 0u);
  EXPECT_EQ(learned->Predict(MakeState(1, x, x, {0, 1}, {}, 2), 2)->tokens, 1u);
}

}  // namespace
}  // namespace sluice::inferd
