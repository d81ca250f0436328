// Budgets for slots that hold experts neuron by neuron, with or without resident leads. Use by a layer:
// neuron_cache_test.cc.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "inferd/cache/neuron_layout.h"
#include "inferd/engine/cache_setup.h"
#include "inferd/policy/cache_allocation.h"
#include "pack/row_layout.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

class NeuronPlanTest : public testing::Test {
 protected:
  void SetUp() override {
    model_.layers = 2;
    model_.experts = 6;
    model_.width = 200;
    model_.hidden = 32;
    ASSERT_TRUE(PackTiny(model_, dir_.File("model"), dir_.File("pack")).ok());
  }

  TempDir dir_;
  TinyModelSpec model_;
};

// Eight slots for two layers of six: the first layer leaves none for the second, which needs room for both a
// token's experts and the two predicted for it; without predictions the room is the cache's.
TEST_F(NeuronPlanTest, PredictedExpertsDoubleThePassingSlots) {
  const std::unique_ptr<Pack> pack = *Pack::Open(dir_.File("pack"));
  const uint64_t leads = LeadBytes(*pack, Part::kUp);
  const uint64_t slot = NeuronLayoutOf(*pack, 0, 0, Part::kUp, true).slot_bytes;
  const auto plan = [&](uint64_t slots, bool fetch_ahead, const SlotAllocation& allocate) {
    return *PlanNeuronSlab(*pack, leads + slots * slot + PositionBytes(*pack, slots), Part::kUp, true,
                           fetch_ahead, allocate);
  };
  const SlabPlan layers = plan(8, true, AllocateLayers);
  EXPECT_EQ(layers.classes[0].passing, 4u);
  EXPECT_EQ(layers.classes[0].quota, (std::vector<uint32_t>{4, 0}));
  EXPECT_TRUE(layers.room_ahead);
  const SlabPlan unpredicted = plan(8, false, AllocateLayers);
  EXPECT_EQ(unpredicted.classes[0].passing, 2u);
  EXPECT_EQ(unpredicted.classes[0].quota, (std::vector<uint32_t>{6, 0}));
  for (const bool fetch_ahead : {false, true}) {
    const SlabPlan even = plan(8, fetch_ahead, AllocateUniform);
    EXPECT_EQ(even.classes[0].passing, 2u);
    EXPECT_EQ(even.classes[0].quota, (std::vector<uint32_t>{3, 3}));
    EXPECT_TRUE(even.room_ahead);
  }
  const SlabPlan few = plan(3, true, AllocateLayers);
  EXPECT_EQ(few.classes[0].passing, 1u);
  EXPECT_FALSE(few.room_ahead) << "one slot passes, and a token's two experts are being computed";
}

TEST_F(NeuronPlanTest, LeadsOfEveryExpertOfEveryLayerCount) {
  const std::unique_ptr<Pack> pack = *Pack::Open(dir_.File("pack"));
  for (const Part lead : {Part::kUp, Part::kGate}) {
    const uint64_t one = NeuronLayoutOf(*pack, 1, 5, lead, true).lead_bytes;
    const PartView part = pack->part(1, 5, lead);
    EXPECT_GE(one, part.rows * RowBytes(part.encoding, part.cols));
    EXPECT_EQ(LeadBytes(*pack, lead), 2 * 6 * one);
  }
}

