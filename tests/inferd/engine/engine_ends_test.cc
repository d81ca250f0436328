// Early ends of requests, refused requests, and refused engine options.
#include <algorithm>
#include <random>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inferd/engine/engine.h"
#include "tests/inferd/engine/engine_fixture.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

using testing::HasSubstr;

TEST_F(EngineTest, CancelEndsARequestAndLeavesNothing) {
  Start();
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(GreedySpec("a", {7, 8}, 250), sink).ok());
  sink->AwaitTokens(2);
  ASSERT_TRUE(engine().Cancel("a").ok());
  const absl::Status status = sink->Await();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(absl::IsNotFound(engine().Cancel("a")));
  const EngineStats stats = AwaitQuiet(engine());
  EXPECT_EQ(stats.kv_pages_used, 0u);
  EXPECT_EQ(stats.expert_leases_held, 0u);
  EXPECT_EQ(stats.requests_cancelled, 1u);
}

TEST_F(EngineTest, RandomCancelsLeaveEveryGaugeAtZero) {
  options_.weights.dram_budget = SmallestBudget(pack_, 1);
  options_.weights.max_delay_polls = 3;
  Start();
  std::mt19937 random(3);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 300; ++i) {
    GenerateSpec spec = GreedySpec(absl::StrCat("r", i), {4, 5, 6, 7}, 30);
    spec.client = absl::StrCat("c", i % 3);
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine().Generate(spec, sinks.back()).ok());
    if (random() % 3 == 0) {
      sinks[random() % sinks.size()]->AwaitTokens(random() % 4);
    }
    if (random() % 2 == 0) {
      engine().Cancel(absl::StrCat("r", i - random() % std::min(i + 1, 8))).IgnoreError();
    }
  }
  for (int i = 0; i < 300; ++i) {
    engine().Cancel(absl::StrCat("r", i)).IgnoreError();
  }
  int cancelled = 0;
  for (const auto& sink : sinks) {
    cancelled += absl::IsCancelled(sink->Await());
  }
  EXPECT_GT(cancelled, 50);
  const EngineStats stats = AwaitQuiet(engine());
  EXPECT_EQ(stats.sequences_running, 0u);
  EXPECT_EQ(stats.sequences_waiting, 0u);
  EXPECT_EQ(stats.kv_pages_used, 0u);
  EXPECT_EQ(stats.expert_leases_held, 0u);
  EXPECT_EQ(test_.client->counters().held_leases, stats.dense_leases_held);
  EXPECT_EQ(test_.client->violation(), "");
}

TEST_F(EngineTest, GaugesAreZeroWhenTheSinkIsTold) {
  class WatchingSink final : public RequestSink {
   public:
    explicit WatchingSink(Engine* engine) : engine_(engine) {}
    void OnStarted(const Usage&, double) override {}
    void OnTokens(absl::Span<const TokenOut>, std::string_view) override {}
    void OnFinished(const FinishInfo&) override {
      const EngineStats stats = engine_->Stats();
      MutexLock lock(&mutex_);
      left_ = stats.sequences_running + stats.sequences_waiting + stats.kv_pages_used;
      ended_ = true;
      changed_.SignalAll();
    }
    void OnError(const absl::Status&) override { ADD_FAILURE(); }
    uint64_t Left() {
      MutexLock lock(&mutex_);
      while (!ended_) {
        changed_.Wait(&mutex_);
      }
      return left_;
    }

   private:
    Engine* const engine_;
    Mutex mutex_;
    CondVar changed_;
    bool ended_ ABSL_GUARDED_BY(mutex_) = false;
    uint64_t left_ ABSL_GUARDED_BY(mutex_) = 1;
  };
  Start();
  auto sink = std::make_shared<WatchingSink>(&engine());
  ASSERT_TRUE(engine().Generate(GreedySpec("a", {7, 8}, 3), sink).ok());
  EXPECT_EQ(sink->Left(), 0u);
}

TEST_F(EngineTest, DeadlinesEndRunningAndWaitingRequests) {
  options_.engine.parallel = 1;
  Start();
  test_.client->Freeze(true);  // the first expert never arrives while the deadlines pass
  GenerateSpec spec = GreedySpec("a", {7, 8}, 250);
  auto running = std::make_shared<CollectingSink>();
  auto waiting = std::make_shared<CollectingSink>();
  spec.deadline = SteadyNow() + absl::Milliseconds(30);
  ASSERT_TRUE(engine().Generate(spec, running).ok());
  spec.request_id = "b";
  ASSERT_TRUE(engine().Generate(spec, waiting).ok());
  spec.request_id = "c";
  spec.deadline = SteadyNow() - absl::Milliseconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(engine().Generate(spec, waiting)));
  while (SteadyNow() < spec.deadline + absl::Milliseconds(32)) {
  }
  test_.client->Freeze(false);
  EXPECT_TRUE(absl::IsDeadlineExceeded(running->Await()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(waiting->Await()));
  EXPECT_TRUE(running->started());
  EXPECT_FALSE(waiting->started());
  EXPECT_EQ(AwaitQuiet(engine()).kv_pages_used, 0u);
}

