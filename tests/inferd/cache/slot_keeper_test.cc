#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "inferd/cache/slot_table.h"

namespace sluice::inferd {
namespace {

using For = SlotTable::For;

// One layer of four experts of one size, three slots, with a quota of `quota`.
SlabPlan Plan(uint32_t quota) {
  SlabPlan plan;
  plan.slots = 3;
  plan.bytes = 3 * 128;
  plan.classes = {{.bytes = 128, .slots = 3, .passing = 3 - quota, .experts = 4, .quota = {quota}}};
  plan.class_of.assign(4, 0);
  plan.first_expert = {0};
  return plan;
}

class SlotKeeperTest : public testing::Test {
 protected:
  void Put(uint32_t expert) {
    const uint32_t slot = table_.TakeSlot(0, expert, For::kDemand, keeper_);
    ASSERT_NE(slot, SlotTable::kNoSlot);
    table_.SetReady(slot);
  }
  // Runs a layer that computes these experts.
  void Run(const std::vector<uint32_t>& chosen, bool streams = false) {
    keeper_.BeginLayer(0, chosen, {}, streams);
    for (const uint32_t expert : chosen) {
      if (table_.Find(0, expert) == SlotTable::kNoSlot) {
        Put(expert);
      }
    }
    keeper_.EndLayer(0);
  }

  SlotTable table_{Plan(/*quota=*/2)};
  SlotKeeper keeper_{{}, {4}, &table_};
};

TEST_F(SlotKeeperTest, LeastRecentlyUsedIsEvicted) {
  Run({0, 1});
  Run({0});
  Run({2});
  EXPECT_TRUE(table_.IsReady(0, 0));
  EXPECT_FALSE(table_.IsReady(0, 1));
  EXPECT_TRUE(table_.IsReady(0, 2));
}

TEST_F(SlotKeeperTest, ALayerKeepsNoMoreThanItsQuota) {
  Run({0, 1, 2});
  EXPECT_EQ(table_.ready(0), 2u);
}

TEST_F(SlotKeeperTest, StreamDoesNotUpdateThePolicy) {
  Run({0, 1});
  Run({0, 1}, /*streams=*/true);
  Run({1, 0});
  Run({0, 1}, /*streams=*/true);  // if it counted, 1 would be the most recently used
  Run({2});
  EXPECT_TRUE(table_.IsReady(0, 0));
  EXPECT_FALSE(table_.IsReady(0, 1));
}

TEST_F(SlotKeeperTest, NoVictimIfNoneIsEvictable) {
  Run({0, 1});
  EXPECT_NE(table_.TakeSlot(0, 2, For::kPrefetch, NoVictim), SlotTable::kNoSlot) << "a free slot";
  EXPECT_EQ(table_.TakeSlot(0, 3, For::kPrefetch, NoVictim), SlotTable::kNoSlot);
  EXPECT_TRUE(table_.IsReady(0, 0) && table_.IsReady(0, 1));
}

}  // namespace
}  // namespace sluice::inferd
