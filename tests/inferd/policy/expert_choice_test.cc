#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "inferd/policy/routing.h"
#include "kernels/scalar_math.h"

namespace sluice::inferd {
namespace {

using Weights = std::vector<float>;
using Ids = std::vector<int32_t>;

TEST(ExpertChoiceTest, SingleExpertIfSquaredRestIsBelowThreshold) {
  // alpha = .7: (1 - .7)^2 = .09.
  EXPECT_EQ(ExpertsKept(Weights{.7f, .3f}, 1, .0901), 1u);
  EXPECT_EQ(ExpertsKept(Weights{.7f, .3f}, 1, .0899), 2u);
  EXPECT_EQ(ExpertsKept(Weights{.7f, .3f}, 2, .0901), 2u);
  EXPECT_EQ(ExpertsKept(Weights{.7f, .3f}, 2, .1801), 1u);
  // Weights that do not sum to 1 mean the same.
  EXPECT_EQ(ExpertsKept(Weights{.35f, .15f}, 1, .0901), 1u);
  EXPECT_EQ(ExpertsKept(Weights{.35f, .15f}, 1, .0899), 2u);
}

TEST(ExpertChoiceTest, FewestExpertsWithSmallRestAreKept) {
  // Rests: .5, .25, .1: squares .25, .0625, .01.
  const Weights weights = {.5f, .25f, .15f, .1f};
  EXPECT_EQ(ExpertsKept(weights, 1, .251), 1u);
  EXPECT_EQ(ExpertsKept(weights, 1, .0626), 2u);
  EXPECT_EQ(ExpertsKept(weights, 1, .0101), 3u);
  EXPECT_EQ(ExpertsKept(weights, 1, .005), 4u);
  EXPECT_EQ(ExpertsKept(Weights{1}, 1, 0), 1u);
}

TEST(ExpertChoiceTest, KeptExpertsTakeTheWeightOfAll) {
  Weights normalised = {.7f, .3f};
  KeepExperts(absl::MakeSpan(normalised), 1);
  EXPECT_EQ(normalised, (Weights{1, 0}));
  Weights raw = {.25f, .125f, .125f};
  KeepExperts(absl::MakeSpan(raw), 2);
  EXPECT_FLOAT_EQ(raw[0], .5f * 2 / 3);
  EXPECT_FLOAT_EQ(raw[1], .5f / 3);
  EXPECT_EQ(raw[2], 0.0f);
  Weights all = {.6f, .1f};
  KeepExperts(absl::MakeSpan(all), 2);
  EXPECT_EQ(all, (Weights{.6f, .1f}));
}

struct Exchange {
  uint32_t exchanged = 0;
  uint32_t low = 0;
  Ids ids;
};

Exchange Choose(const std::vector<float>& scores, Ids ids, uint32_t experts, uint32_t k, double alpha,
                const std::set<uint32_t>& resident) {
  const uint32_t tokens = static_cast<uint32_t>(ids.size()) / k;
  ExpertExchange exchange(8, 16);
  const uint32_t exchanged = exchange.Choose({tokens, experts, k, scores.data(), ids.data()}, alpha,
                                             [&](uint32_t expert) { return resident.count(expert) > 0; });
  return {exchanged, exchange.low_scores(), ids};
}

// K = 2, beta is the third highest score: .2.
const std::vector<float> kScores = {.4f, .22f, .2f, .18f};

TEST(ExpertChoiceTest, LowScoreExpertIsExchangedForResidentOne) {
  // .22 <= 1.25 * .2 is low; .4 is not. Expert 3 lies in [.15, .2).
  const Exchange done = Choose(kScores, {0, 1}, 4, 2, .25, {3});
  EXPECT_EQ(done.exchanged, 1u);
  EXPECT_EQ(done.low, 1u);
  EXPECT_EQ(done.ids, (Ids{0, 3}));
}

// The (K+1)-th expert, 2 at .2, is the best that can join.
TEST(ExpertChoiceTest, TheExpertAtBetaJoinsBeforeThoseBelow) {
  EXPECT_EQ(Choose(kScores, {0, 1}, 4, 2, .25, {2, 3}).ids, (Ids{0, 2}));
  EXPECT_EQ(Choose(kScores, {0, 1}, 4, 2, .25, {2}).ids, (Ids{0, 2}));
  EXPECT_EQ(Choose(kScores, {0, 1}, 4, 2, .05, {2, 3}).ids, (Ids{0, 1})) << ".22 > 1.05 * .2 counts";
}

TEST(ExpertChoiceTest, ResidentAndHighScoreExpertsStay) {
  EXPECT_EQ(Choose(kScores, {0, 1}, 4, 2, .25, {1, 3}).ids, (Ids{0, 1}));
  EXPECT_EQ(Choose(kScores, {0, 1}, 4, 2, .09, {3}).ids, (Ids{0, 1})) << ".22 > 1.09 * .2 and .18 < .91 * .2";
  EXPECT_EQ(Choose(kScores, {0, 1}, 4, 2, 0, {2, 3}).ids, (Ids{0, 1}));
  EXPECT_EQ(Choose(kScores, {0, 1}, 4, 2, .25, {}).ids, (Ids{0, 1})) << "nothing is there to take its place";
}

TEST(ExpertChoiceTest, TheWeakestLeaveForTheBest) {
  // K = 3, beta .15: low are .18 and .17; there are 4 and 5 at .14 and .13, 3 itself is at beta.
  const std::vector<float> scores = {.23f, .18f, .17f, .15f, .14f, .13f};
  const Exchange both = Choose(scores, {0, 1, 2}, 6, 3, .25, {4, 5});
  EXPECT_EQ(both.exchanged, 2u);
  EXPECT_EQ(both.ids, (Ids{0, 4, 5}));
  EXPECT_EQ(Choose(scores, {0, 1, 2}, 6, 3, .25, {5}).ids, (Ids{0, 1, 5}));
  EXPECT_EQ(Choose(scores, {0, 1, 2}, 6, 3, .25, {2, 4, 5}).ids, (Ids{0, 2, 4}));
}

TEST(ExpertChoiceTest, ExpertNeededByAnotherTokenIsAvailable) {
  // Token 1 needs expert 3 (.6 > 1.25 * .15): token 0's low expert 1 makes room for it.
  const std::vector<float> scores = {.4f, .22f, .2f, .18f, .15f, .1f, .15f, .6f};
  const Exchange done = Choose(scores, {0, 1, 3, 0}, 4, 2, .25, {});
  EXPECT_EQ(done.ids[0], 0);
  EXPECT_EQ(done.ids[1], 3);
}

TEST(ExpertChoiceTest, EqualScoresPreferTheExpertWithMoreTokens) {
  // Experts 2 and 3 are there and equal for token 0; token 1 uses 3.
  const std::vector<float> scores = {.4f, .2f, .18f, .18f, .19f, .3f, .05f, .05f, .5f, .1f};
  const std::set<uint32_t> resident = {2, 3};
  EXPECT_EQ(Choose(scores, {0, 1, 3, 0}, 5, 2, .25, resident).ids, (Ids{0, 3, 3, 0}));
  EXPECT_EQ(Choose({.4f, .2f, .18f, .18f, .19f}, {0, 1}, 5, 2, .25, resident).ids, (Ids{0, 2}));
}

TEST(ExpertChoiceTest, AModelThatUsesAllExpertsHasNoneToExchange) {
  EXPECT_EQ(Choose({.6f, .4f}, {0, 1}, 2, 2, .5, {}).exchanged, 0u);
}

}  // namespace
}  // namespace sluice::inferd