// The message changes once per limit, not with every call, so that a log of changes stays short.
TEST_F(EngineTest, HealthOfAStuckStepCountsWholeLimits) {
  constexpr absl::Duration kLimit = absl::Milliseconds(20);
  options_.engine.watchdog = kLimit;
  Start();
  test_.client->Freeze(true);
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(GreedySpec("a", {7, 8}, 250), sink).ok());
  const std::string words = "the running step has not moved for ";
  for (int looks = 0; looks < 1000;) {
    const absl::Status health = engine().Health();
    if (health.ok()) {
      ASSERT_FALSE(sink->ended()) << "it was never stuck";
      continue;
    }
    const std::string text(health.message());
    ASSERT_EQ(text.rfind(words, 0), 0u) << text;
    absl::Duration silence;
    ASSERT_TRUE(absl::ParseDuration(text.substr(words.size()), &silence)) << text;
    ASSERT_GT(silence, absl::ZeroDuration());
    ASSERT_EQ(silence % kLimit, absl::ZeroDuration()) << text;
    ++looks;
  }
  test_.client->Freeze(false);
  EXPECT_TRUE(sink->Await().ok());
}

TEST_F(EngineTest, FullQueueRefusesAndRecovers) {
  options_.engine.parallel = 1;
  options_.engine.queue.count = 2;
  Start();
  test_.client->Freeze(true);
  std::vector<std::shared_ptr<CollectingSink>> sinks(4);
  for (int i = 0; i < 3; ++i) {
    sinks[i] = std::make_shared<CollectingSink>();
    ASSERT_TRUE(engine().Generate(GreedySpec(absl::StrCat("a", i), {7, 8}, 3), sinks[i]).ok());
    while (i == 0 && engine().Stats().sequences_running == 0) {
      // The first request runs, and so does not count as waiting. Its start is published before its step.
      if (sinks[0]->started()) {
        break;
      }
    }
  }
  const absl::Status status = engine().Generate(GreedySpec("b", {7, 8}, 3), sinks[0]);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
  EXPECT_TRUE(RetryDelayOf(status).has_value());
  EXPECT_EQ(engine().Stats().requests_rejected, 1u);
  test_.client->Freeze(false);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(sinks[i]->Await().ok());
  }
  EXPECT_EQ(Answer(GreedySpec("c", {7, 8}, 3)).size(), 3u);
}

TEST_F(EngineTest, ALiveIdCannotBeUsedTwice) {
  Start();
  auto sink = std::make_shared<CollectingSink>();
  test_.client->Freeze(true);
  ASSERT_TRUE(engine().Generate(GreedySpec("a", {7, 8}, 5), sink).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(engine().Generate(GreedySpec("a", {7, 8}, 5), sink)));
  test_.client->Freeze(false);
  ASSERT_TRUE(sink->Await().ok());
  EXPECT_EQ(Answer(GreedySpec("a", {7, 8}, 5)).size(), 5u);
}

TEST_F(EngineTest, DrainingRefusesNewRequestsAndFinishesOldOnes) {
  Start();
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(GreedySpec("a", {7, 8}, 50), sink).ok());
  EXPECT_TRUE(engine().Health().ok());
  engine().StartDrain();
  const absl::Status status = engine().Generate(GreedySpec("b", {7, 8}, 5), sink);
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(ReasonOf(status), "DRAINING");
  EXPECT_FALSE(engine().Health().ok());
  ASSERT_TRUE(sink->Await().ok());
  EXPECT_EQ(sink->ids().size(), 50u);
}

TEST_F(EngineTest, EndingTheEngineEndsLiveRequests) {
  Start();
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(GreedySpec("a", {7, 8}, 250), sink).ok());
  sink->AwaitTokens(1);
  test_.engine.reset();
  const absl::Status status = sink->Await();
  EXPECT_TRUE(absl::IsUnavailable(status) || status.ok()) << status;
}

