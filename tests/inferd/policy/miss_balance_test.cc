#include "inferd/policy/routing/miss_balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

using Misses = std::vector<ExpertDemand>;

TEST(MissBalanceTest, MissesAreSortedByRowsThenById) {
  Misses misses = {{4, 1}, {7, 3}, {2, 1}, {5, 3}};
  SortMisses(absl::MakeSpan(misses));
  const std::vector<uint32_t> order = {misses[0].expert, misses[1].expert, misses[2].expert,
                                       misses[3].expert};
  EXPECT_EQ(order, (std::vector<uint32_t>{5, 7, 2, 4}));
}

TEST(MissBalanceTest, BalanceChoosesTheSplitOfTheLeastTime) {
  const Misses misses = {{0, 4}, {1, 2}, {2, 1}};
  const CpuCostTable cpu = CpuCostTable::PerToken(1);
  // k: 0 -> 7, 1 -> max(3, 3), 2 -> max(6, 1), 3 -> 9.
  const MissSplit split = BalanceMisses(misses, {3, 0}, cpu);
  EXPECT_EQ(split.loaded, 1u);
  EXPECT_EQ(split.seconds, 3);
  // With a backlog of 5 loading one ends at 8, later than computing all.
  const MissSplit late = BalanceMisses(misses, {3, 5}, cpu);
  EXPECT_EQ(late.loaded, 0u);
  EXPECT_EQ(late.seconds, 7);
  // A CPU that has 4 to do already takes but the last one: max(6, 4 + 1).
  const MissSplit queued = BalanceMisses(misses, {3, 0, 4}, cpu);
  EXPECT_EQ(queued.loaded, 2u);
  EXPECT_EQ(queued.seconds, 6);
}

TEST(MissBalanceTest, ThePaperAlwaysLoadsTheFirst) {
  const CpuCostTable cpu = CpuCostTable::PerToken(1);
  EXPECT_EQ(PaperBalance(Misses{{0, 1}}, {100, 0}, cpu).loaded, 1u);
  EXPECT_EQ(PaperBalance(Misses{{0, 1}}, {100, 0}, cpu).seconds, 100);
  EXPECT_EQ(BalanceMisses(Misses{{0, 1}}, {100, 0}, cpu).loaded, 0u);
  // From both ends: load 0 (3 > 0), compute 2 and 1 (1, then 3), load nothing more: 3 each.
  const MissSplit split = PaperBalance(Misses{{0, 4}, {1, 2}, {2, 1}}, {3, 0}, cpu);
  EXPECT_EQ(split.loaded, 1u);
  EXPECT_EQ(split.seconds, 3);
  EXPECT_EQ(PaperBalance({}, {3, 0}, cpu).loaded, 0u);
}

TEST(MissBalanceTest, CpuCostsLieOnTheLinesBetweenMeasuredPoints) {
  const auto table = CpuCostTable::Create({{1, 2.0}, {4, 5.0}, {8, 7.0}});
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->Seconds(0), 0);
  EXPECT_EQ(table->Seconds(1), 2);
  EXPECT_EQ(table->Seconds(2), 3);
  EXPECT_EQ(table->Seconds(8), 7);
  EXPECT_EQ(table->Seconds(10), 8);
  EXPECT_FALSE(CpuCostTable::Create({}).ok());
  EXPECT_FALSE(CpuCostTable::Create({{2, 1.0}, {1, 2.0}}).ok());
  EXPECT_FALSE(CpuCostTable::Create({{1, 2.0}, {2, 1.0}}).ok());
  EXPECT_FALSE(CpuCostTable::Create({{0, 1.0}}).ok());
  EXPECT_FALSE(CpuCostTable::Create({{1, 1.0}, {1, 1.0}}).ok());
  EXPECT_FALSE(CpuCostTable::Create({{1, -1.0}}).ok());
  EXPECT_FALSE(CpuCostTable::Create({{1, std::numeric_limits<double>::quiet_NaN()}}).ok());
  EXPECT_FALSE(CpuCostTable::Create({{1, 1.0}, {2, std::numeric_limits<double>::infinity()}}).ok());
}

