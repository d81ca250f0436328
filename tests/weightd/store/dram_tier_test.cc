// ExtentStore, arena and eviction together, without I/O: slots, evictions, and the client's view of them.
#include "weightd/store/dram_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "common/protocol/lease.h"

namespace sluice::weightd {
namespace {

constexpr uint64_t kKiB = 1024;

class DramTierTest : public ::testing::Test {
 protected:
  void Make(uint64_t budget) {
    Arena::Options options;
    options.budget = budget;
    tier_ = std::make_unique<DramTier>(
        options, Arena::Listener{[](uint32_t, const std::shared_ptr<const SharedMemory>&) {},
                                 [this](uint32_t id) {
                                   retired_.push_back(id);
                                   if (drop_at_once_) tier_->DropSegment(id);
                                 }});
  }
  // A pack of equal extents, and one session's pins of it.
  uint32_t AddPack(uint32_t extents, uint64_t length) {
    tables_.emplace_back(extents);
    pins_.emplace_back(extents);
    timelines_.push_back(std::make_unique<StepTimeline>());
    const uint32_t pack = tier_->AddPack(std::vector<uint64_t>(extents, length), tables_.back().data());
    tier_->AddPins(pack, /*session=*/1, pins_.back().data(), timelines_.back().get());
    return pack;
  }
  DramTier::AllocResult Fill(uint32_t pack, uint32_t extent) {
    tier_->Tick();
    for (size_t i = 0; i < timelines_.size(); ++i) {
      timelines_[i]->Note(stamp_.load(), tier_->clock());
    }
    std::byte* dest = nullptr;
    const ExtentId extent_id = tier_->store().FirstExtentId(pack) + extent;
    const DramTier::AllocResult room = tier_->BeginFill(extent_id, &dest);
    if (room == DramTier::AllocResult::kAllocated) {
      dest[0] = std::byte{static_cast<unsigned char>(extent)};
      tier_->Publish(extent_id);
    }
    return room;
  }
  bool Hold(uint32_t pack, uint32_t extent) {
    uint64_t place;
    uint64_t generation;
    return TryLease(tables_[pack][extent], pins_[pack][extent], &place, &generation);
  }
  void Release(uint32_t pack, uint32_t extent) {
    ReleaseLease(pins_[pack][extent], stamp_, StepStamp(++step_, 0));
  }
  // One hit: lease and release, without a message to weightd.
  bool Use(uint32_t pack, uint32_t extent) {
    if (!Hold(pack, extent)) {
      return false;
    }
    Release(pack, extent);
    return true;
  }

