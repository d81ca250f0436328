// The background scrub: its rate on a clock that the test moves, and what happens to bytes that rot in
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/weightd/engine/core_fixture.h"

namespace sluice::weightd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kMiB = 1024 * 1024;

class ScrubTest : public CoreTest {
 protected:
  void StartFilled(uint64_t rate, uint32_t experts) {
    scrub_rate_ = rate;
    Start(8 * kExpert);
    client_ = std::make_unique<LocalClient>(Client(OpenSession()));
    for (uint32_t e = 0; e < experts; ++e) {
      client_->Submit(LocalClient::FillExpert(e, 0, e));
    }
    Pump();
    reader_.CompleteAll();
    Pump();
    while (Next(client_.get())) {
    }
    Pump();  // what was reaped is let go
  }
  // As the scrub's thread does, for `millis` milliseconds.
  void Scrub(int millis) {
    for (int i = 0; i < millis; ++i) {
      while (auto chunk = core_->TakeScrub()) {
        core_->FinishScrub(*chunk, chunk->Verify());
      }
      clock_.Advance(1'000'000);
    }
  }
  std::byte* BytesOf(ExtentId extent_id) {
    const ExtentStore& store = core_->tier().store();
    const SharedMemory* memory = core_->tier().arena().memory(store.segment(extent_id));
    return const_cast<std::byte*>(memory->map.data()) + store.offset(extent_id);
  }
  std::unique_ptr<LocalClient> client_;
};

TEST_F(ScrubTest, VerifiesRepeatedlyAtTheSetRate) {
  StartFilled(10 * kMiB, 8);  // 1.5 MiB
  Scrub(3000);
  const StoreStats stats = core_->Stats();
  EXPECT_NEAR(static_cast<double>(stats.scrub_bytes), 30.0 * kMiB, 0.5 * kMiB);
  EXPECT_NEAR(static_cast<double>(stats.scrub_passes), 20, 1);
  EXPECT_EQ(stats.scrub_failures, 0u);
  EXPECT_EQ(core_->tier().store().Held(0), false) << "nothing stays pinned";
}

TEST_F(ScrubTest, StoreOfOneExtentIsScrubbed) {
  scrub_rate_ = kMiB;
  Start(8 * kExpert, {.dense = {kPart}, .layers = 0});
  LocalClient client = Client(OpenSession());
  client.Submit(LocalClient::FillExtent(1, 0));
  Pump();
  reader_.CompleteAll();
  Pump();
  client.Reap();
  Scrub(1000);
  EXPECT_GE(core_->Stats().scrub_bytes, 2 * kPart);
  EXPECT_GE(core_->Stats().scrub_passes, 1u);
}

