#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "gtest/gtest.h"
#include "tests/inferd/forward/scheduler_testing.h"

namespace sluice::inferd {
namespace {

TEST_F(SchedulerTest, NothingToDoIsAnEmptyPlan) {
  Make(4, 16, 64);
  EXPECT_EQ(scheduler_->Plan().rows, 0u);
}

TEST_F(SchedulerTest, PromptIsChunkedThenDecodesOneRowPerStep) {
  Make(4, 16, 64);
  Add(1, 40);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 16}}));
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 16}}));
  const StepPlan& last = Step();
  EXPECT_EQ(Rows(last), (RowMap{{1, 8}}));
  EXPECT_TRUE(last.sequences[0].reaches_end);
  const StepPlan& decode = Step();
  EXPECT_EQ(Rows(decode), (RowMap{{1, 1}}));
  EXPECT_EQ(decode.sequences[0].first_position, 40u);
  EXPECT_EQ(decode.prefill_rows, 0u);
}

TEST_F(SchedulerTest, EveryStepDecodesBesideABoundedChunk) {
  Make(4, 16, 64);
  Add(1, 4);
  Add(2, 5);
  Step();
  Add(3, 100);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(Rows(Step()), (RowMap{{1, 1}, {2, 1}, {3, 16}}));
  }
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 1}, {2, 1}, {3, 4}}));
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 1}, {2, 1}, {3, 1}}));
}

TEST_F(SchedulerTest, OneChunkServesSeveralShortPrompts) {
  Make(4, 16, 64);
  Add(1, 6);
  Add(2, 6);
  Add(3, 6);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 6}, {2, 6}, {3, 4}}));
}

TEST_F(SchedulerTest, AtMostParallelSequencesRun) {
  Make(2, 64, 64);
  for (SequenceId id = 1; id <= 5; ++id) {
    Add(id, 3);
  }
  EXPECT_EQ(Step().sequences.size(), 2u);
  EXPECT_EQ(scheduler_->running(), 2u);
  EXPECT_EQ(scheduler_->waiting(), 3u);
  scheduler_->Remove(1);
  EXPECT_EQ(Rows(Step()), (RowMap{{2, 1}, {3, 3}}));
}

TEST_F(SchedulerTest, RequestsOfOneClientRunInOrder) {
  Make(1, 64, 64);
  for (SequenceId id = 1; id <= 4; ++id) {
    Add(id, 3);
  }
  for (SequenceId id = 1; id <= 4; ++id) {
    EXPECT_EQ(Step().sequences[0].id, id);
    scheduler_->Remove(id);
  }
}

TEST_F(SchedulerTest, LargerPriorityRunsEarlier) {
  Make(1, 64, 64);
  Add(1, 3, "a", 0);
  Add(2, 3, "a", 5);
  Add(3, 3, "a", -2);
  EXPECT_EQ(Step().sequences[0].id, 2u);
  scheduler_->Remove(2);
  EXPECT_EQ(Step().sequences[0].id, 1u);
  scheduler_->Remove(1);
  EXPECT_EQ(Step().sequences[0].id, 3u);
}

TEST_F(SchedulerTest, FloodingClientDoesNotDelayOthers) {
  Make(2, 64, 64);
  for (SequenceId id = 1; id <= 20; ++id) {
    Add(id, 3, "flood");
  }
  Step();
  Add(100, 3, "quiet");
  scheduler_->Remove(1);
  const StepPlan& plan = Step();
  EXPECT_EQ(Rows(plan), (RowMap{{2, 1}, {100, 3}}));
}

TEST_F(SchedulerTest, PrefillGoesToTheClientServedLeast) {
  Make(2, 10, 128);
  Add(1, 500, "long");
  Step();
  Step();
  Add(2, 30, "short");
  Step();  // admitted, level with "long"
  EXPECT_EQ(Rows(Step()), (RowMap{{2, 10}}));
}

