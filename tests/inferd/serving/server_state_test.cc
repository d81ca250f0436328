#include "inferd/serving/server_state.h"

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/support/fakes/fake_engine.h"

namespace sluice::inferd {
namespace {

TEST(ServerStateTest, WithoutEngineTheStageOfTheStartIsNamed) {
  ServerState state({});
  state.SetProgress("leasing dense weights");
  const absl::Status status = state.Engine().status();
  EXPECT_EQ(absl::StatusCode::kUnavailable, status.code());
  EXPECT_EQ("STARTING", ReasonOf(status));
  EXPECT_EQ("the server is starting: leasing dense weights", std::string(status.message()));
  EXPECT_EQ(status, state.Health());
  EXPECT_EQ(ServerState::Phase::kStarting, state.Look().phase);
  EXPECT_EQ(status.message(), state.Look().detail);
  EXPECT_EQ(0u, state.Stats().sequences_running);
}

TEST(ServerStateTest, DrainBeforeTheEngineIsKept) {
  FakeEngine engine;
  ServerState state({});
  state.StartDrain();
  EXPECT_EQ("DRAINING", ReasonOf(state.Engine().status()));
  state.SetEngine(&engine);
  EXPECT_TRUE(engine.draining());
  EXPECT_EQ(ServerState::Phase::kDraining, state.Look().phase);
}

TEST(ServerStateTest, QueueLimitsSetBeforeTheEngineAreKept) {
  FakeEngine engine;
  ServerState state({});
  state.SetQueueLimits({.count = 3, .tokens = 4, .bytes = 5});
  state.SetEngine(&engine);
  EXPECT_EQ(engine.queue_limits().count, 3u);
  EXPECT_EQ(engine.queue_limits().tokens, 4u);
  EXPECT_EQ(engine.queue_limits().bytes, 5u);
  state.SetQueueLimits({.count = 6, .tokens = 7, .bytes = 8});
  EXPECT_EQ(engine.queue_limits().count, 6u);
}

TEST(ServerStateTest, PhaseIsStartingUntilFirstServing) {
  FakeEngine engine;
  ServerState state({});
  state.SetEngine(&engine);
  engine.SetHealth(absl::UnavailableError("x"));
  EXPECT_EQ(ServerState::Phase::kStarting, state.Look().phase);
  engine.SetHealth(absl::OkStatus());
  EXPECT_EQ(ServerState::Phase::kServing, state.Look().phase);
  engine.SetHealth(absl::UnavailableError("x"));
  EXPECT_EQ(ServerState::Phase::kUnavailable, state.Look().phase);
  EXPECT_EQ("x", state.Look().detail);
  state.StartDrain();
  EXPECT_EQ(ServerState::Phase::kDraining, state.Look().phase);
  EXPECT_TRUE(engine.draining());
}

}  // namespace
}  // namespace sluice::inferd
