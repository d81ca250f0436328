// Requests: coalescing, overtaking, cancelling, room, damage, progress.
#include "weightd/engine/store_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/weightd/engine/core_fixture.h"

namespace sluice::weightd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

SubmissionEntry Prefetch(uint64_t id, uint64_t step, uint32_t layer, uint32_t expert) {
  SubmissionEntry entry = LocalClient::FillExpert(id, layer, expert);
  entry.request_class = RequestClass::kPrefetch;
  entry.step = step;
  return entry;
}

TEST_F(CoreTest, DuplicateFetchesJoinOneReadAndBothComplete) {
  Start(8 * kExpert);
  LocalClient a = Client(OpenSession());
  LocalClient b = Client(OpenSession());
  a.Submit(LocalClient::FillExpert(1, 0, 0));
  b.Submit(LocalClient::FillExpert(1, 0, 0));
  a.Submit(LocalClient::FillExtent(2, ExpertExtentId(0, 0)));
  Pump();
  EXPECT_THAT(reader_.waiting(), SizeIs(3)) << "three extents, each read once";
  reader_.CompleteAll();
  Pump();
  const auto first = Next(&a);
  const auto second = Next(&a);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->id + second->id, 3u);
  EXPECT_EQ(first->bytes + second->bytes, kExpert) << "who asked first pays";
  EXPECT_EQ(CodeOf(Next(&b)), absl::StatusCode::kOk);
  EXPECT_EQ(core_->Stats().coalesced, 4u);
  EXPECT_EQ(core_->Stats().bytes_read, kExpert);
}

TEST_F(CoreTest, DemandOvertakesAndPromotesPrefetches) {
  Start(30 * kExpert);
  LocalClient client = Client(OpenSession());
  for (uint64_t i = 0; i < 16; ++i) {
    client.Submit(Prefetch(i, 1, static_cast<uint32_t>(i / 8), static_cast<uint32_t>(i % 8)));
  }
  Pump();
  EXPECT_LE(reader_.waiting().size() * kPart, 2u * 1024 * 1024 + kExpert) << "one stands ready";
  const size_t running = reader_.waiting().size();
  ASSERT_LT(running, 16u * 3);
  client.Submit(LocalClient::FillExpert(100, 3, 7));
  client.Submit(LocalClient::FillExpert(101, 0, 0));  // is being prefetched
  Pump();
  const std::vector<uint64_t> waiting = reader_.waiting();
  ASSERT_GE(waiting.size(), running + 3) << "the demand started at once";
  EXPECT_EQ(waiting[running], ExpertExtentId(3, 7));
  EXPECT_THAT(reader_.promoted(),
              ElementsAre(ExpertExtentId(0, 0), ExpertExtentId(0, 0) + 1, ExpertExtentId(0, 0) + 2));
  for (uint64_t tag : {ExpertExtentId(3, 7), ExpertExtentId(3, 7) + 1, ExpertExtentId(3, 7) + 2}) {
    reader_.Complete(tag);
  }
  Pump();
  const auto done = Next(&client);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->id, 100u);
}

TEST_F(CoreTest, DemandStartsDespiteALargeStartedPrefetch) {
  constexpr uint64_t kMiB = 1024 * 1024;
  Start(5 * 48 * kMiB, {.layers = 2, .experts = 4, .part_bytes = 16 * kMiB});
  LocalClient client = Client(OpenSession());
  client.Submit(Prefetch(1, 1, 1, 0));
  Pump();
  ASSERT_THAT(reader_.waiting(), SizeIs(3));
  client.Submit(LocalClient::FillExpert(2, 0, 1));
  client.Submit(LocalClient::FillExpert(3, 0, 2));
  Pump();
  EXPECT_THAT(reader_.waiting(), SizeIs(6))
      << "48 MiB of prefetch are in flight; the second demand waits for the first";
}

