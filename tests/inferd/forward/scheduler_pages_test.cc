// The scheduler with scarce pages or slots: waiting, preemption, sharing.
#include <vector>

#include "gtest/gtest.h"
#include "tests/inferd/forward/scheduler_testing.h"

namespace sluice::inferd {
namespace {

TEST_F(SchedulerTest, WithoutPagesAPromptWaits) {
  Make(4, 256, 8);  // 256 positions
  Add(1, 190);
  Add(2, 100);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 190}}));
  EXPECT_EQ(scheduler_->waiting(), 1u);
  scheduler_->Remove(1);
  EXPECT_EQ(Rows(Step()), (RowMap{{2, 100}}));
}

TEST_F(SchedulerTest, YoungestIsPreemptedAndRecomputed) {
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

TEST_F(SchedulerTest, HigherPriorityPreemptsLowestAndYoungest) {
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

TEST_F(SchedulerTest, NoPreemptionIfThatIsNotEnough) {
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

// Gives every sequence the same cached prefix, computed by the first one.
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

TEST_F(SchedulerTest, OnlyUncachedRowsArePlanned) {
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

TEST_F(SchedulerTest, SharedPagesCountOnceAtTheStart) {
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

// As many drafts as it is asked for, at most eight.
class ManyDrafts final : public DraftSource {
 public:
  void BeginStep(absl::Span<const ScheduledRows> sequences) override {
    sequences_ = static_cast<uint32_t>(sequences.size());
  }
  absl::Span<const int32_t> DraftsFor(SequenceId, uint32_t most) override {
    return absl::MakeConstSpan(tokens_).first(most);
  }
  uint32_t sequences() const { return sequences_; }

 private:
  const std::vector<int32_t> tokens_{10, 11, 12, 13, 14, 15, 16, 17};
  uint32_t sequences_ = 0;
};

class SchedulerDraftsTest : public SchedulerTest {
 protected:
  void MakeDrafting(uint32_t parallel, uint32_t chunk, uint32_t pages) {
    Make(parallel, chunk, pages);
    scheduler_ =
        std::make_unique<Scheduler>(SchedulerOptions{parallel, chunk}, pages_.get(), nullptr, &drafts_);
  }
  // Commits the last plan; each sequence accepts `accepted` drafts.
  void Accept(const StepPlan& plan, uint32_t accepted) {
    for (const ScheduledRows& rows : plan.sequences) {
      scheduler_->Commit(rows.id, rows.known() - rows.first_position + accepted);
      scheduler_->Append(rows.id, 1 + accepted);
    }
  }
  ManyDrafts drafts_;
};

TEST_F(SchedulerDraftsTest, DecodingSequencesGetRowsForDrafts) {
  MakeDrafting(2, 64, 16);
  Add(1, 10);
  Add(2, 5);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 10}, {2, 5}})) << "prompts are not drafted";
  for (int again = 0; again < 2; ++again) {  // a plan that was not committed
    const StepPlan& plan = scheduler_->Plan();
    EXPECT_EQ(Rows(plan), (RowMap{{1, 9}, {2, 9}}));
    EXPECT_EQ(plan.rows, 18u);
    EXPECT_EQ(plan.draft_rows, 16u);
    EXPECT_EQ(plan.prefill_rows, 0u);
    EXPECT_TRUE(plan.sequences[0].reaches_end);
    EXPECT_EQ(plan.sequences[0].known(), 11u);
    EXPECT_EQ(drafts_.sequences(), 2u);
  }
  Accept(scheduler_->Plan(), 3);
  const StepPlan& next = scheduler_->Plan();
  EXPECT_EQ(next.sequences[0].first_position, 14u);
  EXPECT_EQ(next.sequences[1].first_position, 9u);
}

TEST_F(SchedulerDraftsTest, StepWithAPromptHasNoDrafts) {
  MakeDrafting(2, 4, 16);
  Add(1, 4);
  Step();
  Add(2, 9);
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 1}, {2, 4}}));
  EXPECT_EQ(Rows(Step()), (RowMap{{1, 1}, {2, 4}}));
  EXPECT_EQ(Rows(scheduler_->Plan()), (RowMap{{1, 5}, {2, 1}})) << "at most the rows of a prompt";
}

TEST_F(SchedulerDraftsTest, RedoneRowsComeWithTheNextToken) {
  MakeDrafting(2, 4, 16);
  Add(1, 4);
  Step();
  EXPECT_EQ(Rows(scheduler_->Plan()), (RowMap{{1, 5}}));
  scheduler_->Append(1, 3);  // two drafts of four were right
  scheduler_->Redo(1);
  const StepPlan& plan = scheduler_->Plan();
  EXPECT_EQ(Rows(plan), (RowMap{{1, 4}}));
  EXPECT_EQ(plan.sequences[0].first_position, 4u);
  EXPECT_EQ(plan.sequences[0].redone, 3u);
  EXPECT_EQ(plan.draft_rows, 0u) << "they are committed first";
  EXPECT_EQ(plan.prefill_rows, 0u);
  Accept(plan, 0);
  EXPECT_EQ(scheduler_->Plan().sequences[0].redone, 0u);
  EXPECT_EQ(scheduler_->Plan().sequences[0].first_position, 8u);
  scheduler_->SetPrefillRows(2);
  scheduler_->Append(1, 3);
  scheduler_->Redo(1);
  EXPECT_EQ(scheduler_->Plan().prefill_rows, 2u) << "more than a step's rows are planned like a prompt";
}

TEST_F(SchedulerDraftsTest, DraftsUseFreePagesOnly) {
  MakeDrafting(2, 64, 2);
  Add(1, 28);
  Add(2, 30);
  Step();
  const StepPlan& plan = scheduler_->Plan();
  EXPECT_EQ(Rows(plan), (RowMap{{1, 4}, {2, 2}})) << "up to the end of the held page";
  EXPECT_TRUE(plan.preempted.empty());
  EXPECT_EQ(pages_->used(), 2u);
}

}  // namespace
}  // namespace sluice::inferd
