#include "weightd/store/arena.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace sluice::weightd {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

class ArenaTest : public ::testing::Test {
 protected:
  void Make(uint64_t budget) {
    Arena::Options options;
    options.budget = budget;
    arena_ = std::make_unique<Arena>(
        options, Arena::Listener{[this](uint32_t id, const std::shared_ptr<const SharedMemory>&) {
                                   added_.push_back(id);
                                 },
                                 [this](uint32_t id) { retired_.push_back(id); }});
  }
  // Allocates slots until there are none.
  std::vector<Slot> TakeAll(uint64_t bytes) {
    std::vector<Slot> slots;
    while (auto slot = arena_->Allocate(bytes, 7)) {
      slots.push_back(*slot);
    }
    return slots;
  }

  std::unique_ptr<Arena> arena_;
  std::vector<uint32_t> added_;
  std::vector<uint32_t> retired_;
};

TEST_F(ArenaTest, ASmallBudgetIsUsedButForLessThanOneSlot) {
  for (uint64_t slot : {112 * kKiB, 336 * kKiB, 1700 * kKiB}) {
    Make(6 * kMiB);
    arena_->Declare(slot, 1000);
    EXPECT_EQ(TakeAll(slot).size(), 6 * kMiB / slot);
    EXPECT_LE(arena_->total_bytes(), 6 * kMiB);
    EXPECT_LT(arena_->unspent_bytes(), slot);
  }
}

TEST_F(ArenaTest, SixMiBHoldOneDenseExtentAndExperts) {
  Make(6 * kMiB);
  arena_->Declare(1740 * kKiB, 1);
  arena_->Declare(336 * kKiB, 64);
  ASSERT_TRUE(arena_->Allocate(1740 * kKiB, 0));
  EXPECT_EQ(arena_->total_bytes(), 1740 * kKiB) << "one extent of its class: one slot";
  EXPECT_EQ(TakeAll(336 * kKiB).size(), (6 * kMiB - 1740 * kKiB) / (336 * kKiB));
}

TEST_F(ArenaTest, SegmentsAreNoLargerThanTheirClassNeeds) {
  Make(512 * kMiB);
  arena_->Declare(64 * kKiB, 10);
  ASSERT_EQ(added_.size(), 0u);
  ASSERT_TRUE(arena_->Allocate(64 * kKiB, 0));
  EXPECT_EQ(arena_->total_bytes(), 640 * kKiB);
}

TEST_F(ArenaTest, SlotsOfASegmentAreDisjoint) {
  Make(4 * kMiB);
  arena_->Declare(64 * kKiB, 64);
  std::map<std::byte*, Slot> by_address;
  for (const Slot& slot : TakeAll(64 * kKiB)) {
    slot.data[0] = std::byte{1};
    slot.data[64 * kKiB - 1] = std::byte{2};
    EXPECT_EQ(arena_->memory(slot.segment)->map.data() + slot.offset, slot.data);
    by_address[slot.data] = slot;
  }
  EXPECT_EQ(by_address.size(), 64u);
}

TEST_F(ArenaTest, EmptySegmentServesAnotherClassThatFits) {
  Make(4 * kMiB);
  arena_->Declare(64 * kKiB, 64);
  arena_->Declare(32 * kKiB, 128);
  const std::vector<Slot> slots = TakeAll(64 * kKiB);
  ASSERT_EQ(slots.size(), 64u);
  EXPECT_FALSE(arena_->Allocate(32 * kKiB, 1));
  for (const Slot& slot : slots) {
    if (slot.segment == slots[0].segment) {
      arena_->Free(slot.segment, slot.offset);
    }
  }
  const size_t segments = added_.size();
  auto reused = arena_->Allocate(32 * kKiB, 1);
  ASSERT_TRUE(reused);
  EXPECT_EQ(reused->segment, slots[0].segment);
  EXPECT_EQ(added_.size(), segments) << "no new segment, no message";
}

