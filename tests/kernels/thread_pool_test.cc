// Tests the fork-join pool: every tile once, results visible after the join, more threads than CPUs, inside
// and outside of steps.
#include "kernels/cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "common/base/machine_facts.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace sluice {
namespace {

class ThreadPoolTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1u, 2u, 3u, 8u, 64u));

TEST_P(ThreadPoolTest, TilesRunOnceAndWritesAreSeenAfterTheJoin) {
  ThreadPool pool(GetParam());
  pool.BeginStep();
  for (uint32_t tiles : {0u, 1u, 2u, 3u, 7u, 64u, 501u}) {
    std::vector<uint32_t> runs(tiles, 0);  // plain memory: a race here is the pool's fault
    pool.Run(tiles, [&](uint32_t tile, uint32_t worker) {
      ASSERT_LT(worker, GetParam());
      runs[tile] += tile + 1;
    });
    for (uint32_t tile = 0; tile < tiles; ++tile) {
      ASSERT_EQ(runs[tile], tile + 1);
    }
  }
  pool.EndStep();
}

TEST_P(ThreadPoolTest, WhatWorkersPutOffIsFinishedBeforeTheJoin) {
  ThreadPool pool(GetParam());
  for (uint32_t tiles : {1u, 2u, 7u, 501u}) {
    std::vector<uint32_t> runs(tiles, 0);
    std::vector<std::vector<uint32_t>> waiting(GetParam());  // each worker's last tile is put off
    pool.Run(
        tiles,
        [&](uint32_t tile, uint32_t worker) {
          std::vector<uint32_t>& mine = waiting[worker];
          for (; !mine.empty(); mine.pop_back()) {
            runs[mine.back()] += 1;
          }
          mine.push_back(tile);
        },
        [&](uint32_t worker) {
          for (const uint32_t tile : waiting[worker]) {
            runs[tile] += 1;
          }
          waiting[worker].clear();
        });
    ASSERT_EQ(runs, std::vector<uint32_t>(tiles, 1));
  }
}

TEST_P(ThreadPoolTest, RegionsFollowEachOtherWithoutMixing) {
  ThreadPool pool(GetParam());
  std::vector<uint64_t> values(40, 1);
  uint64_t expected = 1;
  for (int step = 0; step < 60; ++step) {
    // Some steps are bracketed, in others the workers sleep before every region.
    const bool bracket = step % 3 != 0;
    if (bracket) {
      pool.BeginStep();
    }
    for (uint32_t region = 0; region < 20; ++region) {
      const uint64_t add = static_cast<uint64_t>(step) * 20 + region;
      pool.Run(40, [&values, add](uint32_t tile, uint32_t) { values[tile] = values[tile] * 3 + add; });
      expected = expected * 3 + add;
    }
    if (bracket) {
      pool.EndStep();
    }
  }
  for (const uint64_t value : values) {
    ASSERT_EQ(value, expected);
  }
}

TEST_P(ThreadPoolTest, ForkJoinsAreCountedWithSeveralThreads) {
  ThreadPool pool(GetParam());
  std::atomic<uint32_t> sum{0};
  for (int i = 0; i < 10; ++i) {
    pool.Run(5, [&](uint32_t tile, uint32_t) { sum.fetch_add(tile); });
    pool.Run(1, [&](uint32_t, uint32_t) {});
  }
  EXPECT_EQ(sum.load(), 100u);
  EXPECT_EQ(pool.counters().fork_joins, GetParam() == 1 ? 0u : 10u);
}

TEST_P(ThreadPoolTest, EndsCleanlyInTheMiddleOfAStep) {
  for (int i = 0; i < 20; ++i) {
    ThreadPool pool(GetParam());
    pool.BeginStep();
    if (i % 2 == 0) {
      pool.Run(4, [](uint32_t, uint32_t) {});
    }
  }
}

TEST(PinnedThreadPoolTest, EveryWorkerRunsOnItsCpuFromTheFirstStepOn) {
  const std::vector<uint32_t> cpus = AllowedCpus();
  // A thread of its own is the owner, which stays pinned.
  std::thread owner([&cpus] {
    ThreadPool pool(static_cast<uint32_t>(cpus.size()), cpus);
    pool.BeginStep();
    for (int round = 0; round < 20; ++round) {
      pool.Run(200, [&cpus](uint32_t, uint32_t worker) {
        EXPECT_EQ(static_cast<uint32_t>(sched_getcpu()), cpus[worker]);
      });
    }
    pool.EndStep();
    EXPECT_EQ(AllowedCpus(), std::vector<uint32_t>{cpus[0]});
  });
  owner.join();
}

TEST(PinnedThreadPoolTest, ACpuThatMayNotBeUsedIsRefusedByName) {
  const std::vector<uint32_t> cpus = {AllowedCpus().front(), 60000};
  const auto backend = CreatePinnedCpuBackend({}, cpus);
  ASSERT_FALSE(backend.ok());
  EXPECT_EQ(backend.status().message(), "this process may not use CPU 60000");
}

// Balance with tiles of equal time: the initial runs of workers differ by one tile.
TEST(ThreadPoolSharesTest, NoWorkerBeginsWithMoreThanOneTileAboveAnother) {
  for (const uint32_t threads : {1u, 2u, 3u, 16u, 64u}) {
    for (const uint32_t tiles : {1u, 63u, 64u, 65u, 1000u}) {
      uint32_t least = tiles;
      uint32_t most = 0;
      for (uint32_t worker = 0; worker < threads; ++worker) {
        const uint32_t share = FirstTileOf(worker + 1, threads, tiles) - FirstTileOf(worker, threads, tiles);
        least = std::min(least, share);
        most = std::max(most, share);
      }
      EXPECT_LE(most - least, 1u) << threads << " threads, " << tiles << " tiles";
      EXPECT_EQ(FirstTileOf(threads, threads, tiles), tiles);
    }
  }
}

}  // namespace
}  // namespace sluice
