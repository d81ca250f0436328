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

TEST(CacheAllocationTest, CostsFindTheBestOfAllAllocations) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> share(0, 1);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::vector<double>> costs;
    for (int i = 0; i < 4; ++i) {
      const LayerDemand layer = {5, 2, share(random), share(random)};
      std::vector<double>& row = costs.emplace_back();
      for (int slots = 0; slots <= 5; ++slots) row.push_back(WaitingCost(layer, 2 - 0.4 * slots, {4, 1, 3}));
    }
    const uint32_t total = random() % 21;
    double best = std::numeric_limits<double>::infinity();
    for (uint32_t code = 0; code < 6 * 6 * 6 * 6; ++code) {
      const Slots slots = {code % 6, code / 6 % 6, code / 36 % 6, code / 216};
      if (std::accumulate(slots.begin(), slots.end(), 0u) > total) continue;
      double cost = 0;
      for (int i = 0; i < 4; ++i) cost += costs[i][slots[i]];
      best = std::min(best, cost);
    }
    const Slots found = AllocateByCost(costs, total);
    double cost = 0;
    for (int i = 0; i < 4; ++i) cost += costs[i][found[i]];
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
  const auto demands = LayerDemandsOf(config, policies, profile, &gating);
  ASSERT_EQ(demands.size(), 3u);
  EXPECT_EQ(demands[0].experts, 0u);
  EXPECT_NEAR(demands[1].single_share, 0.4, 1e-9);
  EXPECT_NEAR(demands[2].single_share, 0.2, 1e-9);
  EXPECT_EQ(demands[1].prefetch_accuracy, 0);
  EXPECT_EQ(demands[2].prefetch_accuracy, 0.9);
  policies.predictor = ExpertPredictorKind::kNone;
  EXPECT_EQ(LayerDemandsOf(config, policies, profile, nullptr)[2].prefetch_accuracy, 0);
  EXPECT_EQ(LayerDemandsOf(config, policies, profile, nullptr)[2].single_share, 0);
}

}  // namespace
}  // namespace sluice::inferd
