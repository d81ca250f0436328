#include "inferd/policy/cache_allocation.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "inferd/engine/cache_setup.h"

namespace sluice::inferd {
namespace {

using Slots = std::vector<uint32_t>;

TEST(CacheAllocationTest, DemandCostMatchesThePaper) {
  EXPECT_NEAR(DemandCost({8, 2, .24, .9}, 4), 0.234571, 5e-7);
  // Without a cache: .24 * .1 + .76 * (.2 + .9) = .86; with a slot for each expert nothing is loaded.
  EXPECT_NEAR(DemandCost({8, 2, .24, .9}, 0), 0.86, 1e-12);
  EXPECT_EQ(DemandCost({8, 2, .24, .9}, 8), 0.0);
  // One slot of two experts, never prefetched: each is missing half the time.
  EXPECT_NEAR(DemandCost({2, 1, 0, 0}, 1), .5, 1e-12);
}

TEST(CacheAllocationTest, DemandCostEqualsTheSumOfThePapersThreeCases) {
  for (uint32_t n = 2; n <= 64; n *= 2) {
    for (uint32_t t = 0; t <= n; ++t) {
      const double a = .3;
      const double b = .7;
      const double both = double(n - t) * (double(n - t) - 1) / (double(n) * (n - 1));
      const double mixed = 2.0 * (n - t) * t / (double(n) * (n - 1));
      const double sum =
          a * (1 - double(t) / n) * (1 - b) + (1 - a) * (2 * both * (1 - b) + both * b + mixed * (1 - b));
      EXPECT_NEAR(DemandCost({n, 2, a, b}, t), sum, 1e-12) << n << " " << t;
    }
  }
}

TEST(CacheAllocationTest, CorrectPrefetchSavesOneMissAboveTwoExperts) {
  // N = 4, K = 3, t = 2: of the 4 triples 2 miss one expert and 2 miss two: E[M] = 1.5, E[max(M-1,0)] = .5.
  EXPECT_NEAR(DemandCost({4, 3, 0, 0}, 2), 1.5, 1e-12);
  EXPECT_NEAR(DemandCost({4, 3, 0, 1}, 2), .5, 1e-12);
}

TEST(CacheAllocationTest, UniformDividesEvenlyAndFillsUp) {
  EXPECT_EQ(AllocateUniform(Slots{8, 8, 8}, 12), (Slots{4, 4, 4}));
  EXPECT_EQ(AllocateUniform(Slots{8, 8, 8}, 14), (Slots{5, 5, 4}));
  EXPECT_EQ(AllocateUniform(Slots{0, 2, 8}, 9), (Slots{0, 2, 7}));
  EXPECT_EQ(AllocateUniform(Slots{8, 8}, 100), (Slots{8, 8}));
  EXPECT_EQ(AllocateUniform(Slots{8, 8}, 0), (Slots{0, 0}));
}

TEST(CacheAllocationTest, LayersArePinnedFromTheFirst) {
  EXPECT_EQ(AllocateLayers(Slots{8, 0, 8, 8}, 19), (Slots{8, 0, 8, 3}));
  EXPECT_EQ(AllocateLayers(Slots{8, 8}, 99), (Slots{8, 8}));
}

TEST(CacheAllocationTest, DpGivesMoreToLayersThatAreHarderToPrefetch) {
  const std::vector<LayerDemand> layers = {{8, 2, .1, .5}, {8, 2, .2, .9}, {8, 2, .5, .9}};
  const Slots slots = AllocateDp(layers, 12);
  EXPECT_EQ(std::accumulate(slots.begin(), slots.end(), 0u), 12u);
  EXPECT_GT(slots[0], slots[1]);
  EXPECT_GE(slots[1], slots[2]);
}

TEST(CacheAllocationTest, DpFindsTheBestOfAllAllocations) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> share(0, 1);
  for (int round = 0; round < 40; ++round) {
    std::vector<LayerDemand> layers;
    for (int i = 0; i < 4; ++i) layers.push_back({5, 2, share(random), share(random)});
    const uint32_t total = random() % 21;
    double best = std::numeric_limits<double>::infinity();
    for (uint32_t code = 0; code < 6 * 6 * 6 * 6; ++code) {
      const Slots slots = {code % 6, code / 6 % 6, code / 36 % 6, code / 216};
      if (std::accumulate(slots.begin(), slots.end(), 0u) > total) continue;
      double cost = 0;
      for (int i = 0; i < 4; ++i) cost += DemandCost(layers[i], slots[i]);
      best = std::min(best, cost);
    }
    const Slots found = AllocateDp(layers, total);
    double cost = 0;
    for (int i = 0; i < 4; ++i) cost += DemandCost(layers[i], found[i]);
    EXPECT_NEAR(cost, best, 1e-12);
    EXPECT_EQ(std::accumulate(found.begin(), found.end(), 0u), total);
  }
}

TEST(CacheAllocationTest, StackDistancesAreTheHitsOfEveryLruCache) {
  StackDistances distances(4);
  for (const Slots& token : {Slots{0, 1}, Slots{1, 2}, Slots{0, 2}, Slots{3, 0}}) distances.Add(token);
  // Token 2: 1 lies at depth 0. Token 3 finds 2, 1, 0: depths 2 (0) and 0 (2). Token 4 finds 2, 0, 1: 0 at 1.
  EXPECT_EQ(distances.accesses(), 8u);
  EXPECT_EQ(distances.Hits(0), 0u);
  EXPECT_EQ(distances.Hits(1), 2u);
  EXPECT_EQ(distances.Hits(2), 3u);
  EXPECT_EQ(distances.Hits(3), 4u);
  EXPECT_EQ(distances.Hits(4), 4u);
  EXPECT_EQ(distances.MissCurve(), (std::vector<double>{2, 1.5, 1.25, 1, 1}));
}

TEST(CacheAllocationTest, MeasuredCostsDecideTheAllocation) {
  // The first layer gains at its second slot only, the second at every one a little.
  const std::vector<std::vector<double>> costs = {{2, 2, 0}, {1, .9, .8}};
  EXPECT_EQ(AllocateByCost(costs, 1), (Slots{0, 1}));
  EXPECT_EQ(AllocateByCost(costs, 2), (Slots{2, 0}));
  EXPECT_EQ(AllocateByCost(costs, 9), (Slots{2, 2}));
}

// Load 4, compute 1, 3 of computing before the layer; N = 8, K = 2.
TEST(CacheAllocationTest, WaitingCostIsLoadTimeNotHiddenByComputing) {
  const LayerTimes times = {4, 1, 3};
  // Both missing, nothing predicted: 8 less 2 of computing.
  EXPECT_NEAR(WaitingCost({8, 2, 0, 0}, 2, times), 6, 1e-12);
  // Both predicted: 3 of the 8 pass before.
  EXPECT_NEAR(WaitingCost({8, 2, 0, 1}, 2, times), 3, 1e-12);
  // Each missing half the time: both in a quarter (6), one in a half (4 - 2).
  EXPECT_NEAR(WaitingCost({8, 2, 0, 0}, 1, times), .25 * 6 + .5 * 2, 1e-12);
  // Predicted half the time: both 6, 3, 3 and 3 (one predicted hides 3 as well); one 2 or 0 of -1.
  EXPECT_NEAR(WaitingCost({8, 2, 0, .5}, 1, times), .25 * (.25 * 6 + .75 * 3) + .5 * (.5 * 2), 1e-12);
  // A single expert has 1 of computing beside it: 4 - 1.
  EXPECT_NEAR(WaitingCost({8, 2, 1, 0}, 1, times), .5 * 3, 1e-12);
  // Without computing waiting is the misses' loads, predicted or not.
  EXPECT_NEAR(WaitingCost({8, 2, 0, .7}, .8, {1, 0, 0}), .8, 1e-12);
  EXPECT_EQ(WaitingCost({8, 2, .3, .7}, 0, times), 0);
  EXPECT_EQ(WaitingCost({0, 2, 0, 0}, 0, times), 0);
}

// a: the share of tokens below T / S_l; b: the next layer's gate.
TEST(CacheAllocationTest, ProfileGivesSingleShareAndPrefetchAccuracy) {
  ModelConfig config;
  config.layers.resize(3);
  CacheProfile profile{"", 100, std::vector<LayerCacheProfile>(3)};
  for (uint32_t layer = 1; layer < 3; ++layer) {
    config.layers[layer].moe.experts = 8;
    config.layers[layer].moe.top_k = 2;
    for (size_t i = 0; i < LayerCacheProfile::kPoints; ++i) {
      profile.layers[layer].squares.push_back(0.0025 * static_cast<double>(i));
    }
    profile.layers[layer].accuracy = {layer == 1 ? 0.0 : 0.9, 0, 0};
  }
  const GatingRule gating = {{0, 1, 2}, 0.1};  // limits .1 and .05
  Policies policies;
  const auto demands = LayerDemandsOf(config, policies, &profile, &gating);
  ASSERT_EQ(demands.size(), 3u);
  EXPECT_EQ(demands[0].experts, 0u);
  EXPECT_NEAR(demands[1].single_share, 0.4, 1e-9);
  EXPECT_NEAR(demands[2].single_share, 0.2, 1e-9);
  EXPECT_EQ(demands[1].prefetch_accuracy, 0);
  EXPECT_EQ(demands[2].prefetch_accuracy, 0.9);
  // Layer 2 is predicted well: at t = 4 it costs (1 - .2) [.1 E[M] + .9 E[max(M - 1, 0)]] + .2 * .5 * .1, and
  // a slot helps the unpredicted layer more.
  const std::vector<uint32_t> slots = AllocateDp(demands, 8);
  EXPECT_EQ(slots[0], 0u);
  EXPECT_GT(slots[1], slots[2]);
  policies.predictor = ExpertPredictorKind::kNone;
  EXPECT_EQ(LayerDemandsOf(config, policies, &profile, nullptr)[2].prefetch_accuracy, 0);
  EXPECT_EQ(LayerDemandsOf(config, policies, nullptr, nullptr)[2].single_share, 0);
}

}  // namespace
}  // namespace sluice::inferd
