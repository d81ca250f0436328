#include "inferd/policy/miss_balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::inferd {
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
  // A CPU with 4 of earlier work takes only the last expert: max(6, 4 + 1).
  const MissSplit queued = BalanceMisses(misses, {3, 0, 4}, cpu);
  EXPECT_EQ(queued.loaded, 2u);
  EXPECT_EQ(queued.seconds, 6);
}

TEST(MissBalanceTest, SingleMissFasterOnCpuIsNotLoaded) {
  EXPECT_EQ(BalanceMisses(Misses{{0, 1}}, {100, 0}, CpuCostTable::PerToken(1)).loaded, 0u);
  EXPECT_EQ(BalanceMisses({}, {3, 0}, CpuCostTable::PerToken(1)).loaded, 0u);
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

// The best time over all subsets.
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

TEST(MissBalanceTest, BalanceIsTheBestOfAllSubsetsUpTo64Rows) {
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

}  // namespace
}  // namespace sluice::inferd
