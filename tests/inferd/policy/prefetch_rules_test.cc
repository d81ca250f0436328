// The first layer's gate on hand-computed cases, the prediction depth, and the fetched experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "common/profile/predictor_weights.h"
#include "inferd/policy/expert_predictor.h"
#include "inferd/policy/prefetcher.h"
#include "tests/inferd/policy/predictor_testing.h"

namespace sluice::inferd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// AdapMoE eq. 9: softmax(W a + b) of the last layer's output.
class FirstLayerTest : public PredictorsTest {
 protected:
  std::unique_ptr<FirstLayerPredictor> Gate(bool final_norm) {
    config_.layers[0].moe.experts = 3;
    config_.layers[0].moe.top_k = 2;
    PredictorProfile profile;
    profile.first_layer =
        FirstLayerGate{final_norm, 0, {2, 0, 3, 0.5, {}, {}, {1, 0, 0, 1, 0, 0}, {0, 0, 1}}};
    final_norm_ = {Floats({1, 1}), 0.0f};
    auto made = FirstLayerPredictor::Create(config_, profile, &final_norm_, backend_.get(), 40, 2);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  NormSpec final_norm_;
};

// Scores 0.5, 2, 1 of row 1: experts 1 and 2, e^2 and e^1 of e^0.5 + e^2 + e^1.
TEST_F(FirstLayerTest, LastRowGetsBestExpertsAndProbabilities) {
  const auto gate = Gate(false);
  batch_.Clear(3);
  batch_.Add(std::vector<int32_t>(2, 1), {});
  ASSERT_TRUE(gate->Ask({1, RowsOf({9, 9, 0.5f, 2}), &batch_}, std::vector<uint32_t>{1}).ok());
  const Routing routing = gate->Answer();
  EXPECT_THAT(std::vector<int32_t>(routing.ids, routing.ids + 2), ElementsAre(1, 2));
  const double sum = std::exp(0.5) + std::exp(2.0) + std::exp(1.0);
  EXPECT_NEAR(routing.weights[0], std::exp(2.0) / sum, 1e-6);
  EXPECT_NEAR(routing.weights[1], std::exp(1.0) / sum, 1e-6);
}

// (3, 4) normed is (0.85, 1.13), and expert 2 has 1: experts 1 and 2. Without the norm: experts 1 and 0.
TEST_F(FirstLayerTest, FinalNormIsAppliedIfTheGateUsesIt) {
  batch_.Clear(3);
  batch_.Add(std::vector<int32_t>(1, 1), {});
  const LayerEnd end = {1, RowsOf({3, 4}), &batch_};
  const auto with_norm = Gate(true);
  ASSERT_TRUE(with_norm->Ask(end, std::vector<uint32_t>{0}).ok());
  const Routing normed = with_norm->Answer();
  EXPECT_THAT(std::vector<int32_t>(normed.ids, normed.ids + 2), ElementsAre(1, 2));
  const auto without_norm = Gate(false);
  ASSERT_TRUE(without_norm->Ask(end, std::vector<uint32_t>{0}).ok());
  const Routing raw = without_norm->Answer();
  EXPECT_THAT(std::vector<int32_t>(raw.ids, raw.ids + 2), ElementsAre(1, 0));
}

// The forward pass ends with the last layer's AfterLayer(); head and sampling come after it.
TEST_F(FirstLayerTest, FetchStartsAtLastLayerAndIsComparedNextStep) {
  auto gate = Gate(false);
  Prefetcher prefetcher(config_, {.max_tokens = 40, .max_sequences = 2}, {.first_layer = std::move(gate)},
                        &residency_);
  batch_.Clear(3);
  batch_.Add(std::vector<int32_t>(2, 1), {.first_position = 0, .pages = pages_});
  ASSERT_TRUE(prefetcher.AfterLayer({0, RowsOf({9, 9, 0.5f, 2}), &batch_}).ok());
  EXPECT_THAT(residency_.experts, IsEmpty());
  ASSERT_TRUE(prefetcher.AfterLayer({1, RowsOf({9, 9, 0.5f, 2}), &batch_}).ok());
  EXPECT_THAT(residency_.experts, ElementsAre(std::pair(0u, 1u), std::pair(0u, 2u)));
  batch_.Clear(4);
  batch_.Add(std::vector<int32_t>(1, 1), {.first_position = 2, .pages = pages_});
  const std::vector<int32_t> chosen = {2, 0};
  const std::vector<float> weights = {0.5f, 0.5f};
  const Rows x = RowsOf({0, 0});
  ASSERT_TRUE(prefetcher.AfterRouter({0, x, x, {1, 2, 2, chosen.data(), weights.data()}, &batch_, {}}).ok());
  EXPECT_EQ(prefetcher.counters_at(0, 0).predicted, 2u);
  EXPECT_EQ(prefetcher.counters_at(0, 0).right, 1u);
  EXPECT_EQ(prefetcher.counters_at(0, 0).wanted, 2u);
}

// Predicts experts 0 and 1 of any layer, with a given confidence.
class FixedPredictor final : public ExpertPredictor {
 public:
  FixedPredictor(Queue* queue, std::vector<float> confidence)
      : ExpertPredictor(queue), confidence_(std::move(confidence)) {}
  absl::Status Ask(const RouterState&, uint32_t target) override {
    asked.push_back(target);
    return absl::OkStatus();
  }
  absl::StatusOr<Routing> Answer(const RouterState&, uint32_t) override {
    return Routing{1, 2, 2, ids_, chances_};
  }
  float Confidence(uint32_t, uint32_t rank) const override { return confidence_[rank]; }