TEST_F(CoreTest, NextPrefetchStartsBeforeThePreviousEnds) {
  constexpr uint64_t kMiB = 1024 * 1024;
  Start(10 * 3 * kMiB, {.layers = 4, .experts = 8, .part_bytes = kMiB});
  LocalClient client = Client(OpenSession());
  for (uint32_t expert = 0; expert < 3; ++expert) {
    client.Submit(Prefetch(expert, 1, 0, expert));
  }
  Pump();
  EXPECT_THAT(reader_.waiting(), ElementsAre(0, 1, 2)) << "3 MiB are left, 2 are in flight";
  reader_.Complete(0);
  Pump();
  EXPECT_THAT(reader_.waiting(), ElementsAre(1, 2, 3, 4, 5)) << "2 MiB are left: the next stands ready";
  reader_.Complete(1);
  reader_.Complete(2);
  Pump();
  EXPECT_THAT(reader_.waiting(), ElementsAre(3, 4, 5)) << "and the one after it does not yet";
}

TEST_F(CoreTest, StalePrefetchesAreCancelledByStepAndLayer) {
  Start(30 * kExpert);
  LocalClient client = Client(OpenSession());
  // Fills the prefetch window, so that later prefetches wait.
  for (uint32_t i = 0; i < 8; ++i) {
    client.Submit(Prefetch(1000 + i, 9, 3, i));
    client.Submit(Prefetch(1100 + i, 9, 2, i));
  }
  Pump();
  const size_t window = reader_.waiting().size();
  client.Submit(Prefetch(1, 4, 1, 0));
  client.Submit(Prefetch(2, 5, 0, 0));
  client.Submit(Prefetch(3, 5, 1, 1));
  client.Submit(Prefetch(4, 5, 0, 2));
  client.Submit(Prefetch(5, 6, 0, 3));
  SubmissionEntry cancel = LocalClient::Plain(50, Opcode::kCancelPrefetches);
  cancel.step = 5;
  cancel.layer = 0;
  client.Submit(cancel);
  Pump();
  EXPECT_EQ(reader_.waiting().size(), window);
  std::vector<uint64_t> cancelled;
  while (auto entry = Next(&client)) {
    if (entry->id == 50) {
      EXPECT_EQ(entry->bytes, 3u);
    } else {
      EXPECT_EQ(CodeOf(entry), absl::StatusCode::kCancelled);
      cancelled.push_back(entry->id);
    }
  }
  EXPECT_THAT(cancelled, ElementsAre(1, 2, 4)) << "not layer 1 of this step, not the next step";
}

TEST_F(CoreTest, CancelSparesAReadThatAnotherWaitsFor) {
  Start(8 * kExpert);
  LocalClient client = Client(OpenSession());
  client.Submit(LocalClient::FillExpert(1, 0, 0));
  client.Submit(LocalClient::FillExpert(2, 0, 0));
  client.Submit(LocalClient::FillExpert(3, 0, 1));
  Pump();
  ASSERT_THAT(reader_.waiting(), SizeIs(6));
  for (uint64_t target : {1, 3, 99}) {
    SubmissionEntry cancel = LocalClient::Plain(100 + target, Opcode::kCancel);
    cancel.target = target;
    client.Submit(cancel);
  }
  Pump();
  EXPECT_THAT(reader_.waiting(), SizeIs(3)) << "expert 1's reads were dropped, expert 0's go on";
  std::map<uint64_t, absl::StatusCode> codes;
  while (auto entry = Next(&client)) {
    codes[entry->id] = CodeOf(entry);
  }
  EXPECT_EQ(codes[1], absl::StatusCode::kCancelled);
  EXPECT_EQ(codes[3], absl::StatusCode::kCancelled);
  EXPECT_EQ(codes[101], absl::StatusCode::kOk);
  EXPECT_EQ(codes[199], absl::StatusCode::kNotFound);
  reader_.CompleteAll();
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  EXPECT_EQ(core_->tier().store().state(ExpertExtentId(0, 1)), ExtentState::kAbsent);
  EXPECT_EQ(core_->Stats().in_flight_bytes, 0u);
}

