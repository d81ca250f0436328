// Draft tokens: when a draft is worth its time, and that nothing of a draft is kept.
#include <gtest/gtest.h>

#include <vector>

#include "inferd/forward/token_draft.h"
#include "tests/inferd/engine/engine_fixture.h"

namespace sluice::inferd {
namespace {

TEST(DraftTimingTest, DraftMayTakeTwiceTheWait) {
  DraftTiming timing;
  EXPECT_TRUE(timing.Pays(1)) << "nothing was seen";
  timing.AddDraft(3'000'000);
  EXPECT_TRUE(timing.Pays(1)) << "no wait was seen";
  timing.AddWait(2, 2'000'000);  // 1 ms for each
  EXPECT_FALSE(timing.Pays(1));
  EXPECT_TRUE(timing.Pays(2));
}

TEST(DraftTimingTest, RecentMeasurementsDecide) {
  DraftTiming timing;
  timing.AddDraft(3'000'000);
  timing.AddWait(1, 1'000'000);
  for (int i = 0; i < 64; ++i) timing.AddWait(1, 4'000'000);
  EXPECT_TRUE(timing.Pays(1));
  for (int i = 0; i < 64; ++i) timing.AddDraft(20'000'000);
  EXPECT_FALSE(timing.Pays(1));
}

TEST(DraftTimingTest, DelayedDraftIsTriedAgain) {
  DraftTiming timing;
  timing.AddWait(1, 1'000'000);
  timing.AddDraft(1'000'000'000);
  int tries = 1;
  while (!timing.Pays(1)) {
    ASSERT_LT(++tries, 1000);
  }
  EXPECT_GT(tries, 100);
}

// Two of eight experts a token, most of them missing, two requests at once beside prompts in pieces.
class DraftTokensTest : public EngineTest {
 protected:
  std::vector<std::vector<int32_t>> Answers() {
    std::vector<std::vector<int32_t>> answers;
    Start();
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (int i = 0; i < 6; ++i) {
      std::vector<int32_t> prompt;
      for (int j = 0; j < 5 + 9 * i; ++j) prompt.push_back(4 + (7 * i + 3 * j) % 60);
      sinks.push_back(std::make_shared<CollectingSink>());
      EXPECT_TRUE(engine().Generate(GreedySpec(absl::StrCat("g", i), prompt, 90), sinks.back()).ok());
    }
    for (const auto& sink : sinks) {
      EXPECT_TRUE(sink->Await().ok()) << sink->Await();
      answers.push_back(sink->ids());
    }
    stats_ = AwaitQuiet(engine());
    EXPECT_EQ(test_.client->violation(), "");
    return answers;
  }

  EngineStats stats_;
};

TEST_F(DraftTokensTest, AnswersAreEqualAndRightDraftsAreUsed) {
  options_.engine.parallel = 2;
  options_.engine.prefill_chunk = 16;
  options_.weights.max_delay_polls = 9;
  for (const KvType kv : {KvType::kF16, KvType::kQ8}) {
    options_.engine.kv = kv;
    options_.weights.dram_budget = ~uint64_t{0};
    options_.engine.policies.policy = {"token_draft=off"};
    const std::vector<std::vector<int32_t>> wanted = Answers();
    EXPECT_EQ(stats_.draft_steps, 0u);
    options_.weights.dram_budget = SmallestBudget(pack_, 1);
    options_.engine.policies.policy = {};
    EXPECT_EQ(Answers(), wanted);
    EXPECT_GT(stats_.draft_steps, 0u);
    EXPECT_GT(stats_.draft_steps_right, 0u);
    EXPECT_LE(stats_.draft_steps_right, stats_.draft_steps);
  }
}

}  // namespace
}  // namespace sluice::inferd
