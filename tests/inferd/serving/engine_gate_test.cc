#include <memory>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "inferd/serving/server_state.h"
#include "tests/support/fakes/fake_engine.h"

namespace sluice::inferd {
namespace {

class NullSink : public RequestSink {
 public:
  void OnStarted(const Usage&, double) override {}
  void OnTokens(absl::Span<const TokenOut>, std::string_view) override {}
  void OnFinished(const FinishInfo&) override {}
  void OnError(const absl::Status&) override {}
};

GenerateSpec Spec(const std::string& id) {
  GenerateSpec spec;
  spec.request_id = id;
  return spec;
}

TEST(EngineGateTest, ClosedGateRefusesSayingWhatTheStartIsDoing) {
  EngineGate gate;
  gate.SetProgress("leasing dense weights");
  const absl::Status status = gate.Generate(Spec("a"), std::make_shared<NullSink>());
  EXPECT_EQ(absl::StatusCode::kUnavailable, status.code());
  EXPECT_EQ("STARTING", ReasonOf(status));
  EXPECT_EQ("the server is starting: leasing dense weights", std::string(status.message()));
  EXPECT_EQ(absl::StatusCode::kUnavailable, gate.Score({}, nullptr).code());
  EXPECT_EQ(absl::StatusCode::kUnavailable, gate.Health().code());
  EXPECT_EQ(absl::StatusCode::kNotFound, gate.Cancel("a").code());
  EXPECT_EQ(0u, gate.Stats().sequences_running);
}

TEST(EngineGateTest, OpenGateIsTheEngine) {
  FakeEngine engine;
  EngineGate gate;
  gate.Open(&engine);
  EXPECT_TRUE(gate.Health().ok());
  EXPECT_TRUE(gate.Generate(Spec("a"), std::make_shared<NullSink>()).ok());
  EXPECT_EQ(1u, gate.Stats().sequences_running);
  EXPECT_TRUE(gate.Cancel("a").ok());
  gate.StartDrain();
  EXPECT_TRUE(engine.draining());
  EXPECT_EQ("DRAINING", ReasonOf(gate.Generate(Spec("b"), std::make_shared<NullSink>())));
}

TEST(EngineGateTest, DrainBeforeTheEngineIsThereIsNotForgotten) {
  FakeEngine engine;
  EngineGate gate;
  gate.StartDrain();
  gate.Open(&engine);
  EXPECT_TRUE(engine.draining());
  EXPECT_EQ("DRAINING", ReasonOf(gate.Health()));
}

TEST(EngineGateTest, QueueLimitsSetBeforeTheEngineAreKept) {
  FakeEngine engine;
  EngineGate gate;
  gate.SetQueueLimits({.count = 3, .tokens = 4, .bytes = 5});
  gate.Open(&engine);
  EXPECT_EQ(engine.queue_limits().count, 3u);
  EXPECT_EQ(engine.queue_limits().tokens, 4u);
  EXPECT_EQ(engine.queue_limits().bytes, 5u);
  gate.SetQueueLimits({.count = 6, .tokens = 7, .bytes = 8});
  EXPECT_EQ(engine.queue_limits().count, 6u);
}

TEST(ServerStateTest, PhaseIsStartingUntilFirstServing) {
  FakeEngine engine;
  ServerState state(&engine, {});
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