// The best of all subsets.
double BruteForce(const Misses& misses, const MissCosts& costs, const CpuCostTable& cpu) {
  double best = std::numeric_limits<double>::infinity();
  for (uint32_t subset = 0; subset < 1u << misses.size(); ++subset) {
    double computed = 0;
    uint32_t loaded = 0;
    for (size_t i = 0; i < misses.size(); ++i) {
      if (subset >> i & 1) {
        ++loaded;
      } else {
        computed += cpu.Seconds(misses[i].tokens);
      }
    }
    const double link = loaded == 0 ? 0 : costs.backlog_seconds + loaded * costs.load_seconds;
    best = std::min(best, std::max(link, computed));
  }
  return best;
}

TEST(MissBalanceTest, BalanceIsTheBestOfAllSubsetsForBatchesOfOneToSixtyFour) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(-3, 3);
  for (uint32_t batch = 1; batch <= 64; ++batch) {
    for (int draw = 0; draw < 8; ++draw) {
      Misses misses;
      for (uint32_t expert = 0; expert < 10; ++expert) misses.push_back({expert, 0});
      for (uint32_t token = 0; token < batch; ++token) misses[random() % misses.size()].tokens++;
      misses.erase(std::remove_if(misses.begin(), misses.end(), [](auto& m) { return m.tokens == 0; }),
                   misses.end());
      SortMisses(absl::MakeSpan(misses));
      const MissCosts costs = {std::pow(10, exponent(random)),
                               draw % 2 == 0 ? 0 : std::pow(10, exponent(random))};
      const auto measured = CpuCostTable::Create({{1, 1.0}, {4, 1.5}, {16, 4.0}, {64, 20.0}});
      ASSERT_TRUE(measured.ok());
      for (const CpuCostTable& cpu : {*measured, CpuCostTable::PerToken(.3)}) {
        const MissSplit split = BalanceMisses(misses, costs, cpu);
        EXPECT_NEAR(split.seconds, BruteForce(misses, costs, cpu), 1e-9 * split.seconds);
        EXPECT_NEAR(split.seconds, SplitSeconds(misses, split.loaded, costs, cpu), 1e-9 * split.seconds);
      }
    }
  }
}

// One expert a row costs 5 on the device and on the CPU, 15 on the link.
TEST(MissBalanceTest, AResidentExpertGoesToTheCpuWhereTheDeviceIsTheBound) {
  const CpuCostTable cpu = CpuCostTable::PerToken(5);
  const MissCosts costs = {15, 0, 0};
  const Misses one = {{0, 1}};
  const Misses two = {{0, 1}, {1, 1}};
  // Two resident: one each ends at 5, both on the device at 10.
  LayerSplit split = BalanceLayer({{}, two, {}, {}}, costs, 5, cpu);
  EXPECT_EQ(split.resident_given, 1u);
  EXPECT_EQ(split.seconds, 5);
  // One of each kind: the miss is the CPU's, the other the device's.
  split = BalanceLayer({one, one, {}, {}}, costs, 5, cpu);
  EXPECT_EQ(split.loaded, 0u);
  EXPECT_EQ(split.resident_given, 0u);
  EXPECT_EQ(split.seconds, 5);
  // Both missing: 10 on the CPU; loading one takes 15.
  split = BalanceLayer({two, {}, {}, {}}, costs, 5, cpu);
  EXPECT_EQ(split.loaded, 0u);
  EXPECT_EQ(split.seconds, 10);
  // Rows count for the CPU alone: four of a resident one would take 20.
  split = BalanceLayer({{}, Misses{{0, 4}, {1, 4}}, {}, {}}, costs, 5, cpu);
  EXPECT_EQ(split.resident_given, 0u);
  EXPECT_EQ(split.seconds, 10);
  // The CPU has 5 to do already: giving it more would end at 10 as well, so it gets none.
  EXPECT_EQ(BalanceLayer({{}, two, {}, {}}, {15, 0, 5}, 5, cpu).resident_given, 0u);
  // A device that is ten times faster keeps all.
  split = BalanceLayer({{}, two, {}, {}}, costs, .5, cpu);
  EXPECT_EQ(split.resident_given, 0u);
  EXPECT_EQ(split.seconds, 1);
}

