// Slots of a slab: division of a budget into slots, and choice of victims.
#include "inferd/cache/slot_table.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "common/profile/profile.h"
#include "gtest/gtest.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/engine/cache_setup.h"
#include "inferd/policy/cache_allocation.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

using For = SlotTable::For;
constexpr uint32_t kNoSlot = SlotTable::kNoSlot;

// Two layers of four experts of one size, `slots` slots, of which `passing` belong to no layer.
SlabPlan Plan(uint32_t slots, uint32_t passing, std::vector<uint32_t> quota) {
  SlabPlan plan;
  plan.slots = slots;
  plan.bytes = slots * 128;
  plan.classes = {
      {.bytes = 128, .slots = slots, .passing = passing, .experts = 8, .quota = std::move(quota)}};
  plan.class_of.assign(8, 0);
  plan.first_expert = {0, 4};
  return plan;
}

uint32_t First(uint32_t, absl::Span<const uint32_t>) { return 0; }

uint32_t Put(SlotTable* table, uint32_t layer, uint32_t expert, For purpose = For::kDemand) {
  const uint32_t slot = table->TakeSlot(layer, expert, purpose, First);
  if (slot != kNoSlot) {
    table->SetReady(slot);
  }
  return slot;
}

TEST(SlotTableTest, ALayerAtItsQuotaGivesUpItsOwn) {
  SlotTable table(Plan(5, 1, {2, 2}));
  Put(&table, 0, 0);
  Put(&table, 0, 1);
  Put(&table, 1, 0);
  const uint32_t slot = Put(&table, 0, 2);
  EXPECT_EQ(table.Find(0, 0), kNoSlot);
  EXPECT_EQ(table.Find(0, 2), slot);
  EXPECT_TRUE(table.IsReady(0, 1));
  EXPECT_TRUE(table.IsReady(1, 0));
  EXPECT_EQ(table.evictions(), 1u);
}

// Experts 0 and 1 of each layer are of one size, 2 and 3 of another. Passing experts of the first size do not
// delay the stream of the second, which has only the layer's own slot left.
TEST(SlotTableTest, PassingExpertsOfOtherSizesAreIgnored) {
  SlabPlan plan = Plan(2, 2, {0, 0});
  plan.classes.push_back({.bytes = 64, .offset = 256, .first = 2, .slots = 2, .experts = 4, .quota = {1, 1}});
  plan.slots = 4;
  plan.class_of = {0, 0, 1, 1, 0, 0, 1, 1};
  SlotTable table(plan);
  Put(&table, 0, 2);
  Put(&table, 1, 2);
  ASSERT_NE(Put(&table, 0, 0, For::kStream), kNoSlot);
  ASSERT_NE(Put(&table, 0, 1, For::kStream), kNoSlot);
  EXPECT_NE(Put(&table, 0, 3, For::kStream), kNoSlot);
  EXPECT_EQ(table.Find(0, 2), kNoSlot);
  EXPECT_TRUE(table.IsReady(1, 2));
}

TEST(SlotTableTest, PrefetchPrefersUnownedSlots) {
  SlotTable table(Plan(5, 1, {2, 2}));
  for (uint32_t expert : {0u, 1u}) {
    Put(&table, 0, expert);
    Put(&table, 1, expert);
  }
  Put(&table, 1, 2, For::kPrefetch);
  EXPECT_EQ(table.held(1, 0), 3u);
  // Without free slots a prefetch evicts one of the layer's own, but never an unused prefetch.
  Put(&table, 1, 3, For::kPrefetch);
  EXPECT_EQ(table.Find(1, 0), kNoSlot);
  EXPECT_TRUE(table.IsReady(1, 2));
  table.TrimLayer(1, First);
  EXPECT_EQ(table.held(1, 0), 2u);
}

TEST(SlotTableTest, PinnedExpertsStay) {
  SlotTable table(Plan(2, 0, {1, 1}));
  Put(&table, 0, 0);
  table.slot(table.Find(0, 0)).pinned = true;
  Put(&table, 0, 1);
  EXPECT_TRUE(table.IsReady(0, 0));
  table.slot(table.Find(0, 1)).pinned = true;
  EXPECT_EQ(table.TakeSlot(0, 2, For::kDemand, First), kNoSlot);
  table.slot(table.Find(0, 0)).pinned = false;
  EXPECT_NE(table.TakeSlot(0, 2, For::kDemand, First), kNoSlot);
}

TEST(SlotTableTest, StreamDoesNotEvictKeptExperts) {
  SlotTable table(Plan(6, 2, {2, 2}));
  for (uint32_t expert : {0u, 1u}) {
    Put(&table, 0, expert);
    Put(&table, 1, expert);
  }
  EXPECT_NE(Put(&table, 0, 2, For::kStream), kNoSlot);
  const uint32_t second = table.TakeSlot(0, 3, For::kStream, First);
  EXPECT_NE(second, kNoSlot);
  EXPECT_TRUE(table.IsReady(0, 0));
  EXPECT_TRUE(table.IsReady(0, 1));
  table.SetReady(second);
  table.TrimLayer(0, First);
  EXPECT_TRUE(table.IsReady(0, 0));
  EXPECT_TRUE(table.IsReady(0, 1));
  EXPECT_EQ(table.held(0, 0), 2u);
}