TEST_F(SchedulerTest, ExpiredNamesWaitingAndRunning) {
  Make(1, 64, 64);
  const absl::Time start = absl::FromUnixSeconds(1000);
  ScheduleRequest request;
  request.length = 2;
  request.id = 1;
  request.deadline = start + absl::Seconds(1);
  scheduler_->Add(request);
  request.id = 2;
  request.deadline = start + absl::Seconds(2);
  scheduler_->Add(request);
  Step();
  EXPECT_TRUE(scheduler_->Expired(start).empty());
  EXPECT_EQ(scheduler_->NextDeadline(), start + absl::Seconds(1));
  EXPECT_EQ(scheduler_->Expired(start + absl::Seconds(2)).size(), 2u);
  scheduler_->Remove(1);
  scheduler_->Remove(2);
  EXPECT_EQ(scheduler_->NextDeadline(), absl::InfiniteFuture());
  EXPECT_EQ(pages_->used(), 0u);
}

TEST_F(SchedulerTest, ABlockedSequenceGetsNoRows) {
  Make(2, 64, 64);
  Add(1, 3);
  Add(2, 3);
  Step();
  scheduler_->SetBlocked(1, true);
  EXPECT_EQ(Rows(Step()), (RowMap{{2, 1}}));
  scheduler_->SetBlocked(1, false);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 1}, {2, 1}}));
}

TEST_F(SchedulerTest, BlockedSequenceIsPreemptedAndReturns) {
  Make(1, 64, 64);
  Add(1, 3);
  Step();
  scheduler_->SetBlocked(1, true);
  for (uint32_t i = 0; i < 2 * Scheduler::kPatience; ++i) {
    ASSERT_EQ(Step().rows, 0u);
  }
  EXPECT_EQ(scheduler_->running(), 1u) << "nobody waits, so it stays";
  scheduler_->SetBlocked(1, false);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 1}}));
  scheduler_->SetBlocked(1, true);
  Add(2, 5);
  for (uint32_t i = 0; i < Scheduler::kPatience; ++i) {
    ASSERT_EQ(Step().rows, 0u);
  }
  EXPECT_EQ(Rows(Step()), (RowMap{{2, 5}}));
  scheduler_->SetBlocked(1, false);
  EXPECT_EQ(Rows(Step()), (RowMap{{2, 1}}));
  scheduler_->Remove(2);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 5}}));
}

TEST_F(SchedulerTest, ARowLimitBoundsOneSequenceNotTheStep) {
  Make(2, 64, 64);
  ScheduleRequest request;
  request.id = 1;
  request.length = 100;
  request.row_limit = 5;
  scheduler_->Add(request);
  Add(2, 30);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 5}, {2, 30}}));
}

TEST_F(SchedulerTest, AnUncommittedPlanIsMadeAgain) {
  Make(2, 16, 64);
  Add(1, 40);
  const RowMap first = Rows(scheduler_->Plan());
  const RowMap second = Rows(scheduler_->Plan());
  EXPECT_EQ(first, second);
  EXPECT_EQ(scheduler_->Plan().sequences[0].first_position, 0u);
}

TEST_F(SchedulerTest, OverdueListsRequestsPastTheirStart) {
  Make(1, 64, 64);
  const absl::Time start = absl::FromUnixSeconds(1000);
  ScheduleRequest request;
  request.length = 2;
  request.start_by = start;
  request.id = 1;
  scheduler_->Add(request);
  Step();
  request.id = 2;
  scheduler_->Add(request);
  EXPECT_EQ(scheduler_->NextDeadline(), start);
  EXPECT_TRUE(scheduler_->Overdue(start - absl::Seconds(1)).empty());
  EXPECT_EQ(scheduler_->Overdue(start), std::vector<SequenceId>{2});
  EXPECT_TRUE(scheduler_->Expired(start).empty());
  scheduler_->Remove(2);
  EXPECT_EQ(scheduler_->NextDeadline(), absl::InfiniteFuture());
}