  std::vector<uint32_t> asked;

 private:
  const std::vector<float> confidence_;
  const int32_t ids_[2] = {0, 1};
  const float chances_[2] = {.75f, .25f};
};

// Prediction depth, and the fetched experts.
class PrefetchRulesTest : public PredictorsTest {
 protected:
  void SetUp() override {
    PredictorsTest::SetUp();
    config_.layers.resize(4);
    for (LayerConfig& layer : config_.layers) {
      layer.moe.experts = 3;
      layer.moe.top_k = 2;
    }
  }
  // The layers asked about after layer 0's router.
  std::vector<uint32_t> Asked(PrefetcherOptions options) {
    options.max_tokens = 40;
    options.max_sequences = 2;
    options.depth = 3;
    auto predictor = std::make_unique<FixedPredictor>(&backend_->queue(), std::vector<float>{.9f, .6f});
    const FixedPredictor* const asked = predictor.get();
    Prefetcher prefetcher(config_, options, {.experts = std::move(predictor)}, &residency_);
    const Rows x = RowsOf({0, 0});
    RouterState state = MakeState(0, x, x, {0, 1}, {}, 2);
    batch_.Clear(state.batch->step());
    batch_.Add(std::vector<int32_t>(1, 1), {.pages = pages_, .decode_from = prompt_ ? 1u : 0u});
    EXPECT_TRUE(prefetcher.AfterRouter(state).ok());
    return asked->asked;
  }