// Both experts that streamed through layer 0 are predicted for its next turn. A later stream cannot wait for
// them to leave: it evicts computed experts, and the predicted ones stay.
TEST(SlotTableTest, StreamDoesNotWaitForPredictedExperts) {
  SlotTable table(Plan(4, 2, {1, 1}));
  Put(&table, 0, 0);
  Put(&table, 1, 0);
  for (const uint32_t expert : {1u, 2u}) {
    const uint32_t passing = Put(&table, 0, expert, For::kStream);
    ASSERT_NE(passing, kNoSlot);
    table.slot(passing).fresh = true;
  }
  const uint32_t slot = table.TakeSlot(0, 3, For::kStream, First);
  ASSERT_NE(slot, kNoSlot);
  EXPECT_EQ(table.Find(0, 0), kNoSlot);
  EXPECT_TRUE(table.IsReady(0, 1));
  EXPECT_TRUE(table.IsReady(0, 2));
}

TEST(SlotTableTest, LostSlotsStayUnusedUntilFreed) {
  SlotTable table(Plan(2, 0, {1, 1}));
  const uint32_t lost = table.TakeSlot(0, 0, For::kDemand, First);
  Put(&table, 1, 0);
  table.LoseFilling();
  EXPECT_EQ(table.slot(lost).state, SlotState::kLost);
  EXPECT_EQ(table.Find(0, 0), kNoSlot);
  const uint32_t other = table.TakeSlot(0, 1, For::kDemand, First);
  EXPECT_NE(other, lost);
  EXPECT_EQ(table.TakeSlot(0, 2, For::kDemand, First), kNoSlot);
  table.FreeLost();
  EXPECT_EQ(table.TakeSlot(0, 2, For::kDemand, First), lost);
}

TEST(SlotTableTest, FreedSlotKeepsNothingOfItsExpert) {
  SlotTable table(Plan(2, 1, {1, 0}));
  for (const For purpose : {For::kPrefetch, For::kStream}) {
    for (const bool lost : {false, true}) {
      const uint32_t slot = table.TakeSlot(0, 1, purpose, First);
      ASSERT_NE(slot, kNoSlot);
      EXPECT_EQ(table.slot(slot).fresh, purpose == For::kPrefetch);
      EXPECT_EQ(table.slot(slot).passing, purpose == For::kStream);
      table.slot(slot).request = 7;
      table.slot(slot).joined = 5;
      table.slot(slot).pinned = true;
      if (lost) {
        table.LoseFilling();
        table.FreeLost();
      } else {
        table.SetFree(slot);
      }
      const Slot& freed = table.slot(slot);
      EXPECT_EQ(freed.state, SlotState::kFree);
      EXPECT_EQ(freed.request, 0u);
      EXPECT_EQ(freed.joined, 0u);
      EXPECT_FALSE(freed.pinned || freed.fresh || freed.prefetched || freed.passing);
      EXPECT_EQ(table.Find(0, 1), kNoSlot);
    }
  }
}

// Invariants: no expert is in two slots, and the counts match the slots.
TEST(SlotTableTest, CountsAgreeWithTheSlotsThroughRandomUse) {
  std::mt19937 random(3);
  SlotTable table(Plan(5, 1, {3, 1}));
  for (int i = 0; i < 20000; ++i) {
    const uint32_t layer = random() % 2;
    const uint32_t expert = random() % 4;
    const uint32_t slot = table.Find(layer, expert);
    if (slot == kNoSlot) {
      table.TakeSlot(layer, expert, static_cast<For>(random() % 3),
                     [&](uint32_t, absl::Span<const uint32_t> experts) {
                       return static_cast<uint32_t>(random() % (experts.size() + 1));
                     });
    } else if (table.slot(slot).state == SlotState::kFilling) {
      random() % 4 == 0 ? table.SetFree(slot) : table.SetReady(slot);
    } else if (random() % 3 == 0) {
      table.slot(slot).pinned = random() % 2 == 0;
    } else if (random() % 5 == 0) {
      table.TrimLayer(layer, First);
    } else if (random() % 97 == 0) {
      table.LoseFilling();
      table.FreeLost();
    }
    uint32_t filling = 0;
    uint32_t held[2] = {0, 0};
    uint32_t ready[2] = {0, 0};
    for (uint32_t s = 0; s < table.size(); ++s) {
      const Slot& one = table.slot(s);
      if (one.state == SlotState::kFree) {
        continue;
      }
      ASSERT_EQ(table.Find(one.layer, one.expert), s);
      held[one.layer]++;
      ready[one.layer] += one.state == SlotState::kReady ? 1 : 0;
      filling += one.state == SlotState::kFilling ? 1 : 0;
    }
    ASSERT_EQ(table.filling(), filling);
    for (uint32_t l = 0; l < 2; ++l) {
      ASSERT_EQ(table.held(l, 0), held[l]);
      ASSERT_EQ(table.ready(l), ready[l]);
    }
  }
}