TEST_F(ScrubTest, APauseIsNotCaughtUpByABurst) {
  StartFilled(kMiB, 8);
  Scrub(10);
  clock_.Advance(60'000'000'000);
  const uint64_t before = core_->Stats().scrub_bytes;
  Scrub(1);
  EXPECT_LE(core_->Stats().scrub_bytes - before, 2 * kPart);
}

TEST_F(ScrubTest, RateCanChangeAndEnd) {
  StartFilled(0, 8);
  core_->Tune({.scrub_rate = 10 * kMiB});
  Scrub(1000);
  EXPECT_NEAR(static_cast<double>(core_->Stats().scrub_bytes), 10.0 * kMiB, 0.5 * kMiB);
  core_->Tune({});
  const uint64_t before = core_->Stats().scrub_bytes;
  Scrub(1000);
  EXPECT_EQ(core_->Stats().scrub_bytes, before);
}

TEST_F(ScrubTest, RateZeroAndAnEmptyMemoryScrubNothing) {
  StartFilled(0, 8);
  Scrub(100);
  EXPECT_EQ(core_->Stats().scrub_bytes, 0u);
  EXPECT_EQ(core_->NextScrub(), 0);
  StartFilled(kMiB, 0);
  Scrub(100);
  EXPECT_EQ(core_->Stats().scrub_bytes, 0u);
}

TEST_F(ScrubTest, BytesThatWentBadInMemoryAreReadAgain) {
  StartFilled(100 * kMiB, 8);
  const ExtentId bad = ExpertExtentId(0, 3) + 1;
  const uint64_t generation = core_->tier().store().generation(bad);
  BytesOf(bad)[kPart - 7] ^= std::byte{4};
  Scrub(30);
  EXPECT_FALSE(client_->Resident(bad)) << "nobody gets them any more";
  EXPECT_THAT(Log(), ElementsAre(HasSubstr("extent 10: its bytes in memory have gone bad")));
  Pump();
  EXPECT_THAT(reader_.waiting(), ElementsAre(bad));
  reader_.CompleteAll();
  Pump();
  EXPECT_TRUE(client_->Resident(bad));
  EXPECT_TRUE(source_->BytesAreRight(bad, {BytesOf(bad), kPart}));
  EXPECT_GT(core_->tier().store().generation(bad), generation);
  Scrub(100);
  const StoreStats stats = core_->Stats();
  EXPECT_EQ(stats.scrub_failures, 1u);
  EXPECT_EQ(stats.resident_extents, 24u);
  EXPECT_EQ(stats.resident_bytes, 24 * kPart);
  EXPECT_EQ(core_->tier().bad_slots(), 0u);
}

TEST_F(ScrubTest, SlotOfABadExtentWaitsForItsOldLease) {
  StartFilled(100 * kMiB, 2);
  const ExtentId bad = ExpertExtentId(0, 0);
  uint64_t place;
  ASSERT_TRUE(client_->Lease(bad, &place));
  std::byte* const old_bytes = BytesOf(bad);
  old_bytes[0] ^= std::byte{1};
  Scrub(10);
  uint64_t other_place;
  EXPECT_FALSE(client_->Lease(bad, &other_place));
  EXPECT_EQ(core_->tier().bad_slots(), 1u);
  client_->Submit(LocalClient::FillExtent(7, bad));
  Pump();
  reader_.CompleteAll();
  Pump();
  EXPECT_EQ(CodeOf(Next(client_.get())), absl::StatusCode::kOk);
  ASSERT_TRUE(client_->Lease(bad, &other_place));
  EXPECT_NE(place, other_place);
  EXPECT_TRUE(source_->BytesAreRight(bad, {BytesOf(bad), kPart}));
  // Everything else may be filled and evicted; the old place is nobody's meanwhile.
  for (uint32_t e = 0; e < 16; ++e) {
    client_->Submit(LocalClient::FillExpert(100 + e, 1 + e / 8, e % 8));
    Pump();
    reader_.CompleteAll();
    Pump();
    ASSERT_EQ(CodeOf(Next(client_.get())), absl::StatusCode::kOk);
  }
  EXPECT_FALSE(source_->BytesAreRight(bad, {old_bytes, kPart})) << "still the damaged bytes";
  EXPECT_EQ(core_->tier().bad_slots(), 1u);
  client_->Release(bad, 1);
  client_->Release(bad, 2);
  Pump();
  EXPECT_EQ(core_->tier().bad_slots(), 0u);
  EXPECT_LE(core_->Stats().segment_bytes, 8 * kExpert);
}

TEST_F(ScrubTest, AnEvictedExtentIsPassedOverInTheMiddle) {
  scrub_rate_ = kMiB;
  Start(2 * 3 * kMiB, {.layers = 1, .experts = 8, .part_bytes = kMiB});
  LocalClient client = Client(OpenSession());
  for (uint32_t e = 0; e < 6; ++e) {
    client.Submit(LocalClient::FillExpert(e, 0, e));
    Pump();
    reader_.CompleteAll();
    Pump();
    Next(&client);
    Scrub(300);  // not a whole extent
  }
  EXPECT_GT(core_->Stats().scrub_bytes, kMiB);
  EXPECT_EQ(core_->Stats().scrub_failures, 0u);
  EXPECT_THAT(Log(), IsEmpty());
}

}  // namespace
}  // namespace sluice::weightd
