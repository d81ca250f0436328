// Slots with whole experts: effects of completions.
#include "inferd/cache/expert_slots.h"

#include <memory>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "inferd/cache/slot_table.h"
#include "inferd/policy/cache_allocation.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

using For = SlotTable::For;
constexpr uint32_t kNoSlot = SlotTable::kNoSlot;

class ExpertSlotsTest : public testing::Test {
 protected:
  void SetUp() override {
    model_.layers = 2;
    model_.experts = 4;
    ASSERT_TRUE(PackTiny(model_, dir_.File("model"), dir_.File("pack")).ok());
    client_ = *FakeWeightClient::Open(dir_.File("pack"), {.prefetches_begin_at_once = true});
    const ModelConfig& config = client_->pack().config();
    backend_ = std::make_unique<ReferenceBackend>(
        BackendLimits{.max_tokens = 1, .max_cols = config.hidden, .hidden = config.hidden});
    fetches_ = std::make_unique<FetchQueue>(client_.get(), backend_.get(), &clock_);
    SlotCacheOptions options;
    options.allocate = AllocateUniform;
    auto made = ExpertSlots::Create(options, client_.get(), fetches_.get(), backend_.get());
    ASSERT_TRUE(made.ok()) << made.status();
    slots_ = *std::move(made);
    ASSERT_TRUE(slots_->Offer(0, 0).ok());
  }

  uint32_t Fetch(RequestClass request_class, uint32_t layer, uint32_t expert) {
    const absl::StatusOr<uint32_t> slot =
        slots_->Fetch(request_class, /*step=*/1, layer, expert,
                      request_class == RequestClass::kDemand ? For::kDemand : For::kPrefetch, NoVictim);
    EXPECT_TRUE(slot.ok()) << slot.status();
    return slot.value_or(kNoSlot);
  }
  // Number of completions that changed a slot.
  int Poll() {
    int told = 0;
    fetches_->Poll([&](const FetchKey& key, const FetchCompletion& completion) {
      told += slots_->Handle(key, completion) == kNoSlot ? 0 : 1;
    });
    return told;
  }
  SlotState State(uint32_t slot) const { return slots_->table().slot(slot).state; }

  TinyModelSpec model_;
  TempDir dir_;
  const MonotonicClock clock_;
  std::unique_ptr<FakeWeightClient> client_;
  std::unique_ptr<ReferenceBackend> backend_;
  std::unique_ptr<FetchQueue> fetches_;
  std::unique_ptr<ExpertSlots> slots_;
};

TEST_F(ExpertSlotsTest, ASlotIsReadyOnceItsTransferHasEnded) {
  const uint32_t slot = Fetch(RequestClass::kDemand, 1, 2);
  ASSERT_NE(slot, kNoSlot);
  EXPECT_EQ(State(slot), SlotState::kFilling);
  EXPECT_EQ(Poll(), 1);
  EXPECT_TRUE(slots_->table().IsReady(1, 2));
  EXPECT_EQ(slots_->table().Find(1, 2), slot);
  EXPECT_EQ(client_->violation(), "");
}

TEST_F(ExpertSlotsTest, FailedTransferFreesItsSlot) {
  const uint32_t slot = Fetch(RequestClass::kPrefetch, 0, 0);
  client_->Cancel(slots_->table().slot(slot).request);
  EXPECT_EQ(Poll(), 1);
  EXPECT_EQ(State(slot), SlotState::kFree);
  EXPECT_EQ(slots_->table().Find(0, 0), kNoSlot);
}

TEST_F(ExpertSlotsTest, CoalescedPrefetchReportsNothing) {
  const uint32_t slot = Fetch(RequestClass::kPrefetch, 0, 3);
  ASSERT_TRUE(slots_->Join(1, slot));
  EXPECT_NE(slots_->table().slot(slot).joined, 0u);
  EXPECT_EQ(Poll(), 1) << "two transfers of the same bytes, one of which counts";
  EXPECT_TRUE(slots_->table().IsReady(0, 3));
  EXPECT_EQ(slots_->table().slot(slot).joined, 0u);
  EXPECT_EQ(client_->violation(), "");
}

TEST_F(ExpertSlotsTest, SlotsLostWithWeightdAreReusedAfterOffer) {
  client_->Freeze(true);
  const uint32_t slot = Fetch(RequestClass::kDemand, 0, 1);
  slots_->Lose();
  EXPECT_EQ(State(slot), SlotState::kLost);
  EXPECT_EQ(slots_->table().Find(0, 1), kNoSlot);
  ASSERT_TRUE(slots_->Offer(0, 0).ok());
  EXPECT_EQ(State(slot), SlotState::kFree);
}

TEST_F(ExpertSlotsTest, PartsOfDifferentSlotsDoNotOverlap) {
  const uint32_t a = Fetch(RequestClass::kDemand, 0, 0);
  const uint32_t b = Fetch(RequestClass::kDemand, 0, 1);
  Poll();
  const uint64_t bytes = slots_->plan().classes[0].bytes;
  for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
    const WeightView in_a = slots_->PartOf(a, part);
    EXPECT_LT(in_a.base.offset, slots_->table().slot(a).offset + bytes);
    EXPECT_EQ(slots_->PartOf(b, part).base.offset - in_a.base.offset,
              slots_->table().slot(b).offset - slots_->table().slot(a).offset);
  }
}

TEST(TileSizeTest, AnEighthOfTheExpertInWholeBlocksUnlessSaid) {
  const TileSize eighth = *TileSize::Create(0);
  EXPECT_EQ(eighth.Of(1024), 128u);
  EXPECT_EQ(eighth.Of(768), 128u);
  EXPECT_EQ(eighth.Of(8), 64u) << "more than it has";
  EXPECT_EQ(eighth.Landed(3, 1024), 384u);
  EXPECT_EQ(eighth.Landed(9, 1024), 1024u);
  EXPECT_EQ(TileSize::Create(64)->Of(1024), 64u);
  EXPECT_EQ(TileSize::Create(100).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::inferd