  bool prompt_ = false;  // true: the row is a prompt's
};

TEST_F(PrefetchRulesTest, FirstLayerWithMissesEndsTheSearch) {
  EXPECT_THAT(Asked({}), ElementsAre(1));
  EXPECT_THAT(residency_.experts, ElementsAre(std::pair(1u, 0u), std::pair(1u, 1u)));
  residency_.all_coming = true;
  EXPECT_THAT(Asked({}), ElementsAre(1, 2, 3));
}

TEST_F(PrefetchRulesTest, IdleRuleWaitsForAnIdleLink) {
  residency_.all_coming = true;
  residency_.link_idle = false;
  EXPECT_THAT(Asked({}), ElementsAre(1, 2, 3));
  EXPECT_THAT(Asked({.deep_when_idle = true}), ElementsAre(1));
  residency_.link_idle = true;
  EXPECT_THAT(Asked({.deep_when_idle = true}), ElementsAre(1, 2, 3));
}

TEST_F(PrefetchRulesTest, LowConfidenceExpertsAreNotFetched) {
  Asked({.confidence = .7f});
  EXPECT_THAT(residency_.experts, ElementsAre(std::pair(1u, 0u)));
  residency_.experts.clear();
  EXPECT_THAT(Asked({.confidence = .95f}), ElementsAre(1, 2, 3)) << "nothing is lacking then";
  EXPECT_THAT(residency_.experts, IsEmpty());
}

TEST_F(PrefetchRulesTest, ReachRuleFetchesOnlyExpertsInTime) {
  // Layer 1's first expert takes one layer, the second another: late by one at most. Then three: layer 2's
  // first. The next takes four: layer 3's.
  EXPECT_THAT(Asked({.in_reach = true}), ElementsAre(1, 2, 3));
  EXPECT_THAT(residency_.experts,
              ElementsAre(std::pair(1u, 0u), std::pair(1u, 1u), std::pair(2u, 0u), std::pair(3u, 0u)));
  residency_.experts.clear();
  EXPECT_THAT(Asked({.max_prefetch = 1, .in_reach = true}), ElementsAre(1, 2, 3));
  EXPECT_THAT(residency_.experts, ElementsAre(std::pair(1u, 0u), std::pair(2u, 0u), std::pair(3u, 0u)));
  // For a prompt's rows as many experts as arrive in time, beyond the bound of a layer.
  residency_.experts.clear();
  residency_.layers_to_fetch = 1;
  prompt_ = true;
  EXPECT_THAT(Asked({.max_prefetch = 1, .in_reach = true}), ElementsAre(1, 2, 3));
  EXPECT_THAT(residency_.experts,
              ElementsAre(std::pair(1u, 0u), std::pair(1u, 1u), std::pair(2u, 0u), std::pair(3u, 0u)));
  prompt_ = false;
  residency_.experts.clear();
  residency_.layers_to_fetch = 4;
  EXPECT_THAT(Asked({.in_reach = true}), ElementsAre(3));
  EXPECT_THAT(residency_.experts, ElementsAre(std::pair(3u, 0u)));
  residency_.experts.clear();
  residency_.layers_to_fetch = 5;
  EXPECT_THAT(Asked({.in_reach = true}), IsEmpty());
  // LookAhead() predicts the next layer; the layers after it are predicted at once.
  residency_.layers_to_fetch = 1;
  EXPECT_THAT(Asked({.in_reach = true, .look_ahead = true}), ElementsAre(2, 3));
}

TEST_F(FirstLayerTest, ResidentFirstLayerIsNotPredicted) {
  residency_.all_resident = true;
  const Rows rows = RowsOf({0.5f, 2});
  batch_.Clear(3);
  batch_.Add(std::vector<int32_t>(1, 1), {.pages = pages_});
  Prefetcher idle(config_, {.max_tokens = 40, .max_sequences = 2}, {.first_layer = Gate(false)}, &residency_);
  ASSERT_TRUE(idle.AfterLayer({1, rows, &batch_}).ok());
  EXPECT_THAT(residency_.experts, IsEmpty());
}

// Draft tokens: experts 0 and 1 of the first layer are predicted for each.
class NextTokensTest : public PrefetchRulesTest {
 protected:
  // Predicts a draft token at the end of a step, then the first layer chooses `chosen` in the next one.
  // Returns true if anything was requested.
  bool Step(std::vector<int32_t> chosen) {
    residency_.experts.clear();
    const Rows x = RowsOf({0, 0});
    ++position_;
    batch_.Clear(10 + position_);
    batch_.Add(std::vector<int32_t>(1, 1), {.first_position = position_, .pages = pages_});
    if (prefetcher_->WantsNextTokens()) {
      EXPECT_TRUE(prefetcher_->NextTokens({3, x, {}, {.tokens = 1}, &batch_, {}}).ok());
    }
    const bool asked = !residency_.experts.empty();
    const float weights[] = {.5f, .5f};
    EXPECT_TRUE(prefetcher_->AfterRouter({0, x, x, {1, 2, 2, chosen.data(), weights}, &batch_, {}}).ok());
    return asked;
  }
  // Number of steps that requested something.
  int Steps(int count, const std::vector<int32_t>& chosen) {
    int asked = 0;
    for (int i = 0; i < count; ++i) asked += Step(chosen);
    return asked;
  }
  void Make() {
    prefetcher_ = std::make_unique<Prefetcher>(
        config_, PrefetcherOptions{.max_tokens = 40, .max_sequences = 2},
        Prefetcher::Predictors{
            .draft = std::make_unique<FixedPredictor>(&backend_->queue(), std::vector<float>{.9f, .6f})},
        &residency_);
  }

  std::unique_ptr<Prefetcher> prefetcher_;
  uint32_t position_ = 0;
};

TEST_F(NextTokensTest, FirstLayerIsFetchedOnceDraftsWereRight) {
  Make();
  EXPECT_EQ(Steps(RecallFloor::kEnough, {0, 1}), 0) << "only counted so far";
  EXPECT_TRUE(Step({0, 1}));
  EXPECT_THAT(residency_.experts, ElementsAre(std::pair(0u, 0u), std::pair(0u, 1u)));
  EXPECT_EQ(prefetcher_->counters_at(0, 0).right, 2u * RecallFloor::kEnough + 2);
}

TEST_F(NextTokensTest, WrongDraftsStopFetching) {
  Make();
  Steps(RecallFloor::kWindow, {0, 1});
  ASSERT_TRUE(Step({2, 1})) << "half of it is right: enough";
  Steps(RecallFloor::kWindow, {2, 2});
  EXPECT_EQ(Steps(200, {2, 2}), 0);
  const uint64_t counted = prefetcher_->counters_at(0, 0).rows;
  Steps(10 * RecallFloor::kEvery, {2, 2});
  EXPECT_EQ(prefetcher_->counters_at(0, 0).rows - counted, 10u) << "one of so many is looked at";
  // Correct again: trust returns.
  EXPECT_GT(Steps(60 * RecallFloor::kEvery, {0, 1}), 0);
}

TEST_F(NextTokensTest, NoDraftForAResidentFirstLayer) {
  Make();
  residency_.all_resident = true;
  EXPECT_FALSE(prefetcher_->WantsNextTokens());
}

}  // namespace
}  // namespace sluice::inferd
