// Many clients at once: priority, preemption, refusal, and that ended clients leave nothing behind.
#include <malloc.h>

#include <cstdlib>
#include <random>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/inferd/engine/engine_fixture.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

bool FullStress() {
  const char* stress = std::getenv("SLUICE_STRESS");
  return stress != nullptr && std::string(stress) == "full";
}

class ManyClientsTest : public EngineTest {
 protected:
  std::shared_ptr<CollectingSink> Send(const GenerateSpec& spec) {
    auto sink = std::make_shared<CollectingSink>();
    const absl::Status status = engine().Generate(spec, sink);
    EXPECT_TRUE(status.ok()) << status;
    return sink;
  }
};

TEST_F(ManyClientsTest, PreemptedByPriorityContinuesUnchanged) {
  options_.engine.parallel = 1;
  for (const bool prefix_cache : {true, false}) {
    options_.engine.prefix_cache = prefix_cache;
    Start();
    const std::vector<int32_t> wanted = Answer(GreedySpec("w", {7, 8}, 200));
    const auto low = Send(GreedySpec("low", {7, 8}, 200));
    low->AwaitTokens(3);
    GenerateSpec spec = GreedySpec("high", {9, 9, 9}, 5);
    spec.priority = 1;
    const auto high = Send(spec);
    ASSERT_TRUE(high->Await().ok());
    EXPECT_FALSE(low->ended()) << "it had two hundred tokens to go";
    ASSERT_TRUE(low->Await().ok());
    EXPECT_EQ(low->ids(), wanted);
    EXPECT_EQ(AwaitQuiet(engine()).preemptions, 1u);
    test_.engine.reset();
  }
}

TEST_F(ManyClientsTest, SixtyFourAtOnceGetTheSameTokensAsAlone) {
  options_.engine.parallel = 64;
  options_.engine.prefill_chunk = 48;
  Start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<GenerateSpec> specs;
  for (int i = 0; i < 64; ++i) {
    GenerateSpec spec = GreedySpec(absl::StrCat("r", i), {4, 9, 11, 4, i % 16}, 20);
    spec.client = absl::StrCat("c", i % 9);
    specs.push_back(spec);
    sinks.push_back(Send(spec));
  }
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(sinks[i]->Await().ok());
    if (i < 16) {
      specs[i].bypass_prefix_cache = true;
      EXPECT_EQ(sinks[i]->ids(), Answer(specs[i])) << i;
    } else {
      EXPECT_EQ(sinks[i]->ids(), sinks[i % 16]->ids());
    }
  }
}

TEST_F(ManyClientsTest, RequestPastItsStartLimitEnds) {
  options_.engine.parallel = 1;
  Start();
  const auto running = Send(GreedySpec("a", {7, 8}, 250));
  running->AwaitTokens(1);
  test_.client->Freeze(true);
  GenerateSpec spec = GreedySpec("b", {7, 8}, 3);
  spec.max_queue_wait = absl::Milliseconds(5);
  const absl::Time sent = SteadyNow();
  const auto waiting = Send(spec);
  while (SteadyNow() < sent + absl::Milliseconds(10)) {
  }
  test_.client->Freeze(false);
  const absl::Status status = waiting->Await();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), "QUEUE_WAIT");
  EXPECT_TRUE(RetryDelayOf(status).has_value());
  EXPECT_FALSE(waiting->started());
  EXPECT_TRUE(running->Await().ok());
}

TEST_F(ManyClientsTest, OverloadIsRefusedAndRunningOnesContinue) {
  options_.engine.parallel = 2;
  options_.engine.queue.count = 4;
  Start();
  const std::vector<int32_t> wanted = Answer(GreedySpec("w", {7, 8}, 200));
  std::vector<std::shared_ptr<CollectingSink>> taken = {Send(GreedySpec("a", {7, 8}, 200))};
  uint64_t refused = 0;
  for (int i = 0; i < 600; ++i) {
    auto sink = std::make_shared<CollectingSink>();
    GenerateSpec spec = GreedySpec(absl::StrCat("r", i), {9, 9}, 2);
    spec.client = absl::StrCat("c", i % 7);
    const absl::Status status = engine().Generate(spec, sink);
    if (status.ok()) {
      taken.push_back(sink);
      continue;
    }
    ++refused;
    ASSERT_EQ(ReasonOf(status), "QUEUE_FULL");
    ASSERT_GE(RetryDelayOf(status).value_or(absl::ZeroDuration()), RequestRegistry::kMinRetry);
  }
  EXPECT_GT(refused, 0u);
  for (const auto& sink : taken) {
    EXPECT_TRUE(sink->Await().ok());
  }
  EXPECT_EQ(taken.front()->ids(), wanted);
  EXPECT_EQ(AwaitQuiet(engine()).requests_rejected, refused);
}

// Cancels at any time, over shared beginnings, preemption and a queue.
TEST_F(ManyClientsTest, RandomCancelsLeaveNothing) {
  options_.weights.dram_budget = SmallestBudget(pack_, 1);
  options_.weights.max_delay_polls = 2;
  options_.engine.parallel = 3;
  options_.engine.prefill_chunk = 16;
  options_.engine.kv_budget = 12 * KvBytesPerPage((*Pack::Open(pack_))->config(), KvType::kF16);
  Start();
  std::mt19937 random(3);
  constexpr int kRounds = 5;
  const int a_round = FullStress() ? 2000 : 200;
  uint64_t cancelled = 0;
  size_t in_use = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::shared_ptr<CollectingSink>> sinks(a_round);
    for (int i = 0; i < a_round; ++i) {
      GenerateSpec spec = GreedySpec(absl::StrCat("r", i), std::vector<int32_t>(1 + random() % 70, 5), 12);
      spec.prompt.back() = static_cast<int32_t>(random() % 4);
      spec.client = absl::StrCat("c", random() % 5);
      spec.cache_salt = random() % 4 == 0 ? "salt" : "";
      spec.priority = static_cast<int32_t>(random() % 2);
      sinks[i] = std::make_shared<CollectingSink>();
      while (absl::IsResourceExhausted(engine().Generate(spec, sinks[i]))) {
        sinks[random() % i]->AwaitTokens(1);
      }
      if (random() % 4 == 0) {
        sinks[random() % (i + 1)]->AwaitTokens(random() % 3);
      }
      if (random() % 3 != 0) {
        engine().Cancel(absl::StrCat("r", i - random() % std::min(i + 1, 8))).IgnoreError();
      }
    }
    for (const auto& sink : sinks) {
      const absl::Status status = sink->Await();
      cancelled += absl::IsCancelled(status);
      ASSERT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
    }
    const EngineStats stats = AwaitQuiet(engine());
    ASSERT_EQ(stats.kv_pages_used, 0u);
    ASSERT_LE(stats.kv_pages_cached, stats.kv_pages_total);
    ASSERT_EQ(stats.expert_leases_held, 0u);
    ASSERT_EQ(test_.client->counters().held_leases, stats.dense_leases_held);
    sinks.clear();
    // Under the sanitizers, which look for leaks themselves, this is always 0.
    const size_t now = mallinfo2().uordblks;
    if (round > 1) {
      EXPECT_LE(now, in_use + (64u << 10)) << "round " << round;
    }
    in_use = round == 1 ? now : in_use;
  }
  EXPECT_GT(cancelled, static_cast<uint64_t>(kRounds * a_round / 10));
  EXPECT_EQ(test_.client->violation(), "");
}

}  // namespace
}  // namespace sluice::inferd
