#include "inferd/policy/slot_eviction.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::inferd {
namespace {

using Experts = std::vector<uint32_t>;
using Scores = std::vector<float>;

SlotEvictionPolicy Make(SlotEviction kind, uint32_t window = 32, uint32_t half_life = 64) {
  return SlotEvictionPolicy({kind, window, half_life}, Experts{4, 0, 4});
}

// One whole pass of a layer.
void Pass(SlotEvictionPolicy* policy, uint32_t layer, const Scores& scores, const Experts& chosen) {
  policy->BeginLayer(layer, scores, chosen);
  policy->EndLayer(layer);
}

TEST(SlotEvictionTest, LruEvictsTheLeastRecentlyUsed) {
  SlotEvictionPolicy policy = Make(SlotEviction::kLru);
  Pass(&policy, 0, {}, {2, 0});
  Pass(&policy, 0, {}, {3, 2});
  EXPECT_EQ(policy.Victim(0, Experts{2, 3, 0}), 2u);  // 0: used in the first pass only
  EXPECT_EQ(policy.Victim(0, Experts{2, 3}), 1u);     // 2 came after 3
  EXPECT_EQ(policy.Victim(0, Experts{2, 1, 0}), 1u) << "never used goes first";
}

TEST(SlotEvictionTest, LayersDoNotMix) {
  SlotEvictionPolicy policy = Make(SlotEviction::kLru);
  Pass(&policy, 0, {}, {1});
  Pass(&policy, 2, {}, {0});
  Pass(&policy, 0, {}, {0});
  EXPECT_EQ(policy.Victim(0, Experts{0, 1}), 1u);
  EXPECT_EQ(policy.Victim(2, Experts{0, 1}), 1u);
}

TEST(SlotEvictionTest, ChosenExpertsAreShieldedUntilTheirLayerEnds) {
  for (const SlotEviction kind : {SlotEviction::kLru, SlotEviction::kLfru, SlotEviction::kScore}) {
    SlotEvictionPolicy policy = Make(kind);
    Pass(&policy, 0, Scores{0, .1f, .4f, .5f}, {2, 3});
    policy.BeginLayer(0, Scores{0, .1f, .4f, .5f}, Experts{0, 1});
    EXPECT_TRUE(policy.Shielded(0, 0));
    EXPECT_EQ(policy.Victim(0, Experts{0, 1}), SlotEvictionPolicy::kNoVictim);
    EXPECT_EQ(policy.Victim(0, Experts{0, 3}), 1u);
    policy.EndLayer(0);
    EXPECT_FALSE(policy.Shielded(0, 0));
    EXPECT_NE(policy.Victim(0, Experts{0, 1}), SlotEvictionPolicy::kNoVictim);
  }
}

TEST(SlotEvictionTest, LfruWeighsUsesByAge) {
  SlotEvictionPolicy policy = Make(SlotEviction::kLfru, 32, /*half_life=*/2);
  Pass(&policy, 0, {}, {0});
  Pass(&policy, 0, {}, {0});
  Pass(&policy, 0, {}, {1});
  // Half-life 2: expert 0 has 2^-1 + 2^-.5 = 1.207, expert 1 has 1.
  EXPECT_EQ(policy.Victim(0, Experts{0, 1}), 1u);
  Pass(&policy, 0, {}, {2});
  Pass(&policy, 0, {}, {1});
  // Expert 0: 2^-2 + 2^-1.5 = .604; expert 1: 2^-1 + 1 = 1.5; expert 2: 2^-.5 = .707.
  EXPECT_EQ(policy.Victim(0, Experts{0, 1, 2}), 0u);
  EXPECT_EQ(policy.Victim(0, Experts{1, 2}), 1u);
}

TEST(SlotEvictionTest, ScoreEvictsLowestMeanIncludingInactive) {
  SlotEvictionPolicy policy = Make(SlotEviction::kScore, /*window=*/2);
  EXPECT_TRUE(policy.NeedsScores());
  Pass(&policy, 0, Scores{.70f, .10f, .15f, .05f}, {0, 2});
  Pass(&policy, 0, Scores{.10f, .30f, .20f, .40f}, {3, 1});
  EXPECT_NEAR(policy.MeanScore(0, 0), .40, 1e-7);
  EXPECT_NEAR(policy.MeanScore(0, 2), .175, 1e-7);
  EXPECT_EQ(policy.Victim(0, Experts{0, 1, 2, 3}), 2u);
  Pass(&policy, 0, Scores{.10f, .30f, .20f, .40f}, {3, 1});
  // The first pass has left the window: .1 .3 .2 .4.
  EXPECT_NEAR(policy.MeanScore(0, 0), .10, 1e-7);
  EXPECT_EQ(policy.Victim(0, Experts{0, 1, 2, 3}), 0u);
  EXPECT_EQ(policy.MeanScore(2, 0), 0.0);
}

TEST(SlotEvictionTest, EqualScoresGoByLastUseThenById) {
  SlotEvictionPolicy policy = Make(SlotEviction::kScore);
  Pass(&policy, 0, Scores{.25f, .25f, .25f, .25f}, {1});
  Pass(&policy, 0, Scores{.25f, .25f, .25f, .25f}, {0});
  EXPECT_EQ(policy.Victim(0, Experts{0, 1}), 1u);
  EXPECT_EQ(policy.Victim(0, Experts{3, 2}), 1u);
}

TEST(SlotEvictionTest, NanScoreCountsAsZero) {
  SlotEvictionPolicy policy = Make(SlotEviction::kScore);
  Pass(&policy, 0, Scores{std::numeric_limits<float>::quiet_NaN(), 2.0f, -1.0f, .5f}, {});
  EXPECT_EQ(policy.MeanScore(0, 0), 0.0);
  EXPECT_EQ(policy.MeanScore(0, 1), 1.0);
  EXPECT_EQ(policy.MeanScore(0, 2), 0.0);
}

}  // namespace
}  // namespace sluice::inferd
