#include "inferd/cache/miss_plan.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::inferd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Action = MissPlan::Action;

// A verdict on an expert, without its rows.
struct Said {
  uint32_t expert;
  Action action;
  uint32_t tiles = 0;
  bool operator==(const Said&) const = default;
};
std::vector<Said> Of(absl::Span<const MissPlan::Verdict> verdicts) {
  std::vector<Said> said;
  for (const MissPlan::Verdict& verdict : verdicts) {
    said.push_back({verdict.expert, verdict.action, verdict.tiles});
  }
  return said;
}

// Experts of one byte; a row takes the CPU 1 second by default.
class MissPlanTest : public testing::Test {
 protected:
  std::vector<Said> Misses(ExpertMiss miss, double load) {
    times_.load_per_byte = load;
    return Of(plan_.SplitMisses(
        miss, times_, [](uint32_t) { return 1.0; },
        [this](uint32_t) -> const CpuCostTable& { return cpu_; }));
  }
  std::vector<Said> Tiles(double load, bool wait_from_begin = false, double wait = 0) {
    times_.load_per_byte = load;
    return Of(plan_.SplitTiles(
        times_, {64, 256, wait, wait_from_begin}, [](uint32_t) { return 1.0; },
        [](const ExpertDemand& demand) { return 1.0 * demand.tokens; }, 1.0, cpu_));
  }

  CpuCostTable cpu_ = CpuCostTable::PerToken(1);
  MissTimes times_;
  MissPlan plan_{8};
};

TEST_F(MissPlanTest, NothingMissingNothingDecided) {
  plan_.AddResident({1, 1});
  EXPECT_THAT(Misses(ExpertMiss::kBalance, 5), IsEmpty());
}

TEST_F(MissPlanTest, CpuComputesIfItIsFaster) {
  plan_.AddMissing({1, 1});
  plan_.AddMissing({2, 4});
  plan_.AddMissing({3, 2});
  EXPECT_THAT(Misses(ExpertMiss::kCpu, /*load=*/3),
              ElementsAre(Said{3, Action::kToCpu}, Said{1, Action::kToCpu}));
}

TEST_F(MissPlanTest, LinkAndCpuEndTogether) {
  for (uint32_t expert = 0; expert < 4; ++expert) {
    plan_.AddMissing({expert, 1});
  }
  EXPECT_THAT(Misses(ExpertMiss::kBalance, /*load=*/1),
              ElementsAre(Said{2, Action::kToCpu}, Said{3, Action::kToCpu}));
  times_.cpu_queued = 2;  // the CPU is busy for as long as it would need
  EXPECT_THAT(Misses(ExpertMiss::kBalance, /*load=*/1), ElementsAre(Said{3, Action::kToCpu}));
}

TEST_F(MissPlanTest, ALayerNamesEveryLateExpert) {
  plan_.AddLate({1, 1}, {.request = 7, .landed = 192});
  plan_.AddLate({2, 1}, {.request = 8, .wait = 100});
  times_.device_per_byte = 0.1;
  EXPECT_THAT(Tiles(/*load=*/0.1), ElementsAre(Said{1, Action::kAwait}, Said{2, Action::kSplit, 0}));
}

TEST_F(MissPlanTest, ResidentExpertsGoToTheCpuIfFaster) {
  plan_.AddResident({1, 1});
  plan_.AddResident({2, 1});
  times_.device_per_byte = 4;
  EXPECT_THAT(Tiles(/*load=*/1),
              ElementsAre(Said{1, Action::kResidentToCpu}, Said{2, Action::kResidentToCpu}));
  times_.device_per_byte = 0.25;
  EXPECT_THAT(Tiles(/*load=*/1), IsEmpty());
}

TEST_F(MissPlanTest, OneMissIsSharedByTiles) {
  plan_.AddMissing({5, 1});
  const std::vector<Said> said = Tiles(/*load=*/1);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0], (Said{5, Action::kSplit, 2})) << "half over the link, half on the CPU";
}

TEST_F(MissPlanTest, ExpertInTimeOverTheLinkIsNotSplit) {
  plan_.AddLate({5, 1}, {.request = 3, .landed = 192});
  EXPECT_THAT(Tiles(/*load=*/1e-3), ElementsAre(Said{5, Action::kAwait}));
}

TEST_F(MissPlanTest, BusyLinkLeavesAllToTheCpu) {
  plan_.AddMissing({5, 1});
  EXPECT_THAT(Tiles(/*load=*/1, /*wait_from_begin=*/true, /*wait=*/50),
              ElementsAre(Said{5, Action::kSplit, 0}));
}

TEST_F(MissPlanTest, ClearForgetsThePreviousLayer) {
  plan_.AddMissing({5, 1});
  plan_.Clear();
  EXPECT_THAT(Misses(ExpertMiss::kCpu, 50), IsEmpty());
}

}  // namespace
}  // namespace sluice::inferd