  std::deque<std::vector<ResidencyEntry>> tables_;
  std::deque<std::vector<PinEntry>> pins_;
  std::vector<std::unique_ptr<StepTimeline>> timelines_;
  std::atomic<uint64_t> stamp_{0};
  uint64_t step_ = 0;
  std::vector<uint32_t> retired_;
  bool drop_at_once_ = true;
  std::unique_ptr<DramTier> tier_;
};

TEST_F(DramTierTest, EvictsTheExtentWhoseLastLeaseIsOldest) {
  Make(4 * 64 * kKiB);
  AddPack(10, 64 * kKiB);
  for (uint32_t e = 0; e < 4; ++e) {
    ASSERT_EQ(Fill(0, e), DramTier::AllocResult::kAllocated);
    ASSERT_TRUE(Use(0, e));
  }
  ASSERT_TRUE(Use(0, 0));
  ASSERT_TRUE(Use(0, 1));
  ASSERT_EQ(Fill(0, 4), DramTier::AllocResult::kAllocated);
  EXPECT_FALSE(Use(0, 2));
  ASSERT_TRUE(Use(0, 0) && Use(0, 1) && Use(0, 3) && Use(0, 4));
  EXPECT_EQ(tier_->evictions(), 1u);
}

TEST_F(DramTierTest, CopiesByWeightdCountAsUses) {
  Make(4 * 64 * kKiB);
  AddPack(10, 64 * kKiB);
  for (uint32_t e = 0; e < 4; ++e) {
    ASSERT_EQ(Fill(0, e), DramTier::AllocResult::kAllocated);
  }
  tier_->Tick();
  tier_->NoteUse(0);
  EXPECT_EQ(tier_->store().Uses(0), 1u);
  ASSERT_EQ(Fill(0, 4), DramTier::AllocResult::kAllocated);
  EXPECT_TRUE(IsResident(tables_[0][0]));
  EXPECT_FALSE(IsResident(tables_[0][1]));
}

TEST_F(DramTierTest, HeldExtentsStayAndCanFillTheMemory) {
  Make(3 * 64 * kKiB);
  AddPack(10, 64 * kKiB);
  for (uint32_t e = 0; e < 3; ++e) {
    ASSERT_EQ(Fill(0, e), DramTier::AllocResult::kAllocated);
  }
  ASSERT_TRUE(Hold(0, 0));
  ASSERT_TRUE(Hold(0, 1));
  tier_->store().Pin(2);
  EXPECT_EQ(Fill(0, 3), DramTier::AllocResult::kNone);
  EXPECT_TRUE(Use(0, 2)) << "the mark was taken back";
  tier_->store().Unpin(2);
  ASSERT_EQ(Fill(0, 3), DramTier::AllocResult::kAllocated);
  EXPECT_FALSE(Hold(0, 2));
  Release(0, 0);
  Release(0, 1);
  ASSERT_EQ(Fill(0, 4), DramTier::AllocResult::kAllocated);
  EXPECT_FALSE(Hold(0, 3)) << "filled, never used, and older than the releases";
}

TEST_F(DramTierTest, AbandonedFillFreesItsSlot) {
  Make(64 * kKiB);
  AddPack(3, 64 * kKiB);
  std::byte* dest;
  ASSERT_EQ(tier_->BeginFill(0, &dest), DramTier::AllocResult::kAllocated);
  EXPECT_EQ(tier_->BeginFill(1, &dest), DramTier::AllocResult::kNone)
      << "a place being filled is nobody's to take";
  tier_->AbandonFill(0, /*bad=*/true);
  EXPECT_EQ(tier_->store().state(0), ExtentState::kBad);
  EXPECT_EQ(StateOf(tables_[0][0].state.load()), ExtentState::kBad);
  EXPECT_EQ(Fill(0, 1), DramTier::AllocResult::kAllocated);
}

TEST_F(DramTierTest, GenerationGrowsWithEveryFill) {
  Make(64 * kKiB);
  AddPack(2, 64 * kKiB);
  ASSERT_EQ(Fill(0, 0), DramTier::AllocResult::kAllocated);
  const uint64_t first = GenerationOf(tables_[0][0].state.load());
  ASSERT_EQ(Fill(0, 1), DramTier::AllocResult::kAllocated);
  ASSERT_EQ(Fill(0, 0), DramTier::AllocResult::kAllocated);
  EXPECT_GT(GenerationOf(tables_[0][0].state.load()), first);
}

TEST_F(DramTierTest, TwoPacksOfDifferentSizesTakeTheMemoryInTurns) {
  constexpr uint64_t kBudget = 6 * 1024 * kKiB;
  Make(kBudget);
  AddPack(64, 112 * kKiB);
  AddPack(8, 1700 * kKiB);
  for (int turn = 0; turn < 3; ++turn) {
    for (uint32_t e = 0; e < 64; ++e) {
      ASSERT_TRUE(Use(0, e) || Fill(0, e) == DramTier::AllocResult::kAllocated);
      Use(0, e);
    }
    EXPECT_GE(tier_->store().resident_bytes(), kBudget - 2 * 1700 * kKiB);
    for (int pass = 0; pass < 2; ++pass) {
      for (uint32_t e = 0; e < 8; ++e) {
        ASSERT_TRUE(Use(1, e) || Fill(1, e) == DramTier::AllocResult::kAllocated) << "turn " << turn;
        Use(1, e);
      }
    }
    uint64_t large = 0;
    for (uint32_t e = 0; e < 8; ++e) {
      large += IsResident(tables_[1][e]) ? 1 : 0;
    }
    EXPECT_EQ(large, kBudget / (1700 * kKiB)) << "the pack in use gets all that fits";
    EXPECT_LE(tier_->arena().total_bytes(), kBudget);
  }
}

TEST_F(DramTierTest, AlternatingPacksWasteFewPercent) {
  // The parts of qwen3-30b-a3b at q4 and of qwen2-57b-a14b at q4; each pack alone is larger than the memory.
  constexpr uint64_t kLengths[] = {896 * kKiB, 5200 * kKiB};
  constexpr uint32_t kCounts[] = {640, 110};
  constexpr uint64_t kBudget = 512 * 1024 * kKiB;
  constexpr uint64_t kSegment = kBudget / 32;
  Make(kBudget);
  for (int pack = 0; pack < 2; ++pack) {
    AddPack(kCounts[pack], kLengths[pack]);
  }
  double most = 0;
  for (int turn = 0; turn < 40; ++turn) {
    const uint32_t pack = turn % 2;
    for (int pass = 0; pass < 3; ++pass) {
      for (uint32_t e = 0; e < kCounts[pack]; ++e) {
        ASSERT_TRUE(Use(pack, e) || Fill(pack, e) == DramTier::AllocResult::kAllocated) << "turn " << turn;
        Use(pack, e);
        ASSERT_LE(tier_->arena().total_bytes(), kBudget);
      }
    }
    uint64_t resident = 0;
    uint64_t extents = 0;
    for (uint32_t p = 0; p < 2; ++p) {
      for (uint32_t e = 0; e < kCounts[p]; ++e) {
        const bool there = IsResident(tables_[p][e]);
        resident += there ? kLengths[p] : 0;
        extents += there ? 1 : 0;
      }
    }
    ASSERT_EQ(tier_->store().resident_bytes(), resident);
    ASSERT_EQ(tier_->store().resident_extents(), extents);
    ASSERT_EQ(tier_->arena().retired_bytes(), 0u);
    if (turn > 0) {
      most = std::max(most, 1 - static_cast<double>(resident) / kBudget);
      EXPECT_GE(resident, kBudget - kBudget / 20 - 2 * kSegment) << "turn " << turn;
    }
  }
  std::printf("40 turns of 896 KiB and 5200 KiB extents in 512 MiB: at most %.1f %% wasted, %llu evictions\n",
              100 * most, static_cast<unsigned long long>(tier_->evictions()));
}

TEST_F(DramTierTest, RetiredRoomComesWithTheLastAcknowledgement) {
  drop_at_once_ = false;
  Make(1024 * kKiB);
  AddPack(16, 100 * kKiB);
  AddPack(2, 700 * kKiB);
  for (uint32_t e = 0; e < 10; ++e) {
    ASSERT_EQ(Fill(0, e), DramTier::AllocResult::kAllocated);
  }
  ASSERT_EQ(Fill(1, 0), DramTier::AllocResult::kRetiring);
  const size_t retired = retired_.size();
  EXPECT_EQ(Fill(1, 0), DramTier::AllocResult::kRetiring);
  EXPECT_EQ(retired_.size(), retired) << "asking again evicts no more";
  EXPECT_LE(tier_->arena().total_bytes(), 1024 * kKiB);
  for (uint32_t id : retired_) {
    tier_->DropSegment(id);
  }
  EXPECT_EQ(Fill(1, 0), DramTier::AllocResult::kAllocated);
}

TEST_F(DramTierTest, AnEndedSessionLeavesItsUsesBehind) {
  Make(3 * 64 * kKiB);
  AddPack(10, 64 * kKiB);
  for (uint32_t e = 0; e < 3; ++e) {
    ASSERT_EQ(Fill(0, e), DramTier::AllocResult::kAllocated);
    ASSERT_TRUE(Use(0, e));
  }
  ASSERT_TRUE(Hold(0, 0));  // killed while it read
  ASSERT_TRUE(Use(0, 1));
  tier_->Tick();
  timelines_[0]->Note(stamp_.load(), tier_->clock());
  tier_->RemovePins(0, 1);
  ASSERT_EQ(Fill(0, 3), DramTier::AllocResult::kAllocated);
  EXPECT_TRUE(IsResident(tables_[0][0]));
  EXPECT_TRUE(IsResident(tables_[0][1]));
  EXPECT_FALSE(IsResident(tables_[0][2]));
  ASSERT_EQ(Fill(0, 4), DramTier::AllocResult::kAllocated);
  EXPECT_TRUE(IsResident(tables_[0][0])) << "its pin holds nothing now, but it was used last";
}

TEST_F(DramTierTest, ASmallerBudgetIsReachedByGivingUpTheColdest) {
  Make(8 * 64 * kKiB);
  AddPack(20, 64 * kKiB);
  for (uint32_t e = 0; e < 8; ++e) {
    ASSERT_EQ(Fill(0, e), DramTier::AllocResult::kAllocated);
    ASSERT_TRUE(Use(0, e));
  }
  ASSERT_EQ(tier_->arena().total_bytes(), 8 * 64 * kKiB);
  ASSERT_TRUE(Hold(0, 0)) << "the coldest, but held";
  tier_->SetBudget(3 * 64 * kKiB);
  tier_->Tick();
  EXPECT_FALSE(tier_->Shrink(2)) << "bounded work in a round";
  EXPECT_EQ(tier_->arena().total_bytes(), 6 * 64 * kKiB);
  EXPECT_TRUE(tier_->Shrink(100));
  EXPECT_EQ(tier_->arena().total_bytes(), 3 * 64 * kKiB);
  EXPECT_TRUE(IsResident(tables_[0][0])) << "held";
  EXPECT_TRUE(Use(0, 6) && Use(0, 7));
  EXPECT_FALSE(Use(0, 1) || Use(0, 5));
  Release(0, 0);
  ASSERT_EQ(Fill(0, 9), DramTier::AllocResult::kAllocated);
  EXPECT_EQ(tier_->arena().total_bytes(), 3 * 64 * kKiB) << "the new budget holds for what comes";
}

TEST_F(DramTierTest, HeldExtentsDelayAShrunkBudget) {
  Make(4 * 64 * kKiB);
  AddPack(8, 64 * kKiB);
  for (uint32_t e = 0; e < 4; ++e) {
    ASSERT_EQ(Fill(0, e), DramTier::AllocResult::kAllocated);
    ASSERT_TRUE(Hold(0, e));
  }
  tier_->SetBudget(2 * 64 * kKiB);
  tier_->Tick();
  EXPECT_FALSE(tier_->Shrink(100));
  EXPECT_EQ(tier_->arena().unspent_bytes(), 0u) << "not less than nothing";
  EXPECT_EQ(Fill(0, 5), DramTier::AllocResult::kNone);
  for (uint32_t e = 0; e < 4; ++e) {
    Release(0, e);
  }
  tier_->Tick();
  EXPECT_TRUE(tier_->Shrink(100));
  EXPECT_EQ(tier_->arena().total_bytes(), 2 * 64 * kKiB);
}

TEST_F(DramTierTest, RetiredSegmentsCountAgainstAShrunkBudget) {
  Make(4 * 64 * kKiB);
  AddPack(8, 64 * kKiB);
  for (uint32_t e = 0; e < 4; ++e) {
    ASSERT_EQ(Fill(0, e), DramTier::AllocResult::kAllocated);
  }
  drop_at_once_ = false;
  tier_->SetBudget(2 * 64 * kKiB);
  tier_->Tick();
  EXPECT_TRUE(tier_->Shrink(100)) << "what is retired is on its way back";
  EXPECT_EQ(tier_->arena().retired_bytes(), 2 * 64 * kKiB);
  // They free no room: the budget is full without them.
  ASSERT_EQ(Fill(0, 5), DramTier::AllocResult::kAllocated) << "one of its own class gave way";
  for (const uint32_t segment : std::vector<uint32_t>(retired_)) tier_->DropSegment(segment);
  EXPECT_EQ(tier_->arena().total_bytes(), 2 * 64 * kKiB);
  tier_->SetBudget(5 * 64 * kKiB);
  ASSERT_EQ(Fill(0, 6), DramTier::AllocResult::kAllocated);
  EXPECT_EQ(tier_->arena().total_bytes(), 3 * 64 * kKiB) << "and up again";
}

}  // namespace
}  // namespace sluice::weightd
