#include "inferd/schedule/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace sluice {
namespace {

// A scheduler with pages, and short words for its steps.
class SchedulerTest : public testing::Test {
 protected:
  void Make(uint32_t parallel, uint32_t chunk, uint32_t pages, uint32_t context = 1024, uint32_t window = 0) {
    pages_ = std::make_unique<KvPages>(pages, parallel, context, window);
    scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{parallel, chunk}, pages_.get());
  }

  void Add(SequenceId id, uint32_t length, const std::string& client = "a", int priority = 0) {
    ScheduleRequest request;
    request.id = id;
    request.length = length;
    request.client = client;
    request.priority = priority;
    scheduler_->Add(request);
  }

  // Plans and commits a step; a sequence that reached its end gets a token.
  const StepPlan& Step() {
    const StepPlan& plan = scheduler_->Plan();
    for (const ScheduledRows& rows : plan.sequences) {
      scheduler_->Commit(rows.id, rows.rows);
      if (rows.reaches_end) {
        scheduler_->Append(rows.id);
      }
    }
    return plan;
  }

  static std::map<SequenceId, uint32_t> Rows(const StepPlan& plan) {
    std::map<SequenceId, uint32_t> rows;
    for (const ScheduledRows& sequence : plan.sequences) {
      rows[sequence.id] = sequence.rows;
    }
    return rows;
  }
  using RowMap = std::map<SequenceId, uint32_t>;

  std::unique_ptr<KvPages> pages_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, NothingToDoIsAnEmptyPlan) {
  Make(4, 16, 64);
  EXPECT_EQ(scheduler_->Plan().rows, 0u);
}

TEST_F(SchedulerTest, APromptIsCutIntoChunksThenDecodesOneRowAStep) {
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

TEST_F(SchedulerTest, DecodeRowsComeInEveryStepBesideABoundedChunk) {
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

TEST_F(SchedulerTest, AFloodOfOneClientDoesNotHoldUpAnother) {
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

TEST_F(SchedulerTest, OneThatStaysBlockedMakesWayAndComesBackWhenItMayRun) {
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

TEST_F(SchedulerTest, WithoutPagesAPromptWaits) {
  Make(4, 256, 8);  // 256 positions
  Add(1, 190);
  Add(2, 100);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 190}}));
  EXPECT_EQ(scheduler_->waiting(), 1u);
  scheduler_->Remove(1);
  EXPECT_EQ(Rows(Step()), (RowMap{{2, 100}}));
}

TEST_F(SchedulerTest, TheYoungestGivesItsPagesBackAndIsRecomputedFromItsFirstToken) {
  Make(2, 256, 4);  // 128 positions
  Add(1, 60);
  Add(2, 60);
  Step();
  uint32_t length2 = 61;
  bool preempted = false;
  for (int i = 0; i < 40; ++i) {
    const StepPlan& plan = Step();
    ASSERT_EQ(Rows(plan).count(1), 1u) << "the oldest is never held up";
    if (!plan.preempted.empty()) {
      EXPECT_EQ(plan.preempted, std::vector<SequenceId>{2});
      preempted = true;
      break;
    }
    length2 += Rows(plan).count(2);
  }
  ASSERT_TRUE(preempted);
  EXPECT_EQ(scheduler_->waiting(), 1u);
  scheduler_->Remove(1);
  const StepPlan& again = Step();
  EXPECT_EQ(Rows(again), (RowMap{{2, length2}}));
  EXPECT_EQ(again.sequences[0].first_position, 0u);
  EXPECT_EQ(again.admitted, std::vector<SequenceId>{2});
}

TEST_F(SchedulerTest, LowPriorityIsPreemptedBeforeOlderHighPriority) {
  Make(3, 256, 6);
  Add(1, 30, "a", 0);
  Add(2, 30, "a", 1);
  Add(3, 30, "a", 1);
  Step();
  std::vector<SequenceId> order;
  for (int i = 0; i < 100 && order.empty(); ++i) {
    order = Step().preempted;
  }
  EXPECT_EQ(order, std::vector<SequenceId>{1});
}

TEST_F(SchedulerTest, AWindowKeepsALongSequenceWithinFewPages) {
  Make(1, 32, 5, 1024, 64);
  Add(1, 1000);
  uint32_t rows = 0;
  for (int i = 0; i < 40 && rows < 1000; ++i) {
    const StepPlan& plan = Step();
    ASSERT_GT(plan.rows, 0u);
    rows += plan.rows;
  }
  EXPECT_EQ(rows, 1000u);
}

TEST_F(SchedulerTest, AnUncommittedPlanIsMadeAgain) {
  Make(2, 16, 64);
  Add(1, 40);
  const RowMap first = Rows(scheduler_->Plan());
  const RowMap second = Rows(scheduler_->Plan());
  EXPECT_EQ(first, second);
  EXPECT_EQ(scheduler_->Plan().sequences[0].first_position, 0u);
}

TEST_F(SchedulerTest, RemovingAllLeavesNoPages) {
  Make(4, 64, 64);
  for (SequenceId id = 1; id <= 8; ++id) {
    Add(id, 20, id % 2 == 0 ? "a" : "b");
  }
  Step();
  for (SequenceId id = 1; id <= 9; ++id) {
    scheduler_->Remove(id);
  }
  EXPECT_EQ(pages_->used(), 0u);
  EXPECT_EQ(scheduler_->running(), 0u);
  EXPECT_EQ(scheduler_->waiting(), 0u);
}

