// Tests that tiles go to all workers only where the work is worth it, and that both cases are counted.
#include <atomic>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice::cpu {
namespace {

BackendCounters CountersOf(const Tiles& tiles) {
  BackendCounters counters;
  tiles.AddTo(&counters);
  return counters;
}

TEST(TilesTest, LittleWorkStaysOnTheCallingThreadInOrder) {
  Tiles tiles(3);
  std::vector<uint32_t> order;
  uint32_t finished = 0;
  tiles.Run(
      5, Tiles::kParallelWork - 1,
      [&](uint32_t tile, uint32_t worker) {
        EXPECT_EQ(worker, 0u);
        EXPECT_EQ(tiles.RunEnd(0), 5u);
        order.push_back(tile);
      },
      [&](uint32_t) { ++finished; });
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(finished, 1u);
  EXPECT_EQ(CountersOf(tiles).serial_ops, 1u);
  EXPECT_EQ(CountersOf(tiles).fork_joins, 0u);
}

TEST(TilesTest, MuchWorkIsARegionOfAllWorkers) {
  Tiles tiles(3);
  std::atomic<uint32_t> ran{0};
  tiles.Run(64, Tiles::kParallelWork, [&](uint32_t, uint32_t worker) {
    EXPECT_LT(worker, 3u);
    ran.fetch_add(1);
  });
  EXPECT_EQ(ran.load(), 64u);
  EXPECT_EQ(CountersOf(tiles).serial_ops, 0u);
  EXPECT_EQ(CountersOf(tiles).fork_joins, 1u);
  EXPECT_GT(CountersOf(tiles).region_seconds, 0);
}

}  // namespace
}  // namespace sluice::cpu