TEST_F(CoreTest, FilledExtentIsHeldUntilItsCompletionIsReaped) {
  Start(2 * kExpert);
  LocalClient client = Client(OpenSession());
  client.Submit(LocalClient::FillExpert(1, 0, 0));
  client.Submit(LocalClient::FillExpert(2, 0, 1));
  Pump();
  reader_.CompleteAll();
  Pump();
  client.Submit(LocalClient::FillExpert(3, 0, 2));
  Pump();
  EXPECT_THAT(reader_.waiting(), SizeIs(0));
  ASSERT_EQ(Next(&client)->id, 1u);
  ASSERT_EQ(Next(&client)->id, 2u);
  const auto refused = Next(&client);
  ASSERT_TRUE(refused);
  EXPECT_EQ(CodeOf(refused), absl::StatusCode::kResourceExhausted) << "it ends, it does not wait";
  client.Submit(LocalClient::FillExpert(4, 0, 2));
  Pump();
  EXPECT_THAT(reader_.waiting(), SizeIs(3)) << "both were reaped: the room is free";
  EXPECT_EQ(core_->Stats().no_room, 1u);
}

TEST_F(CoreTest, PrefetchLeavesReservedMemoryUntouched) {
  Start(3 * kExpert);  // one session's minimum, and one expert
  LocalClient client = Client(OpenSession());
  client.Submit(Prefetch(1, 1, 0, 0));
  client.Submit(Prefetch(2, 1, 0, 1));
  Pump();
  EXPECT_THAT(reader_.waiting(), SizeIs(3));
  const auto refused = Next(&client);
  EXPECT_EQ(CodeOf(refused), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused->id, 2u);
  client.Submit(LocalClient::FillExpert(3, 0, 2));
  client.Submit(LocalClient::FillExpert(4, 0, 3));
  Pump();
  reader_.CompleteAll();
  Pump();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  }
}

TEST_F(CoreTest, NoRoomLeavesNothingBehind) {
  Start(2 * kExpert);
  LocalClient client = Client(OpenSession());
  client.Submit(LocalClient::FillExpert(1, 0, 0));
  Pump();
  reader_.CompleteAll();
  Pump();
  uint64_t place;
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.Lease(ExpertExtentId(0, 0) + i, &place));
  }
  Next(&client);
  client.Submit(LocalClient::FillExtent(2, ExpertExtentId(1, 0)));
  Pump();
  reader_.CompleteAll();
  Pump();
  ASSERT_TRUE(client.Lease(ExpertExtentId(1, 0), &place));
  Next(&client);
  client.Submit(LocalClient::FillExpert(3, 2, 0));  // two of its three extents would fit
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(reader_.waiting(), SizeIs(0));
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(core_->tier().store().state(ExpertExtentId(2, 0) + i), ExtentState::kAbsent);
  }
  client.Submit(LocalClient::FillExtent(4, ExpertExtentId(2, 0)));
  client.Submit(LocalClient::FillExtent(5, ExpertExtentId(2, 0) + 1));
  Pump();
  EXPECT_THAT(reader_.waiting(), SizeIs(2));
}

TEST_F(CoreTest, ChecksumFailureIsReadAgainThenMarkedBadForAll) {
  Start(8 * kExpert);
  LocalClient client = Client(OpenSession());
  client.Submit(LocalClient::FillExpert(1, 2, 5));
  Pump();
  const ExtentId bad = ExpertExtentId(2, 5) + 1;
  reader_.CompleteAs(bad, ReadOutcome::kCorrupt, absl::DataLossError("wrong checksum"));
  Pump();
  EXPECT_THAT(reader_.waiting(), SizeIs(3)) << "a fresh read";
  reader_.CompleteAs(bad, ReadOutcome::kCorrupt, absl::DataLossError("wrong checksum"));
  Pump();
  const auto done = Next(&client);
  EXPECT_EQ(CodeOf(done), absl::StatusCode::kDataLoss);
  EXPECT_EQ(done->extent, bad);
  EXPECT_THAT(Log(), ElementsAre(HasSubstr("extent 64: wrong checksum")));
  client.Submit(LocalClient::FillExpert(2, 2, 5));
  client.Submit(LocalClient::FillExpert(3, 2, 6));
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kDataLoss) << "without another read";
  reader_.CompleteAll();
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk) << "service for all others";
  EXPECT_EQ(core_->Stats().checksum_failures, 2u);
  EXPECT_EQ(core_->Stats().bad_extents, 1u);
}

