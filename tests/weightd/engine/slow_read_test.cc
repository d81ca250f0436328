// Stuck reads: hedged reads, and no reuse of a slot while a read may still write to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/weightd/engine/core_fixture.h"

namespace sluice::weightd {
namespace {

using ::testing::SizeIs;

class SlowReadTest : public CoreTest {
 protected:
  static constexpr int64_t kSlow = 1'000'000'000;

  void SetUp() override { reader_.IgnoreCancels(); }
  void Advance(int64_t nanos) {
    clock_.Advance(nanos);
    Pump();
  }
  // Requests an extent whose first read then gets stuck; returns the tag of the hedged read.
  uint64_t Stick(LocalClient* client, uint64_t id, ExtentId extent_id) {
    client->Submit(LocalClient::FillExtent(id, extent_id));
    Pump();
    EXPECT_NE(reader_.DestOf(extent_id), nullptr);
    EXPECT_NE(core_->NextDeadline(), 0);
    Advance(kSlow);
    for (const uint64_t tag : reader_.waiting()) {
      if (tag != extent_id && static_cast<ExtentId>(tag) == extent_id) {
        return tag;
      }
    }
    ADD_FAILURE() << "no hedged read";
    return 0;
  }
  bool LeasedBytesAreRight(LocalClient* client, ExtentId extent_id) {
    uint64_t place = 0;
    if (!client->Lease(extent_id, &place)) {
      return false;
    }
    const SharedMemory* memory = core_->tier().arena().memory(PlaceSegment(place));
    const bool right = source_->BytesAreRight(extent_id, {memory->map.data() + PlaceOffset(place), kPart});
    client->Release(extent_id, StepStamp(++step_, 0));
    return right;
  }
  uint64_t step_ = 0;
};

TEST_F(SlowReadTest, ReadTimeoutCanChangeForLaterReads) {
  Start(4 * kExpert);
  LocalClient client = Client(OpenSession());
  core_->Tune({.read_timeout_ms = 5000});
  client.Submit(LocalClient::FillExtent(1, 0));
  Pump();
  Advance(kSlow);
  EXPECT_EQ(core_->Stats().slow_reads, 0u);
  Advance(4 * kSlow);
  EXPECT_EQ(core_->Stats().slow_reads, 1u);
  EXPECT_EQ(core_->Stats().hedged_reads, 1u);
}

TEST_F(SlowReadTest, ReadsWhoseBytesArriveAreNotSlow) {
  Start(4 * kExpert);
  LocalClient client = Client(OpenSession());
  client.Submit(LocalClient::FillExtent(1, 0));
  Pump();
  for (int i = 0; i < 30; ++i) {  // a quarter of a minute of a slow disk
    reader_.Progress(0, clock_.NowNanos());
    Advance(kSlow / 2);
    EXPECT_NE(core_->NextDeadline(), 0);
  }
  EXPECT_EQ(core_->Stats().slow_reads, 0u);
  Advance(kSlow / 2);
  EXPECT_EQ(core_->Stats().slow_reads, 1u);
  // Bytes of the hedged read count as those of the first.
  const uint64_t second = reader_.waiting().back();
  for (int i = 0; i < 30; ++i) {
    reader_.Progress(second, clock_.NowNanos());
    Advance(2 * kSlow);
  }
  EXPECT_EQ(core_->Stats().timed_out, 0u);
  Advance(kSlow);
  EXPECT_EQ(core_->Stats().timed_out, 1u);
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SlowReadTest, HedgedReadWinsAndFirstSlotWaitsForItsEnd) {
  Start(4 * kExpert);
  LocalClient client = Client(OpenSession());
  const uint64_t second = Stick(&client, 1, 0);
  const std::byte* const stuck_at = reader_.DestOf(0);
  EXPECT_NE(reader_.DestOf(second), stuck_at);
  reader_.Complete(second);
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  EXPECT_TRUE(LeasedBytesAreRight(&client, 0));
  // All other slots are reused many times; that one never is.
  for (uint32_t extent = 1; extent < 90; ++extent) {
    client.Submit(LocalClient::FillExtent(1000 + extent, extent));
    Pump();
    EXPECT_NE(reader_.DestOf(extent), stuck_at);
    reader_.Complete(extent);
    Pump();
    EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
    EXPECT_TRUE(LeasedBytesAreRight(&client, extent));
  }
  // Extent 0 has long been evicted and is read again, while its first read is still stuck.
  client.Submit(LocalClient::FillExtent(2000, 0));
  Pump();
  ASSERT_THAT(reader_.waiting(), SizeIs(2));
  reader_.Complete(reader_.waiting().back());
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  reader_.Complete(0);
  Pump();
  EXPECT_TRUE(LeasedBytesAreRight(&client, 0));
  EXPECT_EQ(core_->Stats().hedged_reads_won, 1u);
  EXPECT_EQ(core_->Stats().in_flight_bytes, 0u);
  EXPECT_EQ(core_->NextDeadline(), 0);
}

TEST_F(SlowReadTest, FirstReadWinsAndHedgeSlotWaitsForItsEnd) {
  Start(4 * kExpert);
  LocalClient client = Client(OpenSession());
  const uint64_t second = Stick(&client, 1, 0);
  const std::byte* const second_at = reader_.DestOf(second);
  reader_.Complete(0);
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  EXPECT_TRUE(LeasedBytesAreRight(&client, 0));
  std::set<const std::byte*> places;
  for (uint32_t extent = 1; extent < 40; ++extent) {
    client.Submit(LocalClient::FillExtent(1000 + extent, extent));
    Pump();
    places.insert(reader_.DestOf(extent));
    reader_.Complete(extent);
    Pump();
    Next(&client);
  }
  EXPECT_EQ(places.count(second_at), 0u);
  reader_.Complete(second);
  Pump();
  for (uint32_t extent = 40; extent < 80; ++extent) {
    client.Submit(LocalClient::FillExtent(1000 + extent, extent));
    Pump();
    places.insert(reader_.DestOf(extent));
    reader_.Complete(extent);
    Pump();
    Next(&client);
  }
  EXPECT_EQ(places.count(second_at), 1u);
  EXPECT_EQ(core_->Stats().hedged_reads_won, 0u);
}

TEST_F(SlowReadTest, AFailureOfOneOfTheTwoIsNoFailure) {
  Start(4 * kExpert);
  LocalClient client = Client(OpenSession());
  uint64_t second = Stick(&client, 1, 0);
  reader_.CompleteAs(0, ReadOutcome::kIoError, absl::DataLossError("EIO"));
  Pump();
  EXPECT_FALSE(Next(&client).has_value());
  reader_.Complete(second);
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  second = Stick(&client, 2, 1);
  reader_.CompleteAs(second, ReadOutcome::kCorrupt, absl::DataLossError("wrong checksum"));
  Pump();
  EXPECT_FALSE(Next(&client).has_value());
  reader_.Complete(1);
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  EXPECT_TRUE(LeasedBytesAreRight(&client, 0));
  EXPECT_TRUE(LeasedBytesAreRight(&client, 1));
  EXPECT_EQ(core_->Stats().rereads, 0u);
}

// A disk whose reads take a second and one whose reads take a minute, on one clock: with a timeout of 1 s and
// four of these at most, the first serves everybody late, the second ends requests by their deadline, and
// serves later ones.
TEST_F(SlowReadTest, ReadsOfOneSecondServeAndOfAMinuteTimeOut) {
  Start(4 * kExpert);
  LocalClient client = Client(OpenSession());
  for (const int64_t seconds : {1, 60}) {
    const ExtentId extent_id = seconds == 1 ? 0 : 1;
    client.Submit(LocalClient::FillExtent(10, extent_id));
    Pump();
    for (int64_t second = 1; second <= seconds; ++second) {
      Advance(kSlow);
      const bool ends = seconds == 60 && second == 4;
      const auto done = Next(&client);
      ASSERT_EQ(done.has_value(), ends) << second;
      if (ends) {
        EXPECT_EQ(CodeOf(done), absl::StatusCode::kDeadlineExceeded);
        EXPECT_EQ(done->extent, extent_id);
      }
    }
    reader_.CompleteAll();
    Pump();
    EXPECT_EQ(Next(&client).has_value(), seconds == 1);
    client.Submit(LocalClient::FillExtent(11, extent_id));
    Pump();
    EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk) << "its bytes came in the end";
    EXPECT_TRUE(LeasedBytesAreRight(&client, extent_id));
    EXPECT_EQ(core_->Stats().in_flight_bytes, 0u);
    EXPECT_EQ(core_->NextDeadline(), 0);
  }
}

TEST_F(SlowReadTest, OnlyAReadThatIsWaitedForIsHedged) {
  Start(4 * kExpert);
  LocalClient client = Client(OpenSession());
  client.Submit(LocalClient::FillExtent(1, 0));
  Pump();
  SubmissionEntry cancel = LocalClient::Plain(2, Opcode::kCancel);
  cancel.target = 1;
  client.Submit(cancel);
  Pump();
  Advance(kSlow);
  EXPECT_EQ(core_->Stats().slow_reads, 1u);
  EXPECT_THAT(reader_.waiting(), SizeIs(1));
  client.Submit(LocalClient::FillExtent(3, 0));
  Pump();
  ASSERT_THAT(reader_.waiting(), SizeIs(2)) << "the read that it joins is slow already";
  reader_.Complete(reader_.waiting().back());
  Pump();
  EXPECT_EQ(Next(&client)->id, 1u);
  EXPECT_EQ(Next(&client)->id, 2u);
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
}

TEST_F(SlowReadTest, BothStuckTimeOutAndLaterRequestsRetry) {
  Start(4 * kExpert);
  LocalClient client = Client(OpenSession());
  const uint64_t second = Stick(&client, 1, 0);
  Advance(3 * kSlow);
  const auto done = Next(&client);
  EXPECT_EQ(CodeOf(done), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(done->extent, 0u);
  EXPECT_EQ(core_->NextDeadline(), 0);
  client.Submit(LocalClient::FillExtent(2, 5));
  client.Submit(LocalClient::FillExtent(3, 0));
  Pump();
  reader_.Complete(5);
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk) << "service for all others";
  Advance(3 * kSlow);
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kDeadlineExceeded) << "whoever joins waits no longer";
  reader_.Complete(second);
  Pump();
  reader_.Complete(0);
  Pump();
  client.Submit(LocalClient::FillExtent(4, 0));
  Pump();
  EXPECT_EQ(CodeOf(Next(&client)), absl::StatusCode::kOk);
  EXPECT_TRUE(LeasedBytesAreRight(&client, 0));
  EXPECT_EQ(core_->Stats().timed_out, 2u);
  EXPECT_EQ(core_->Stats().hedged_reads, 1u) << "whoever joins a hedged read needs no other one";
  EXPECT_EQ(core_->Stats().in_flight_bytes, 0u);
}

}  // namespace
}  // namespace sluice::weightd