// Under random load every request ends, each row is planned once and in order, and bounds hold.
TEST_F(SchedulerTest, RandomLoadsAlwaysFinishWithinTheBounds) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const uint32_t parallel = 1 + random() % 5;
    const uint32_t chunk = 1 + random() % 48;
    const uint32_t context = 160;
    const uint32_t window = random() % 3 == 0 ? 1 + random() % 90 : 0;
    const uint32_t least = KvPages::PeakPages(context, window, chunk);
    Make(parallel, chunk, least + random() % (2 * least), context, window);
    struct Want {
      uint32_t end = 0;
      uint32_t length = 0;
      uint32_t next = 0;
    };
    std::map<SequenceId, Want> live;
    SequenceId next_id = 1;
    int steps = 0;
    while ((next_id <= 40 || !live.empty()) && ++steps < 40000) {
      while (next_id <= 40 && random() % 3 == 0) {
        Want want;
        want.length = 1 + random() % 100;
        want.end = std::min<uint32_t>(context, want.length + 1 + random() % 60);
        Add(next_id, want.length, std::string(1, static_cast<char>('a' + random() % 3)), random() % 3);
        live[next_id++] = want;
      }
      const StepPlan& plan = scheduler_->Plan();
      for (const SequenceId id : plan.preempted) {
        live.at(id).next = 0;
      }
      ASSERT_LE(plan.prefill_rows, chunk);
      ASSERT_LE(plan.sequences.size(), parallel);
      ASSERT_TRUE(plan.rows > 0 || live.empty()) << "seed " << seed;
      std::set<uint32_t> slots;
      const std::vector<ScheduledRows> sequences = plan.sequences;
      for (const ScheduledRows& rows : sequences) {
        Want& want = live.at(rows.id);
        ASSERT_TRUE(slots.insert(rows.slot).second);
        ASSERT_EQ(rows.first_position, want.next);
        ASSERT_LE(rows.first_position + rows.rows, want.length);
        ASSERT_EQ(rows.reaches_end, rows.first_position + rows.rows == want.length);
        const uint32_t last_page = (rows.first_position + rows.rows - 1) / kPageTokens;
        ASSERT_LT(last_page, pages_->table(rows.slot).size());
        const uint32_t sees =
            window == 0 || rows.first_position < window ? 0 : rows.first_position - window + 1;
        for (uint32_t page = sees / kPageTokens; page <= last_page; ++page) {
          ASSERT_NE(pages_->table(rows.slot)[page], kNoPage);
        }
        scheduler_->Commit(rows.id, rows.rows);
        want.next += rows.rows;
        if (rows.reaches_end) {
          if (want.length == want.end || random() % 50 == 0) {
            scheduler_->Remove(rows.id);
            live.erase(rows.id);
          } else {
            scheduler_->Append(rows.id);
            want.length++;
          }
        }
      }
    }
    EXPECT_TRUE(live.empty()) << "seed " << seed;
    EXPECT_EQ(pages_->used(), 0u);
  }
}

TEST_F(SchedulerTest, RestartedSequenceKeepsItsSlot) {
  Make(2, 16, 8);
  Add(1, 20);
  Add(2, 3);
  while (Rows(Step()) != RowMap{{1, 1}, {2, 1}}) {
  }
  const uint32_t used_by_2 = pages_->held(1);
  scheduler_->Restart(1);
  EXPECT_EQ(pages_->used(), used_by_2);
  EXPECT_EQ(scheduler_->running(), 2u);
  const StepPlan& plan = Step();
  EXPECT_EQ(Rows(plan), (RowMap{{1, 16}, {2, 1}}));
  for (const ScheduledRows& rows : plan.sequences) {
    EXPECT_EQ(rows.first_position == 0, rows.id == 1);
  }
}

}  // namespace
}  // namespace sluice::inferd