TEST(MissBalanceTest, WhatIsOnItsWayGoesToTheCpuWhereThatEndsTheLayerSooner) {
  const CpuCostTable cpu = CpuCostTable::PerToken(5);
  const Misses one = {{0, 1}};
  const Misses two = {{0, 1}, {1, 1}};
  const std::vector<double> four = {4};
  const std::vector<double> twelve = {12};
  const std::vector<double> both = {2, 12};
  // 4 to come, and the device's next: the resident one is the CPU's meanwhile.
  LayerSplit split = BalanceLayer({{}, one, one, four}, {15, 0, 0}, 5, cpu);
  EXPECT_EQ(split.late_given, 0u);
  EXPECT_EQ(split.resident_given, 1u);
  EXPECT_EQ(split.seconds, 5);
  // 12 to come: the CPU computes it instead.
  split = BalanceLayer({{}, one, one, twelve}, {15, 0, 0}, 5, cpu);
  EXPECT_EQ(split.late_given, 1u);
  EXPECT_EQ(split.resident_given, 0u);
  EXPECT_EQ(split.seconds, 5);
  // Of two the second, which has 12 to come, goes; the first is there at 2.
  split = BalanceLayer({{}, {}, two, both}, {15, 0, 0}, 5, cpu);
  EXPECT_EQ(split.late_given, 1u);
  EXPECT_EQ(split.seconds, 5);
}

// The best of all subsets of misses and resident ones, with the last of the late ones given, 0 to all.
double BruteForceLayer(const LayerExperts& layer, const MissCosts& costs, double device,
                       const CpuCostTable& cpu) {
  Misses experts(layer.misses.begin(), layer.misses.end());
  experts.insert(experts.end(), layer.resident.begin(), layer.resident.end());
  double best = std::numeric_limits<double>::infinity();
  for (uint32_t subset = 0; subset < 1u << experts.size(); ++subset) {
    for (size_t kept = 0; kept <= layer.late.size(); ++kept) {
      double computed = costs.queued_seconds;
      double link = 0;
      size_t on_device = kept;
      for (size_t i = 0; i < experts.size(); ++i) {
        if (subset >> i & 1) {
          computed += cpu.Seconds(experts[i].tokens);
        } else {
          link += i < layer.misses.size() ? costs.load_seconds : 0;
          ++on_device;
        }
      }
      for (size_t i = 0; i < layer.late.size(); ++i) {
        (i < kept ? link : computed) += i < kept ? layer.late_seconds[i] : cpu.Seconds(layer.late[i].tokens);
      }
      link += link > 0 ? costs.backlog_seconds : 0;
      best = std::min(
          best,
          std::max({computed, link, costs.device_queued_seconds + static_cast<double>(on_device) * device}));
    }
  }
  return best;
}

TEST(MissBalanceTest, ALayersBalanceIsTheBestOfAllSubsets) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> exponent(-2, 2);
  const auto drawn = [&] { return std::pow(10, exponent(random)); };
  for (int draw = 0; draw < 400; ++draw) {
    Misses lists[3];
    for (uint32_t expert = 0; expert < 9; ++expert) {
      const uint32_t rows = random() % 6;
      if (rows > 0) lists[random() % 3].push_back({expert, rows});
    }
    for (Misses& list : lists) SortMisses(absl::MakeSpan(list));
    std::vector<double> late_seconds;
    for (size_t i = 0; i < lists[2].size(); ++i) late_seconds.push_back(drawn());
    const LayerExperts layer = {lists[0], lists[1], lists[2], late_seconds};
    const MissCosts costs = {drawn(), drawn(), draw % 3 == 0 ? drawn() : 0, draw % 4 == 0 ? drawn() : 0};
    const double device = drawn();
    const auto measured = CpuCostTable::Create({{1, 1.0}, {4, 1.5}, {16, 4.0}});
    ASSERT_TRUE(measured.ok());
    const LayerSplit split = BalanceLayer(layer, costs, device, *measured);
    EXPECT_NEAR(split.seconds, BruteForceLayer(layer, costs, device, *measured), 1e-9 * split.seconds);
  }
}

}  // namespace
}  // namespace sluice
