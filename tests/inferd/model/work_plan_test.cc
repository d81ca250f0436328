#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "inferd/model/step_batch.h"

namespace sluice::inferd {
namespace {

StepBatch BatchOf(const std::vector<uint32_t>& rows_per_sequence) {
  StepBatch batch(64, 8);
  batch.Clear(1);
  for (const uint32_t rows : rows_per_sequence) {
    batch.Add(std::vector<int32_t>(rows, 1), SequenceInput{});
  }
  return batch;
}

TEST(WorkPlanTest, GroupsRowsByExpertAndKeepsResultSlots) {
  const StepBatch batch = BatchOf({3});
  const std::vector<int32_t> ids = {5, 2, 2, 0, 5, 0};
  const std::vector<float> weights = {.6f, .4f, .7f, .3f, .5f, .5f};
  WorkPlan plan(8, 2, 6);
  ASSERT_TRUE(plan.Build({3, 2, 2, ids.data(), weights.data()}, 6, batch).ok());
  ASSERT_EQ(plan.demands().size(), 3u);
  EXPECT_EQ(plan.demands()[0].expert, 0u);
  EXPECT_EQ(plan.demands()[1].expert, 2u);
  EXPECT_EQ(plan.demands()[2].expert, 5u);
  EXPECT_EQ(plan.rows(0), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(plan.slots(0), (std::vector<uint32_t>{3, 5}));
  EXPECT_EQ(plan.rows(1), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(plan.slots(1), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(plan.rows(2), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(plan.slots(2), (std::vector<uint32_t>{0, 4}));
}

TEST(WorkPlanTest, ZeroWeightRanksAreSkipped) {
  const StepBatch batch = BatchOf({2});
  const std::vector<int32_t> ids = {1, 0, 0, 1};
  const std::vector<float> weights = {1.0f, 0.0f, 0.5f, 0.5f};
  WorkPlan plan(8, 2, 2);
  ASSERT_TRUE(plan.Build({2, 2, 2, ids.data(), weights.data()}, 2, batch).ok());
  ASSERT_EQ(plan.demands().size(), 2u);
  EXPECT_EQ(plan.rows(0), (std::vector<uint32_t>{1}));
  EXPECT_EQ(plan.rows(1), (std::vector<uint32_t>{0, 1}));
}

TEST(WorkPlanTest, ZeroWeightRanksStayIfResultsAreRead) {
  const StepBatch batch = BatchOf({2});
  const std::vector<int32_t> ids = {1, 0};
  const std::vector<float> weights = {0.0f, 0.5f};
  WorkPlan plan(8, 2, 2);
  ASSERT_TRUE(plan.Build({2, 1, 1, ids.data(), weights.data()}, 2, batch, /*keep_zeros=*/true).ok());
  ASSERT_EQ(plan.demands().size(), 2u);
  EXPECT_EQ(plan.rows(1), (std::vector<uint32_t>{0}));
}

TEST(WorkPlanTest, TheCommonExpertHasEveryRowAndTheLastRank) {
  const StepBatch batch = BatchOf({3});
  const std::vector<int32_t> ids = {1, 0, 2, 0, 1, 2, 1, 0, 2};  // 2 is the common expert's id
  const std::vector<float> weights(9, 0.5f);
  WorkPlan plan(8, 3, 2);
  ASSERT_TRUE(plan.Build({3, 2, 3, ids.data(), weights.data()}, 2, batch).ok());
  ASSERT_EQ(plan.demands().size(), 2u);
  EXPECT_EQ(plan.slots(0), (std::vector<uint32_t>{1, 3, 7}));
  EXPECT_EQ(plan.slots(1), (std::vector<uint32_t>{0, 4, 6}));
  EXPECT_EQ(plan.common_rows(), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(plan.common_slots(), (std::vector<uint32_t>{2, 5, 8}));
}

TEST(WorkPlanTest, ADenseLayerDemandsNothingAndHasOneRank) {
  WorkPlan plan(8, 3, 2);
  plan.BuildDense(3);
  EXPECT_TRUE(plan.demands().empty());
  EXPECT_EQ(plan.common_rows(), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(plan.common_slots(), (std::vector<uint32_t>{0, 1, 2}));
}

TEST(WorkPlanTest, LostRowsAreSkippedEvenWithInvalidIds) {
  StepBatch batch = BatchOf({2, 1});
  batch.Fail(0, 17);
  const std::vector<int32_t> ids = {-1, 1000000, 3, -7, 1, 2};
  const std::vector<float> weights(6, 0.5f);
  WorkPlan plan(8, 2, 4);
  ASSERT_TRUE(plan.Build({3, 2, 2, ids.data(), weights.data()}, 4, batch).ok());
  ASSERT_EQ(plan.demands().size(), 2u);
  EXPECT_EQ(plan.rows(0), (std::vector<uint32_t>{2}));
  EXPECT_EQ(plan.slots(0), (std::vector<uint32_t>{4}));
}

TEST(WorkPlanTest, OutOfRangeIdIsAnError) {
  const StepBatch batch = BatchOf({1});
  const std::vector<float> weights = {0.5f, 0.5f};
  WorkPlan plan(8, 2, 4);
  for (const int32_t bad : {-1, 4, 1 << 30}) {
    const std::vector<int32_t> ids = {1, bad};
    EXPECT_TRUE(absl::IsInternal(plan.Build({1, 2, 2, ids.data(), weights.data()}, 4, batch))) << bad;
  }
}

TEST(WorkPlanTest, EveryPairAppearsOnce) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const uint32_t tokens = 1 + random() % 40;
    const uint32_t k = 1 + random() % 4;
    const StepBatch batch = BatchOf({tokens});
    std::vector<int32_t> ids(tokens * k);
    const std::vector<float> weights(tokens * k, 1.0f);
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random() % 9);
    }
    WorkPlan plan(40, 4, 9);
    ASSERT_TRUE(plan.Build({tokens, k, k, ids.data(), weights.data()}, 9, batch).ok());
    std::map<uint32_t, uint32_t> expert_of_slot;
    for (uint32_t i = 0; i < plan.demands().size(); ++i) {
      ASSERT_EQ(plan.rows(i).size(), plan.demands()[i].tokens);
      for (uint32_t j = 0; j < plan.rows(i).size(); ++j) {
        EXPECT_EQ(plan.slots(i)[j] / k, plan.rows(i)[j]);
        EXPECT_TRUE(expert_of_slot.emplace(plan.slots(i)[j], plan.demands()[i].expert).second);
      }
    }
    ASSERT_EQ(expert_of_slot.size(), tokens * k);
    for (const auto& [slot, expert] : expert_of_slot) {
      EXPECT_EQ(static_cast<int32_t>(expert), ids[slot]);
    }
  }
}

}  // namespace
}  // namespace sluice::inferd
