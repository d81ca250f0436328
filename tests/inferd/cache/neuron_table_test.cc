// Positions of a slot's neurons, the missing neurons that travel, and the budget of link time.
#include "inferd/cache/neuron_table.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "tests/inferd/cache/neuron_lists.h"

namespace sluice::inferd {
namespace {

class NeuronTableTest : public testing::Test {
 protected:
  NeuronTableTest() : table_(2, 100) {
    table_.Reset(0, 100);
    table_.Reset(1, 100);
  }
  int32_t Position(uint32_t slot, uint32_t neuron) const { return table_.Positions(slot)[neuron]; }

  NeuronTable table_;
};

TEST_F(NeuronTableTest, NeuronsLieInRequestOrder) {
  EXPECT_EQ(Position(0, 3), NeuronTable::kAbsent);
  EXPECT_EQ(table_.Reserve(0, Neurons{3, 70, 99}), 0u);
  EXPECT_EQ(table_.Reserve(0, Neurons{0, 71}), 3u);
  EXPECT_EQ(Position(0, 70), NeuronTable::kAbsent) << "it has not come";
  table_.Land(0, 3, 2);  // completes out of order
  EXPECT_EQ(Position(0, 71), 4);
  EXPECT_EQ(Position(0, 70), NeuronTable::kAbsent);
  table_.Land(0, 0, 3);
  EXPECT_EQ(Position(0, 3), 0);
  EXPECT_EQ(Position(0, 70), 1);
  EXPECT_EQ(Position(0, 99), 2);
  EXPECT_EQ(Position(0, 0), 3);
  EXPECT_EQ(Listed(table_.present(0)), (Neurons{0, 3, 70, 71, 99}));
  EXPECT_EQ(table_.present_count(0), 5u);
  EXPECT_FALSE(table_.InOrder(0));
  EXPECT_EQ(Position(1, 3), NeuronTable::kAbsent) << "another slot's";
}

TEST_F(NeuronTableTest, DroppedNeuronMayBeRequestedAgain) {
  table_.Reserve(0, Neurons{1, 2, 3});
  table_.Reserve(0, Neurons{4, 5});
  table_.Drop(0, 3, 2);  // the last records: reused
  EXPECT_EQ(table_.Reserve(0, Neurons{9}), 3u);
  table_.Drop(0, 0, 3);  // not the last: lost until the slot is empty
  EXPECT_EQ(Listed(table_.asked(0)), (Neurons{9}));
  Neurons most(97);
  std::iota(most.begin(), most.end(), 10);
  most.resize(90);
  EXPECT_EQ(table_.Reserve(0, most), 4u);
  EXPECT_EQ(table_.Reserve(0, Neurons{1, 2, 3, 4, 5, 6, 7}), NeuronTable::kNoRecord);
  table_.Drop(0, 3, 1);
  table_.Drop(0, 4, 90);
  EXPECT_EQ(table_.asked_count(0), 0u);
  EXPECT_EQ(table_.Reserve(0, Neurons{1}), 0u) << "nothing is in the slot any more";
}

TEST_F(NeuronTableTest, AllInOneCopyLieAtTheirOwnNumbers) {
  Neurons all(100);
  std::iota(all.begin(), all.end(), 0);
  table_.Reserve(0, all);
  EXPECT_FALSE(table_.IsFull(0));
  table_.Land(0, 0, 100);
  EXPECT_TRUE(table_.IsFull(0));
  EXPECT_TRUE(table_.InOrder(0));
  EXPECT_EQ(Position(0, 42), 42);
}

TEST_F(NeuronTableTest, ASlotThatIsGivenUpForgetsItsNeurons) {
  table_.Reserve(0, Neurons{1, 2, 64});
  table_.Land(0, 0, 3);
  table_.Reset(0, 80);
  EXPECT_EQ(Position(0, 1), NeuronTable::kAbsent);
  EXPECT_EQ(Position(0, 64), NeuronTable::kAbsent);
  EXPECT_EQ(table_.present_count(0), 0u);
  EXPECT_TRUE(Listed(table_.asked(0)).empty());
  EXPECT_EQ(table_.Reserve(0, Neurons{64}), 0u);
  EXPECT_EQ(table_.width(0), 80u);
}

// CORM's 75 %: 76 of 100 missing are too many, 75 are not.
TEST(NeuronChoiceTest, AboveTheShareOneCopyIsUsed) {
  EXPECT_FALSE(CopiesAll(75, 100, 0.75));
  EXPECT_TRUE(CopiesAll(76, 100, 0.75));
  EXPECT_TRUE(CopiesAll(1, 100, 0));
  EXPECT_FALSE(CopiesAll(100, 100, 1));
  EXPECT_FALSE(CopiesAll(0, 100, 0));
}

// 10 us at 1 us a neuron of 100 bytes and 2 us for an expert's first: of expert 0 (sizes 9, 7, 3) and expert
// 1 (8, 1, 0.5, 0.4, 0.3) the order is 9, 8, 7, 3, 1, 0.5, ... at 3 + 3 + 1 + 1 + 1 + 1.
TEST(NeuronChoiceTest, LargestWithinTheLinkTimeAreChosen) {
  std::vector<NeuronWant> wants = {{0.3f, 1, 50, 100}, {7, 0, 20, 100},    {1, 1, 20, 100}, {9, 0, 10, 100},
                                   {0.5f, 1, 30, 100}, {0.4f, 1, 40, 100}, {3, 0, 30, 100}, {8, 1, 10, 100}};
  std::vector<uint8_t> begun = {0, 0};
  NeuronBudget budget{10e-6 + 1e-12, 1e-8, 2e-6};
  const size_t chosen = ChooseLargest(absl::MakeSpan(wants), absl::MakeSpan(begun), &budget);
  ASSERT_EQ(chosen, 6u);
  std::vector<std::pair<uint32_t, uint32_t>> places;
  for (size_t i = 0; i < chosen; ++i) {
    places.emplace_back(wants[i].demand, wants[i].neuron);
  }
  EXPECT_EQ(places, (std::vector<std::pair<uint32_t, uint32_t>>{
                        {0, 10}, {1, 10}, {0, 20}, {0, 30}, {1, 20}, {1, 30}}));
  EXPECT_NEAR(budget.seconds, 0, 1e-9);
  EXPECT_EQ(ChooseLargest(absl::MakeSpan(wants).subspan(chosen), absl::MakeSpan(begun), &budget), 0u);
}

TEST(NeuronChoiceTest, EqualSizesAreChosenByExpertAndNumber) {
  std::vector<NeuronWant> wants = {{1, 1, 5, 10}, {1, 0, 9, 10}, {1, 0, 3, 10}};
  std::vector<uint8_t> begun = {0, 0};
  NeuronBudget budget{2.5, 0.1, 0};
  ASSERT_EQ(ChooseLargest(absl::MakeSpan(wants), absl::MakeSpan(begun), &budget), 2u);
  EXPECT_EQ(wants[0].neuron, 3u);
  EXPECT_EQ(wants[1].neuron, 9u);
}

}  // namespace
}  // namespace sluice::inferd