class SlabPlanTest : public testing::Test {
 protected:
  void SetUp() override {
    TinyModelSpec model;
    model.layers = 3;
    model.experts = 8;
    const absl::Status packed = PackTiny(model, dir_.File("model"), dir_.File("pack"));
    ASSERT_TRUE(packed.ok()) << packed;
    pack_ = *Pack::Open(dir_.File("pack"));
  }
  TempDir dir_;
  std::unique_ptr<Pack> pack_;
};

TEST_F(SlabPlanTest, ABudgetOfHalfTheExpertsHoldsHalfOfThem) {
  const absl::StatusOr<SlabPlan> plan = PlanSlab(*pack_, pack_->total_expert_bytes() / 2, AllocateUniform);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->classes.size(), 1u);
  EXPECT_EQ(plan->slots, 12u);
  EXPECT_LE(plan->bytes, pack_->total_expert_bytes() / 2);
  EXPECT_EQ(plan->classes[0].passing, 2u);
  EXPECT_EQ(plan->classes[0].quota, (std::vector<uint32_t>{4, 3, 3}));
}

// With 24 experts and 12 slots at most half of the slots are passing ones.
TEST_F(SlabPlanTest, PassingSlotsFollowTheRequest) {
  const uint64_t half = pack_->total_expert_bytes() / 2;
  absl::StatusOr<SlabPlan> plan = PlanSlab(*pack_, half, AllocateUniform, {}, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->classes[0].passing, 4u);
  EXPECT_EQ(plan->classes[0].quota, (std::vector<uint32_t>{3, 3, 2}));
  plan = PlanSlab(*pack_, half, AllocateUniform, {}, 9);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->classes[0].passing, 6u);
}

// The even experts twice as large: 16 of 24 in two sizes, of each of which one passes.
TEST_F(SlabPlanTest, SizeClassesShareThePassingSlots) {
  const auto bytes = [](uint32_t, uint32_t expert) { return uint64_t{expert % 2 == 0 ? 128u : 64u}; };
  const absl::StatusOr<SlabPlan> plan = PlanSlab(*pack_, 8 * 128 + 8 * 64, AllocateUniform, bytes);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->classes.size(), 2u);
  for (const SlotClass& c : plan->classes) {
    EXPECT_EQ(c.slots, 8u);
    EXPECT_EQ(c.passing, 1u);
    EXPECT_EQ(c.quota, (std::vector<uint32_t>{3, 2, 2}));
  }
}

TEST_F(SlabPlanTest, WithoutBudgetEveryExpertHasASlot) {
  const absl::StatusOr<SlabPlan> plan = PlanSlab(*pack_, 0, AllocateUniform);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->slots, 24u);
  EXPECT_EQ(plan->classes[0].passing, 0u);
  EXPECT_EQ(plan->classes[0].quota, (std::vector<uint32_t>{8, 8, 8}));
}

TEST_F(SlabPlanTest, BudgetBelowTwoExpertsIsRefusedWithNumbers) {
  const uint64_t least = SmallestDeviceBudget(*pack_);
  EXPECT_EQ(least, 2 * pack_->largest_expert_bytes());
  const absl::StatusOr<SlabPlan> plan = PlanSlab(*pack_, least - 1, AllocateUniform);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(plan.status().message()).find(absl::StrCat(least)), std::string::npos)
      << plan.status();
  EXPECT_NE(std::string(plan.status().message()).find(absl::StrCat(least - 1)), std::string::npos)
      << plan.status();
  EXPECT_TRUE(PlanSlab(*pack_, least, AllocateUniform).ok());
}

TEST_F(SlabPlanTest, SharesByCostWithoutAProfileAreWarnedAbout) {
  Policies policies;
  policies.cache = CacheKind::kSlots;
  EXPECT_EQ(AllocationWarning(policies, *pack_), "");
  policies.allocation = CacheAllocation::kDpTimed;
  EXPECT_NE(AllocationWarning(policies, *pack_).find(kCacheName), std::string::npos);

  CacheProfile profile;
  profile.source_digest = pack_->manifest().provenance.source_digest;
  profile.tokens = 1;
  profile.layers.resize(3);
  for (LayerCacheProfile& layer : profile.layers) {
    layer.distances.assign(8, 0);
    layer.squares.assign(LayerCacheProfile::kPoints, 0);
  }
  const std::string folder = ProfileFolder(pack_->dir());
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/" + kCacheName) << SerializeCacheProfile(profile);
  EXPECT_TRUE(ReadCacheProfile(folder, pack_->config(), profile.source_digest).ok());
  EXPECT_EQ(AllocationWarning(policies, *pack_), "");
}

}  // namespace
}  // namespace sluice::inferd