TEST_F(EngineTest, RequestsBeyondTheContextAreRefused) {
  options_.engine.context = 32;
  Start();
  const absl::Status too_long =
      engine().Generate(GreedySpec("a", {1, 2, 3}, 30), std::make_shared<CollectingSink>());
  EXPECT_EQ(ReasonOf(too_long), "CONTEXT_TOO_LONG") << too_long;
  EXPECT_THAT(std::string(too_long.message()), HasSubstr("32"));
  ScoreSpec score;
  score.request_id = "s";
  score.input.assign(33, 1);
  EXPECT_EQ(ReasonOf(engine().Score(score, std::make_shared<CollectingScoreSink>())), "CONTEXT_TOO_LONG");
  EXPECT_EQ(engine().Stats().requests_rejected, 2u);
  EXPECT_EQ(AwaitQuiet(engine()).sequences_waiting, 0u);
}

TEST_F(EngineTest, PredictionsCountOnlyIfExpertsAreMissing) {
  options_.weights.dram_budget = SmallestBudget(pack_, 3);  // six of sixteen experts
  Start();
  Answer(GreedySpec("a", {7, 8}, 40));
  const EngineStats tight = AwaitQuiet(engine());
  EXPECT_GT(tight.predictions, 40u);
  EXPECT_GT(tight.predictions_right, 0u);
  EXPECT_LE(tight.predictions_right, tight.predictions);
  EXPECT_GT(tight.prefetch_issued, 0u);
  EXPECT_GT(tight.prefetch_useful, 0u);
  EXPECT_LE(tight.prefetch_useful, tight.prefetch_issued);
  test_.engine.reset();
  options_.weights.dram_budget = ~uint64_t{0};
  Start();
  ASSERT_TRUE(ScoreLogits(&engine(), "s", {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                           13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24})
                  .ok());
  Answer(GreedySpec("b", {7, 8}, 100));
  const EngineStats settled = AwaitQuiet(engine());
  Answer(GreedySpec("c", {7, 8}, 100));
  const EngineStats later = AwaitQuiet(engine());
  EXPECT_EQ(later.prefetch_issued, settled.prefetch_issued) << "everything that is used is resident";
}

TEST_F(EngineTest, InvalidOptionsAreRefusedWithNumbers) {
  const ModelConfig config = (*Pack::Open(pack_))->config();
  EngineOptions options;
  options.context = 513;
  EXPECT_THAT(std::string(PlanEngine(options, config).status().message()), HasSubstr("513"));
  options.context = 512;
  options.kv_budget = 1000;
  EXPECT_THAT(std::string(PlanEngine(options, config).status().message()), HasSubstr("1000"));
  options.kv_budget = 0;
  options.parallel = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(PlanEngine(options, config).status()));
  options.parallel = 4;
  options.preset = "fast";
  EXPECT_THAT(std::string(PlanEngine(options, config).status().message()), HasSubstr("exact"));
  options.preset = "exact";
  ASSERT_TRUE(PlanEngine(options, config).ok());
  EXPECT_EQ(PlanEngine(EngineOptions{}, config)->options.context, 512u);
}

TEST_F(EngineTest, UnsupportedModelsAreRefusedByName) {
  const ModelConfig good = (*Pack::Open(pack_))->config();
  ASSERT_TRUE(CheckSupported(good).ok());
  struct Row {
    absl::StatusCode code;
    std::string word;
    std::function<void(LayerConfig*)> change;
  };
  constexpr auto kLacking = absl::StatusCode::kUnimplemented;
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  const std::vector<Row> rows = {
      {kLacking, "dynamic rope", [](LayerConfig* l) { l->attention.rope.kind = RopeKind::kDynamic; }},
      {kWrong, "long rope", [](LayerConfig* l) { l->attention.rope.kind = RopeKind::kLongRope; }},
      {kWrong, "latent", [](LayerConfig* l) { l->attention.kind = AttentionKind::kLatent; }},
      {kWrong, "gated delta", [](LayerConfig* l) { l->attention.kind = AttentionKind::kGatedDelta; }},
      {kWrong, "convolution over 0",
       [](LayerConfig* l) {
         l->attention.kind = AttentionKind::kGatedDelta;
         l->attention.delta = {1, 1, 16, 16, 0};
       }},
      {kWrong, "heads", [](LayerConfig* l) { l->attention.kv_heads = 3; }},
      {kWrong, "rope over 64", [](LayerConfig* l) { l->attention.rope.dimensions = 64; }},
      {kWrong, "top 9", [](LayerConfig* l) { l->moe.top_k = 9; }},
      {kWrong, "3 groups",
       [](LayerConfig* l) {
         l->moe.groups = 3;
         l->moe.top_groups = 1;
       }},
      {kWrong, "shared expert", [](LayerConfig* l) { l->moe.shared_gate = true; }},
  };
  for (const Row& row : rows) {
    ModelConfig config = good;
    row.change(&config.layers[1]);
    const absl::Status status = CheckSupported(config);
    EXPECT_EQ(status.code(), row.code) << row.word << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.word));
    EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1"));
  }
}

}  // namespace
}  // namespace sluice::inferd