TEST_F(CoreTest, OneDamagedReadIsHealedByTheSecond) {
  Start(8 * kExpert);
  LocalClient client = Client(OpenSession());
  client.Submit(LocalClient::FillExtent(1, 4));
  Pump();
  EXPECT_FALSE(reader_.PastCacheOf(4));
  reader_.CompleteAs(4, ReadOutcome::kIoError, absl::DataLossError("EIO"));
  Pump();
  EXPECT_TRUE(reader_.PastCacheOf(4)) << "the page cache may hold the damaged bytes";
  reader_.Complete(4);
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  EXPECT_EQ(core_->Stats().rereads, 1u);
}

TEST_F(CoreTest, ExtentMayBeRetriedAfterADiskError) {
  Start(8 * kExpert);
  LocalClient client = Client(OpenSession());
  client.Submit(LocalClient::FillExtent(1, 4));
  Pump();
  for (int i = 0; i < 2; ++i) {
    reader_.CompleteAs(4, ReadOutcome::kIoError, absl::DataLossError("EIO"));
    Pump();
  }
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kDataLoss);
  client.Submit(LocalClient::FillExtent(2, 4));
  Pump();
  reader_.Complete(4);
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
}

TEST_F(CoreTest, ProgressWordCountsLandedExtentsOfTheRequest) {
  Start(8 * kExpert);
  LocalClient client = Client(OpenSession());
  SubmissionEntry entry = LocalClient::FillExpert(9, 0, 0);
  entry.progress = 5;
  client.Submit(entry);
  Pump();
  const auto& word = client.session().control.progress[5];
  EXPECT_EQ(word.load(), 0u);
  reader_.Complete(ExpertExtentId(0, 0) + 2);
  Pump();
  EXPECT_EQ(word.load(), PackProgress(9, 1));
  reader_.CompleteAll();
  Pump();
  EXPECT_EQ(word.load(), PackProgress(9, 3));
}

TEST_F(CoreTest, BadFieldsAndOpcodesAreAnsweredByName) {
  Start(8 * kExpert);
  LocalClient client = Client(OpenSession());
  SubmissionEntry transfer = LocalClient::Plain(1, Opcode::kTransfer);
  transfer.parts = kAllParts;
  transfer.slab = 0;  // there is no slab
  client.Submit(transfer);
  SubmissionEntry slab = LocalClient::FillExpert(2, 0, 0);
  slab.slab = 3;
  client.Submit(slab);
  client.Submit(LocalClient::FillExpert(3, 0, 0));
  client.Submit(LocalClient::FillExpert(3, 0, 1));  // the id is outstanding
  client.Submit(LocalClient::Plain(4, Opcode::kNop));
  client.Submit(LocalClient::Plain(5, static_cast<Opcode>(99)));
  Pump();
  auto entry = Next(&client);
  EXPECT_EQ(CodeOf(entry), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(entry->field, EntryField::kSlab);
  entry = Next(&client);
  EXPECT_EQ(CodeOf(entry), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(entry->field, EntryField::kSlab);
  entry = Next(&client);
  EXPECT_EQ(CodeOf(entry), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(entry->field, EntryField::kId);
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  entry = Next(&client);
  EXPECT_EQ(CodeOf(entry), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(entry->field, EntryField::kOpcode);
}

TEST_F(CoreTest, TimesAreMeasuredByTheClock) {
  Start(8 * kExpert);
  LocalClient client = Client(OpenSession());
  client.Submit(LocalClient::FillExtent(1, 4));
  Pump();
  ReadResult result;
  clock_.Advance(5'000);
  result.started_nanos = clock_.NowNanos();
  clock_.Advance(70'000);
  reader_.Complete(4);
  ASSERT_THAT(reads_, SizeIs(1));
  reads_[0].started_nanos = result.started_nanos;
  Pump();
  const auto done = Next(&client);
  EXPECT_EQ(done->queue_us, 5u);
  EXPECT_EQ(done->io_us, 70u);
  EXPECT_EQ(done->copy_us, 0u);
}

}  // namespace
}  // namespace sluice::weightd