TEST_F(ArenaTest, RetiredMemoryCountsUntilItIsDropped) {
  Make(1 * kMiB);
  arena_->Declare(512 * kKiB, 2);
  arena_->Declare(300 * kKiB, 8);
  const std::vector<Slot> slots = TakeAll(512 * kKiB);
  ASSERT_EQ(slots.size(), 2u);
  arena_->Free(slots[0].segment, slots[0].offset);
  EXPECT_FALSE(arena_->Allocate(300 * kKiB, 1)) << "212 of 512 KiB would be lost";
  EXPECT_FALSE(arena_->AllowWaste(512 * kKiB + 1));
  EXPECT_TRUE(arena_->RetirePooled());
  EXPECT_EQ(retired_, std::vector<uint32_t>{slots[0].segment});
  EXPECT_EQ(arena_->retired_bytes(), 512 * kKiB);
  EXPECT_EQ(arena_->total_bytes(), 1 * kMiB);
  EXPECT_EQ(arena_->Mapped().size(), 1u);
  EXPECT_FALSE(arena_->Allocate(300 * kKiB, 1));
  arena_->Drop(slots[1].segment);  // not retired: stays
  arena_->Drop(slots[0].segment);
  arena_->Drop(slots[0].segment);
  EXPECT_EQ(arena_->total_bytes(), 512 * kKiB);
  EXPECT_TRUE(arena_->Allocate(300 * kKiB, 1));
  EXPECT_FALSE(arena_->RetirePooled());
}

TEST_F(ArenaTest, PooledSegmentOfJustTheSizeMayServeAClass) {
  Make(1 * kMiB);
  arena_->Declare(512 * kKiB, 2);
  const std::vector<Slot> slots = TakeAll(512 * kKiB);
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_FALSE(arena_->AllowWaste(512 * kKiB)) << "none is empty";
  arena_->Free(slots[0].segment, slots[0].offset);
  EXPECT_TRUE(arena_->AllowWaste(512 * kKiB));
  EXPECT_EQ(arena_->Allocate(512 * kKiB, 1)->segment, slots[0].segment);
}

TEST_F(ArenaTest, RandomTrafficOfFourClassesKeepsTheBooks) {
  constexpr uint64_t kSlots[] = {4 * kKiB, 100 * kKiB, 336 * kKiB, 1700 * kKiB};
  Make(16 * kMiB);
  for (uint64_t slot : kSlots) {
    arena_->Declare(slot, 200);
  }
  std::mt19937_64 random(3);
  std::vector<std::pair<Slot, uint64_t>> live;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t bytes = kSlots[random() % 4];
    auto slot = random() % 2 == 0 ? arena_->Allocate(bytes, 1) : std::nullopt;
    if (slot) {
      for (const auto& [other, other_bytes] : live) {
        ASSERT_TRUE(other.segment != slot->segment || other.offset + other_bytes <= slot->offset ||
                    slot->offset + bytes <= other.offset);
      }
      live.emplace_back(*slot, bytes);
    } else if (!live.empty()) {
      const size_t index = random() % live.size();
      arena_->Free(live[index].first.segment, live[index].first.offset);
      live.erase(live.begin() + static_cast<ptrdiff_t>(index));
    }
    if (i % 100 == 0 && arena_->RetirePooled()) {
      for (uint32_t id : std::exchange(retired_, {})) {
        arena_->Drop(id);
      }
    }
    ASSERT_LE(arena_->total_bytes(), 16 * kMiB);
    ASSERT_EQ(arena_->retired_bytes(), 0u);
  }
  for (const auto& [slot, bytes] : live) {
    arena_->Free(slot.segment, slot.offset);
  }
  EXPECT_EQ(arena_->active_count(), 0u);
  arena_->RetirePooled();
  for (uint32_t id : retired_) {
    arena_->Drop(id);
  }
  EXPECT_EQ(arena_->total_bytes(), 0u);
}

}  // namespace
}  // namespace sluice::weightd
