// weightd and its clients in one thread, on one virtual clock, in an order decided by a seed, down to single
// operations on shared memory. `simulation_test --seed N --events N` replays a run.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/simulation/world.h"

namespace sluice {
namespace {

bool Full() {
  const char* stress = std::getenv("SLUICE_STRESS");
  return stress != nullptr && std::strcmp(stress, "full") == 0;
}

void Print(const WorldOptions& options, const WorldResult& result) {
  const SimCounters& c = result.counters;
  std::printf(
      "seed %lu: %lu events, %.1f virtual seconds, %lu leases (%lu refused), %lu requests (%lu ended: %lu "
      "without "
      "room, %lu transfers, %lu data loss, %lu cancelled, %lu refused), %lu sessions (%lu lost), %lu kills "
      "of clients, %lu "
      "of "
      "weightd, %lu extents that stay, %lu pulls (%lu in vain), %lu times at rest, digest %016lx\n",
      options.seed, result.events, static_cast<double>(result.virtual_nanos) * 1e-9, c.leases, c.lease_misses,
      c.submitted, c.completed, c.no_room, c.transfers, c.data_loss, c.cancelled, c.refused, c.sessions,
      c.lost_sessions, c.client_kills, c.server_kills, c.dense, c.pulls, c.pulls_in_vain, c.quiet_points,
      result.digest);
  std::fflush(stdout);
}

std::string Replay(const WorldOptions& options) {
  return "replay: simulation_test --seed " + std::to_string(options.seed) + " --events " +
         std::to_string(options.events);
}

TEST(SimulationTest, EveryInvariantHoldsOverAMillionEvents) {
  const uint64_t seeds = Full() ? 200 : 8;
  uint64_t quiet_points = 0;
  uint64_t dense = 0;
  uint64_t pulls = 0;
  uint64_t pulls_in_vain = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    WorldOptions options;
    options.seed = seed;
    options.events = Full() ? 1'000'000 : 125'000;
    options.clients = 2 + static_cast<int>(seed % 4);
    std::printf("%s\n", Replay(options).c_str());
    std::fflush(stdout);
    const WorldResult result = RunWorld(options);
    Print(options, result);
    ASSERT_EQ(result.failure, "") << Replay(options);
    EXPECT_EQ(result.events, options.events);
    EXPECT_GT(result.counters.leases, 100u);
    EXPECT_GT(result.counters.client_kills, 5u);
    dense += result.counters.dense;
    pulls += result.counters.pulls;
    quiet_points += result.counters.quiet_points;
    pulls_in_vain += result.counters.pulls_in_vain;
  }
  EXPECT_GT(quiet_points, seeds) << "the world hardly ever comes to rest";
  EXPECT_GT(dense, 10 * seeds);
  EXPECT_GT(pulls, 10 * seeds);
  EXPECT_GT(pulls_in_vain, seeds) << "sessions hardly ever end while an expert is pulled";
}

TEST(SimulationTest, SameSeedIsTheSameRun) {
  WorldOptions options;
  options.seed = 77;
  options.events = 20'000;
  EXPECT_EQ(RunWorld(options).digest, RunWorld(options).digest);
  options.seed = 78;
  EXPECT_NE(RunWorld(options).digest, RunWorld({.seed = 77, .events = 20'000}).digest);
}

// The simulation's verdict on a planted bug, within a bounded number of events.
std::string CaughtAs(PlantedBug bug) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    WorldOptions options;
    options.seed = seed;
    options.bug = bug;
    const WorldResult result = RunWorld(options);
    if (!result.failure.empty()) {
      std::printf("seed %lu, %lu events: %s\n", seed, result.events, result.failure.c_str());
      return result.failure;
    }
  }
  return "nothing was seen";
}

TEST(SimulationTest, EvictionThatDoesNotLookAtThePinsIsCaught) {
  EXPECT_NE(CaughtAs(PlantedBug::kEvictWithoutLook).find("lease"), std::string::npos);
}

TEST(SimulationTest, ReportThatDoesNotWakeThePumpIsCaught) {
  EXPECT_NE(CaughtAs(PlantedBug::kForgottenWake).find("deadlock"), std::string::npos);
}

TEST(SimulationTest, SlotThatIsFilledWhileTheDeviceReadsItIsCaught) {
  EXPECT_NE(CaughtAs(PlantedBug::kForgottenEvent).find("while the device reads slot"), std::string::npos);
}

TEST(SimulationTest, PullThatCountsThoughItsSessionEndedIsCaught) {
  EXPECT_NE(CaughtAs(PlantedBug::kLostPull).find("of the pack in transfer"), std::string::npos);
}

// Before the lease the bug leaves bytes of an older fill; after it, it writes into leased memory.
TEST(SimulationTest, ReaderThatWritesAfterItsReportIsCaught) {
  const std::string caught = CaughtAs(PlantedBug::kLateWrite);
  EXPECT_TRUE(caught.find("lease") != std::string::npos || caught.find("is of fill") != std::string::npos);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  sluice::WorldOptions options;
  bool replay = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--seed") == 0) {
      options.seed = value;
      options.clients = 2 + static_cast<int>(value % 4);
      replay = true;
    } else if (std::strcmp(argv[i], "--events") == 0) {
      options.events = value;
    } else {
      std::fprintf(stderr, "usage: simulation_test [--seed N] [--events N]\n");
      return 2;
    }
  }
  if (!replay) {
    return RUN_ALL_TESTS();
  }
  const sluice::WorldResult result = sluice::RunWorld(options);
  sluice::Print(options, result);
  std::printf("%s\n", result.failure.empty() ? "every invariant held" : result.failure.c_str());
  return result.failure.empty() ? 0 : 1;
}
