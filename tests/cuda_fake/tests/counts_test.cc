// Tests the interpreter's counts of a warp's accesses.
#include "tests/cuda_fake/interp/counts.h"

#include <gtest/gtest.h>

namespace sluice::cuda_fake {
namespace {

LaunchCounts CountShared(uint32_t bytes, uint32_t stride, int lanes = 32) {
  RequestCounter counter;
  LaunchCounts counts;
  for (int lane = 0; lane < lanes; ++lane) {
    counter.NoteShared(lane, 1024 + static_cast<uint64_t>(lane) * stride, bytes);
  }
  counter.EndRequest(&counts);
  return counts;
}

TEST(CountsTest, SharedMemoryTakesATurnForEachWordOfABank) {
  EXPECT_EQ(CountShared(4, 4).shared_waves, 1u);
  EXPECT_EQ(CountShared(4, 0).shared_waves, 1u) << "one word for all lanes";
  EXPECT_EQ(CountShared(4, 8).shared_waves, 2u);
  EXPECT_EQ(CountShared(4, 128).shared_waves, 32u) << "all lanes in one bank";
  EXPECT_EQ(CountShared(2, 2).shared_waves, 1u);
  EXPECT_EQ(CountShared(8, 8).shared_waves, 2u);
  EXPECT_EQ(CountShared(16, 16).shared_waves, 4u);
  EXPECT_EQ(CountShared(16, 80).shared_waves, 4u) << "an odd number of quads apart: no bank twice";
  EXPECT_EQ(CountShared(16, 64).shared_waves, 16u) << "four quads apart: two places for eight lanes";
  EXPECT_EQ(CountShared(16, 16, 8).shared_waves, 1u);
  EXPECT_EQ(CountShared(16, 16).shared_requests, 1u);
}

TEST(CountsTest, SectorsAreARequestsOwnAndOnceForTheLaunch) {
  RequestCounter counter;
  LaunchCounts counts;
  for (int request = 0; request < 2; ++request) {
    for (uint64_t lane = 0; lane < 32; ++lane) {
      counter.NoteGlobal(4096 + 4 * lane, 4);
    }
    counter.EndRequest(&counts);
  }
  counter.NoteGlobal(4096 + 24, 16);  // across two sectors, the first of which is known
  counter.EndRequest(&counts);
  counter.NoteGlobal(0, 4);
  counter.Drop();
  counter.EndRequest(&counts);
  counter.EndLaunch(&counts);
  EXPECT_EQ(counts.global_requests, 3u);
  EXPECT_EQ(counts.global_sectors, 10u);
  EXPECT_EQ(counts.unique_sectors, 4u);
}

}  // namespace
}  // namespace sluice::cuda_fake