TEST_F(SchedulerTest, HigherPriorityTakesTheSlotOfTheLowestAndYoungest) {
  Make(2, 64, 64);
  Add(1, 3, "a", 1);
  Add(2, 3, "a", 0);
  Step();
  Add(3, 5, "b", 1);
  const StepPlan& plan = Step();
  EXPECT_EQ(plan.preempted, std::vector<SequenceId>{2});
  EXPECT_EQ(Rows(plan), (RowMap{{1, 1}, {3, 5}}));
  EXPECT_TRUE(Step().preempted.empty());
  scheduler_->Remove(3);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 1}, {2, 4}})) << "computed again with what it had generated";
}

TEST_F(SchedulerTest, EqualPriorityWaits) {
  Make(1, 64, 64);
  Add(1, 3, "a", 1);
  Step();
  Add(2, 3, "b", 1);
  EXPECT_TRUE(Step().preempted.empty());
}

TEST_F(SchedulerTest, NobodyIsPreemptedWhereThatIsNotEnough) {
  Make(3, 256, 8);  // 256 positions
  Add(1, 150, "a", 5);
  Add(2, 30, "a", 0);
  Step();
  Add(3, 120, "b", 5);  // does not fit beside the first
  EXPECT_TRUE(Step().preempted.empty());
  scheduler_->Remove(1);
  EXPECT_EQ(Step().admitted, std::vector<SequenceId>{3});
}

TEST_F(SchedulerTest, HigherPriorityTakesThePagesItNeeds) {
  Make(3, 256, 7);
  Add(1, 60, "a", 0);
  Add(2, 60, "a", 0);
  Step();
  Add(3, 100, "b", 1);  // four pages, and three are free
  const StepPlan& plan = Step();
  EXPECT_EQ(plan.preempted, std::vector<SequenceId>{2});
  EXPECT_EQ(Rows(plan), (RowMap{{1, 1}, {3, 100}}));
}

TEST_F(SchedulerTest, OverdueNamesWhatHasNotStartedInTime) {
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

// Gives every sequence the same computed beginning, which the first of them computed.
class SamePrefix final : public PrefixSource {
 public:
  SamePrefix(KvPages* pages, uint32_t positions) : pages_(pages), positions_(positions) {}
  uint32_t SharedPages(SequenceId) override { return static_cast<uint32_t>(shared_.size()); }
  Start Begin(SequenceId, uint32_t slot) override {
    pages_->Adopt(slot, shared_);
    return shared_.empty() ? Start{0, positions_} : Start{positions_, 0};
  }
  void Leave(SequenceId, uint32_t slot, uint32_t computed) override {
    if (shared_.empty() && computed >= positions_) {
      Take(slot);
    }
  }
  void Take(uint32_t slot) {
    const absl::Span<const uint32_t> table = pages_->table(slot).first(positions_ / kPageTokens);
    shared_.assign(table.begin(), table.end());
    for (const uint32_t page : shared_) {
      pages_->Hold(page);
    }
  }

 private:
  KvPages* const pages_;
  const uint32_t positions_;
  std::vector<uint32_t> shared_;
};

TEST_F(SchedulerTest, OnlyWhatIsNotComputedIsPlanned) {
  Make(2, 256, 64);
  SamePrefix prefixes(pages_.get(), 64);
  scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{2, 256}, pages_.get(), &prefixes);
  Add(1, 100);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 64}})) << "a step ends where it shall stop";
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 36}}));
  scheduler_->Remove(1);
  EXPECT_EQ(pages_->used(), 2u);
  Add(2, 100);
  const StepPlan& plan = Step();
  EXPECT_EQ(Rows(plan), (RowMap{{2, 36}}));
  EXPECT_EQ(plan.sequences[0].first_position, 64u);
  Add(3, 65);
  const StepPlan& last_row = Step();
  EXPECT_EQ(Rows(last_row), (RowMap{{2, 1}, {3, 1}}));
  EXPECT_EQ(pages_->used(), 2u + 2u + 1u);
}

TEST_F(SchedulerTest, SharedPagesCountOnceForWhoStarts) {
  Make(4, 256, 8);
  SamePrefix prefixes(pages_.get(), 128);
  scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{4, 256}, pages_.get(), &prefixes);
  Add(1, 140);
  Step();
  Step();
  scheduler_->Remove(1);  // its first four pages stay held
  for (SequenceId id = 2; id <= 5; ++id) {
    Add(id, 150);
  }
  EXPECT_EQ(Step().admitted.size(), 4u) << "one page of its own each";
  EXPECT_EQ(pages_->used(), 8u);
  uint32_t steps = 0;
  while (Step().preempted.empty() && ++steps < 100) {
  }
  EXPECT_LT(steps, 100u) << "the next page of each is one too many";
}

// Whatever comes, every request ends, each row is planned once and in order, and bounds hold.
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

TEST_F(SchedulerTest, ARestartedSequenceKeepsItsPlaceAndIsComputedFromTheStart) {
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
}  // namespace sluice
