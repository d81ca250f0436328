#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "inferd/policy/miss_balance.h"

namespace sluice::inferd {
namespace {

using Experts = std::vector<ExpertDemand>;

// Five tiles, each 3 of the link, 1 of the CPU and of the device.
constexpr MissingTiles kMiss = {5, 3, 1, 1, 0};

TEST(LayerSharesTest, OneMissIsSharedWhereLinkAndCpuMeet) {
  // Tiles over the link: 0 -> 5, 1 -> max(4, 3 + 1) = 4, 2 -> max(3, 6 + 1) = 7.
  const LayerShares shares = ShareLayer({&kMiss, 1}, {}, 0, 0, 5, CpuCostTable::PerToken(5));
  EXPECT_EQ(shares.whole, 0u);
  EXPECT_EQ(shares.tiles, 1u);
  EXPECT_EQ(shares.seconds, 4);
}

TEST(LayerSharesTest, BusyLinkGetsNoTiles) {
  MissingTiles miss = kMiss;
  miss.wait_seconds = 2;  // the first tile would be computed at 6
  const LayerShares shares = ShareLayer({&miss, 1}, {}, 0, 0, 5, CpuCostTable::PerToken(5));
  EXPECT_EQ(shares.tiles, 0u);
  EXPECT_EQ(shares.seconds, 5);
}

TEST(LayerSharesTest, NearlyArrivedExpertIsNotSplit) {
  const MissingTiles missing[] = {{1, 3, 1, 1, 0}, kMiss};
  // The late one's last tile at 3, the first of the miss at 6 and computed at 7. CPU: 6, 5, 4.
  const LayerShares shares = ShareLayer(missing, {}, 0, 0, 5, CpuCostTable::PerToken(5));
  EXPECT_EQ(shares.whole, 1u);
  EXPECT_EQ(shares.tiles, 0u);
  EXPECT_EQ(shares.seconds, 5);
}

TEST(LayerSharesTest, ResidentExpertsGoToCpuIfDeviceIsTheBound) {
  const Experts two = {{0, 1}, {1, 1}};
  LayerShares shares = ShareLayer({}, two, 0, 0, 5, CpuCostTable::PerToken(5));
  EXPECT_EQ(shares.resident_given, 1u);
  EXPECT_EQ(shares.seconds, 5);
  // The device has 2 of a late expert's tiles to do already: 7 with one, 12 with both.
  shares = ShareLayer({}, two, 0, 2, 5, CpuCostTable::PerToken(5));
  EXPECT_EQ(shares.resident_given, 1u);
  EXPECT_EQ(shares.seconds, 7);
  // A CPU with 6 to do already would end at 11: the device does both by 10.
  shares = ShareLayer({}, two, 6, 0, 5, CpuCostTable::PerToken(5));
  EXPECT_EQ(shares.resident_given, 0u);
  EXPECT_EQ(shares.seconds, 10);
}

// Best time over every number of tiles over the link, and of resident experts given to the CPU.
double BruteForce(const std::vector<MissingTiles>& missing, const Experts& resident, double queued,
                  double base, double device, const CpuCostTable& cpu) {
  uint32_t tiles = 0;
  for (const MissingTiles& expert : missing) tiles += expert.tiles;
  double best = std::numeric_limits<double>::infinity();
  for (size_t given = 0; given <= resident.size(); ++given) {
    for (uint32_t over_link = 0; over_link <= tiles; ++over_link) {
      double computed = queued;
      double on_device = base + static_cast<double>(resident.size() - given) * device;
      double link = 0;
      double last = 0;
      for (size_t i = resident.size() - given; i < resident.size(); ++i)
        computed += cpu.Seconds(resident[i].tokens);
      uint32_t left = over_link;
      for (const MissingTiles& expert : missing) {
        const uint32_t come = std::min(left, expert.tiles);
        left -= come;
        computed += (expert.tiles - come) * expert.cpu_seconds;
        on_device += come * expert.device_seconds;
        link += come > 0 ? expert.wait_seconds + come * expert.link_seconds : 0;
        last = come > 0 ? expert.device_seconds : last;
      }
      best = std::min(best, std::max({computed, on_device, link + last}));
    }
  }
  return best;
}

TEST(LayerSharesTest, SharesAreTheBestOfAllNumbersOfTiles) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> exponent(-2, 2);
  const auto drawn = [&] { return std::pow(10, exponent(random)); };
  const CpuCostTable cpu = CpuCostTable::PerToken(.7);
  for (int draw = 0; draw < 500; ++draw) {
    std::vector<MissingTiles> missing;
    for (uint32_t i = random() % 4; i > 0; --i) {
      missing.push_back({static_cast<uint32_t>(1 + random() % 8), drawn(), drawn(), drawn(),
                         random() % 2 == 0 ? 0 : drawn()});
    }
    Experts resident;
    for (uint32_t i = random() % 4; i > 0; --i)
      resident.push_back({i, static_cast<uint32_t>(1 + random() % 5)});
    SortMisses(absl::MakeSpan(resident));
    const double queued = random() % 2 == 0 ? 0 : drawn();
    const double base = random() % 2 == 0 ? 0 : drawn();
    const double device = drawn();
    const double wanted = BruteForce(missing, resident, queued, base, device, cpu);
    EXPECT_NEAR(ShareLayer(missing, resident, queued, base, device, cpu).seconds, wanted, 1e-9 * wanted);
  }
}

}  // namespace
}  // namespace sluice::inferd
