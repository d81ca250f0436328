// --replay-trace: a model routes like another one, independent of its own scores. --trace: missing records
// are reported.
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "inferd/policy/router_trace.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

class ReplayTraceTest : public testing::Test {
 protected:
  void SetUp() override {
    TinyModelSpec model;
    model.experts = 8;
    ASSERT_TRUE(PackTiny(model, dir_.File("first"), dir_.File("one")).ok());
    model.seed = 2;
    ASSERT_TRUE(PackTiny(model, dir_.File("second"), dir_.File("other")).ok());
  }

  // Records the routing of two answers of a pack, in real or virtual time.
  Trace Record(const std::string& pack, const std::string& replayed, bool virtual_clock) {
    TestEngineOptions options;
    options.engine.device = DeviceKind::kSim;
    options.engine.virtual_clock = virtual_clock;
    options.engine.trace = dir_.File("trace");
    options.engine.replay_trace = replayed;
    {
      absl::StatusOr<TestEngine> test = StartEngine(dir_.File(pack), options);
      EXPECT_TRUE(test.ok()) << test.status();
      EXPECT_TRUE(GenerateIds(test->engine.get(), GreedySpec("a", {7, 8, 9}, 12)).ok());
      EXPECT_TRUE(GenerateIds(test->engine.get(), GreedySpec("b", {3}, 8)).ok());
    }
    const absl::StatusOr<Trace> trace = ReadTrace(options.engine.trace);
    EXPECT_TRUE(trace.ok()) << trace.status();
    return *trace;
  }

  TempDir dir_;
};

TEST_F(ReplayTraceTest, OtherModelUsesRecordedExpertsInBothClocks) {
  const Trace own = Record("other", "", false);
  const Trace first = Record("one", "", false);
  ASSERT_EQ(first.layers.size(), 2u);
  EXPECT_EQ(std::set<uint64_t>(first.layers[0].sequences.begin(), first.layers[0].sequences.end()).size(),
            2u);
  EXPECT_NE(own.layers[0].chosen, first.layers[0].chosen) << "routed otherwise by itself";
  ASSERT_EQ(std::rename(dir_.File("trace").c_str(), dir_.File("recorded").c_str()), 0);
  for (const bool virtual_clock : {false, true}) {
    const Trace replayed = Record("other", dir_.File("recorded"), virtual_clock);
    for (size_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(replayed.layers[layer].chosen, first.layers[layer].chosen) << layer;
      EXPECT_EQ(replayed.layers[layer].positions, first.layers[layer].positions) << layer;
    }
  }
}

TEST_F(ReplayTraceTest, InvalidTracePreventsEngineStart) {
  TestEngineOptions options;
  options.engine.replay_trace = dir_.File("one/manifest.json");
  EXPECT_TRUE(absl::IsDataLoss(StartEngine(dir_.File("one"), options).status()));
  options.engine.replay_trace = dir_.File("nothing");
  EXPECT_TRUE(absl::IsNotFound(StartEngine(dir_.File("one"), options).status()));
}

TEST_F(ReplayTraceTest, UnwritableFilePreventsEngineStart) {
  TestEngineOptions options;
  options.engine.trace = "/dev/full";
  const absl::Status status = StartEngine(dir_.File("one"), options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.message().find("--trace /dev/full"), std::string::npos) << status;
}

TEST_F(ReplayTraceTest, NoTokenWithoutItsRecordedRoutes) {
  TestEngineOptions options;
  options.engine.trace = dir_.File("trace");
  absl::StatusOr<TestEngine> test = StartEngine(dir_.File("one"), options);
  ASSERT_TRUE(test.ok()) << test.status();
  ASSERT_TRUE(GenerateIds(test->engine.get(), GreedySpec("fits", {7}, 1)).ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit full = before;
  full.rlim_cur = std::filesystem::file_size(options.engine.trace) + 10;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const absl::Status first = GenerateIds(test->engine.get(), GreedySpec("first", {7}, 1)).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(first.message().find("--trace"), std::string::npos) << first;
  // With room again: a record in the middle is missing.
  const absl::Status next = GenerateIds(test->engine.get(), GreedySpec("next", {7}, 1)).status();
  EXPECT_NE(next.message().find("--trace"), std::string::npos) << next;
}

}  // namespace
}  // namespace sluice::inferd