TEST_F(NeuronPlanTest, LeadsStayIfATokensExpertsStillFit) {
  const std::unique_ptr<Pack> pack = *Pack::Open(dir_.File("pack"));
  const uint64_t leads = LeadBytes(*pack, Part::kGate);
  const uint64_t slot = NeuronLayoutOf(*pack, 0, 0, Part::kGate, true).slot_bytes;
  const uint64_t two = leads + 2 * slot + PositionBytes(*pack, 2);
  for (const char* preset : {"corm", "floe"}) {
    Policies policies = *PoliciesOf(preset, {}, DeviceKind::kSim);
    policies.sparsity.order = SparsityOrder::kGate;
    ASSERT_EQ(policies.lead_resident, LeadResident::kAuto);
    EXPECT_TRUE(LeadsStay(policies, *pack, two));
    EXPECT_FALSE(LeadsStay(policies, *pack, two - 1));
    EXPECT_FALSE(LeadsStay(policies, *pack, 0)) << "every expert has a slot, and its lead is there";
    EXPECT_TRUE(CheckSlotBudget(policies, *pack, two - 1).ok());
    policies.lead_resident = LeadResident::kOn;
    EXPECT_TRUE(LeadsStay(policies, *pack, two - 1));
    EXPECT_FALSE(CheckSlotBudget(policies, *pack, two - 1).ok());
    policies.lead_resident = LeadResident::kOff;
    EXPECT_FALSE(LeadsStay(policies, *pack, two));
  }
}

// Two slots of a size would be enough for the cache, but not for five experts at once.
TEST_F(NeuronPlanTest, LeadsDoNotStayIfTooFewSlotsRemain) {
  TinyModelSpec model = model_;
  model.top_k = 5;
  ASSERT_TRUE(PackTiny(model, dir_.File("model5"), dir_.File("pack5")).ok());
  const std::unique_ptr<Pack> pack = *Pack::Open(dir_.File("pack5"));
  const uint64_t slot = NeuronLayoutOf(*pack, 0, 0, Part::kGate, true).slot_bytes;
  const uint64_t five = LeadBytes(*pack, Part::kGate) + 5 * slot + PositionBytes(*pack, 5);
  const Policies policies = *PoliciesOf("corm", {}, DeviceKind::kSim);
  EXPECT_TRUE(LeadsStay(policies, *pack, five));
  EXPECT_FALSE(LeadsStay(policies, *pack, five - 1));
}

TEST_F(NeuronPlanTest, BudgetTooSmallForTheLeadsIsRefused) {
  const std::unique_ptr<Pack> pack = *Pack::Open(dir_.File("pack"));
  const uint64_t leads = LeadBytes(*pack, Part::kUp);
  const uint64_t slot = NeuronLayoutOf(*pack, 0, 0, Part::kUp, true).slot_bytes;
  const uint64_t least = leads + 2 * slot + PositionBytes(*pack, 2);
  EXPECT_EQ(SmallestNeuronBudget(*pack, Part::kUp, true), least);
  const absl::Status refused = CheckNeuronBudget(*pack, least - 1, Part::kUp, true);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_NE(std::string(refused.message()).find(absl::StrCat(leads)), std::string::npos) << refused;
  EXPECT_TRUE(CheckNeuronBudget(*pack, least, Part::kUp, true).ok());
  EXPECT_TRUE(CheckNeuronBudget(*pack, least - 1, Part::kUp, false).ok());
}

// Slab, leads and position tables together: never more than the budget, and no slot that would fit is
// omitted.
TEST_F(NeuronPlanTest, SlotsLeadsAndPositionsFitTheBudget) {
  const std::unique_ptr<Pack> pack = *Pack::Open(dir_.File("pack"));
  for (const bool resident : {false, true}) {
    const uint64_t slot = NeuronLayoutOf(*pack, 0, 0, Part::kUp, resident).slot_bytes;
    const uint64_t leads = resident ? LeadBytes(*pack, Part::kUp) : 0;
    const auto bytes = [&](uint64_t slots) { return leads + slots * slot + PositionBytes(*pack, slots); };
    for (uint64_t budget = SmallestNeuronBudget(*pack, Part::kUp, resident); budget < bytes(12);
         budget += slot / 7) {
      const auto plan = PlanNeuronSlab(*pack, budget, Part::kUp, resident, true, AllocateUniform);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_LE(bytes(plan->slots), budget);
      EXPECT_GT(bytes(plan->slots + 1), budget);
    }
    const auto all = PlanNeuronSlab(*pack, 0, Part::kUp, resident, true, AllocateUniform);
    EXPECT_EQ(all->slots, 12u);
  }
}

}  // namespace
}  // namespace sluice::inferd
