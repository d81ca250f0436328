// Thread safety: tests; the ring ends run on one or two threads over one mapping.
#include "common/protocol/rings.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace sluice {
namespace {

class RingsTest : public ::testing::Test {
 protected:
  RingsTest() : memory_(layout_.region_bytes() / 8) {
    view_ = FormatControl(base(), layout_, /*boot_epoch=*/7, /*session=*/3, /*pack_count=*/1);
  }
  std::byte* base() { return reinterpret_cast<std::byte*>(memory_.data()); }
  SubmissionEntry Entry(uint64_t id) {
    SubmissionEntry entry{};
    entry.id = id;
    entry.opcode = Opcode::kNop;
    return entry;
  }

  ControlLayout layout_{.ring_entries = 16, .list_entries = 64, .progress_words = 16};
  std::vector<uint64_t> memory_;
  ControlView view_;
};

TEST_F(RingsTest, ClientOpensWhatWeightdFormatted) {
  auto view = OpenControl(base(), layout_.region_bytes());
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->submissions, view_.submissions);
  EXPECT_EQ(view->progress, view_.progress);
  EXPECT_EQ(view->header->boot_epoch, 7u);
}

TEST_F(RingsTest, EveryDamagedHeaderFieldIsRefusedByName) {
  struct Case {
    size_t offset;
    const char* field;
  };
  for (const Case& c : {Case{offsetof(ControlHeader, magic), "magic"},
                        Case{offsetof(ControlHeader, abi_version), "abi_version"},
                        Case{offsetof(ControlHeader, region_bytes), "region_bytes"},
                        Case{offsetof(ControlHeader, submission_bytes), "submission_bytes"},
                        Case{offsetof(ControlHeader, completion_bytes), "completion_bytes"},
                        Case{offsetof(ControlHeader, ring_entries), "ring entries"}}) {
    base()[c.offset] ^= std::byte{0x41};
    auto view = OpenControl(base(), layout_.region_bytes());
    EXPECT_EQ(view.status().code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_NE(view.status().ToString().find(c.field), std::string::npos) << view.status();
    base()[c.offset] ^= std::byte{0x41};
  }
  EXPECT_FALSE(OpenControl(base(), 100).ok());
  EXPECT_FALSE(OpenControl(base(), layout_.region_bytes() - 1).ok());
}

TEST_F(RingsTest, SubmissionsArriveInOrderAndAFullRingSaysSo) {
  SubmissionWriter writer(view_);
  SubmissionReader reader(view_);
  SubmissionEntry got;
  EXPECT_EQ(reader.Pop(&got), RingResult::kNone);
  for (uint64_t round = 0; round < 5; ++round) {
    for (uint64_t i = 0; i < 16; ++i) {
      ASSERT_EQ(writer.Push(Entry(round * 16 + i)), RingResult::kOk);
    }
    EXPECT_EQ(writer.Push(Entry(999)), RingResult::kNone);
    for (uint64_t i = 0; i < 16; ++i) {
      ASSERT_EQ(reader.Pop(&got), RingResult::kOk);
      EXPECT_EQ(got.id, round * 16 + i);
      EXPECT_EQ(got.sequence, round * 16 + i);
    }
  }
}

TEST_F(RingsTest, TailTooFarOrBackwardsOrWrongSequenceIsCorrupt) {
  SubmissionWriter writer(view_);
  SubmissionReader reader(view_);
  SubmissionEntry got;
  auto& tail = view_.cursors->submission_tail.value;
  tail.store(17);
  EXPECT_EQ(reader.Pop(&got), RingResult::kCorrupt);
  tail.store(0);
  ASSERT_EQ(writer.Push(Entry(1)), RingResult::kOk);
  ASSERT_EQ(reader.Pop(&got), RingResult::kOk);
  tail.store(0);
  EXPECT_EQ(reader.Pop(&got), RingResult::kCorrupt);
  tail.store(2);  // entry 1 was never written: its sequence is 0
  EXPECT_EQ(reader.Pop(&got), RingResult::kCorrupt);
}

TEST_F(RingsTest, EntryChangedAfterItsCopyDoesNotChangeTheCopy) {
  SubmissionWriter writer(view_);
  SubmissionReader reader(view_);
  ASSERT_EQ(writer.Push(Entry(5)), RingResult::kOk);
  SubmissionEntry got;
  ASSERT_EQ(reader.Pop(&got), RingResult::kOk);
  view_.submissions[0].id = 6;
  EXPECT_EQ(got.id, 5u);
}

TEST_F(RingsTest, CompletionIsHeldUntilAdvanceAndHeadIsChecked) {
  CompletionWriter writer(view_);
  CompletionReader reader(view_);
  CompletionEntry done{};
  done.id = 42;
  EXPECT_EQ(writer.Push(done), 0u);
  CompletionEntry got;
  ASSERT_EQ(reader.Peek(&got), RingResult::kOk);
  EXPECT_EQ(got.id, 42u);
  uint64_t head = 99;
  ASSERT_EQ(writer.Reaped(&head), RingResult::kOk);
  EXPECT_EQ(head, 0u);
  reader.Advance();
  ASSERT_EQ(writer.Reaped(&head), RingResult::kOk);
  EXPECT_EQ(head, 1u);
  view_.cursors->completion_head.value.store(0);
  EXPECT_EQ(writer.Reaped(&head), RingResult::kCorrupt);
  view_.cursors->completion_head.value.store(2);
  EXPECT_EQ(writer.Reaped(&head), RingResult::kCorrupt);
}

TEST_F(RingsTest, SleeperIsWokenOnceAndNotWhenWorkIsThere) {
  SubmissionWriter writer(view_);
  SubmissionReader reader(view_);
  EXPECT_FALSE(writer.ClaimServerWake());
  ASSERT_TRUE(reader.BeginSleep());
  ASSERT_EQ(writer.Push(Entry(1)), RingResult::kOk);
  EXPECT_TRUE(writer.ClaimServerWake());
  EXPECT_FALSE(writer.ClaimServerWake());
  EXPECT_FALSE(reader.BeginSleep());
  CompletionWriter completions(view_);
  CompletionReader reaper(view_);
  ASSERT_TRUE(reaper.BeginWait());
  completions.Push({});
  EXPECT_TRUE(completions.ClaimClientWake());
  EXPECT_FALSE(completions.ClaimClientWake());
  EXPECT_FALSE(reaper.BeginWait());
}

TEST_F(RingsTest, TwoThreadsPassEveryEntryOnceInOrder) {
  constexpr uint64_t kCount = 20000;
  std::thread server([this] {
    SubmissionReader reader(view_);
    CompletionWriter writer(view_);
    uint64_t done = 0;
    while (done < kCount) {
      SubmissionEntry entry;
      if (reader.Pop(&entry) != RingResult::kOk) {
        std::this_thread::yield();
        continue;
      }
      CompletionEntry completion{};
      completion.id = entry.id;
      completion.bytes = entry.step;
      writer.Push(completion);
      ++done;
    }
  });
  SubmissionWriter writer(view_);
  CompletionReader reader(view_);
  uint64_t sent = 0;
  uint64_t reaped = 0;
  while (reaped < kCount) {
    if (sent < kCount && sent - reaped < layout_.ring_entries) {
      SubmissionEntry entry = Entry(sent);
      entry.step = sent * 3;
      ASSERT_EQ(writer.Push(entry), RingResult::kOk);
      ++sent;
    }
    CompletionEntry completion;
    const RingResult result = reader.Peek(&completion);
    ASSERT_NE(result, RingResult::kCorrupt);
    if (result == RingResult::kOk) {
      ASSERT_EQ(completion.id, reaped);
      ASSERT_EQ(completion.bytes, reaped * 3);
      reader.Advance();
      ++reaped;
    } else {
      std::this_thread::yield();
    }
  }
  server.join();
}

TEST(SessionAbiTest, SignatureMismatchIsNamed) {
  AbiSignature other;
  EXPECT_EQ(AbiMismatch(other), nullptr);
  other.side_message = 80;  // as ABI 3 had it
  EXPECT_STREQ(AbiMismatch(other), "side_message");
  other.pin_entry = 8;
  EXPECT_STREQ(AbiMismatch(other), "pin_entry");
  other.version = kAbiVersion + 1;
  EXPECT_STREQ(AbiMismatch(other), "version");
}

TEST(SessionAbiTest, WordsRoundTrip) {
  EXPECT_EQ(StateOf(PackState(ExtentState::kResident, 12345)), ExtentState::kResident);
  EXPECT_EQ(GenerationOf(PackState(ExtentState::kResident, 12345)), 12345u);
  const uint64_t place = PackPlace(kMaxSegmentId, (uint64_t{1} << 40) - 4096);
  EXPECT_EQ(PlaceSegment(place), kMaxSegmentId);
  EXPECT_EQ(PlaceOffset(place), (uint64_t{1} << 40) - 4096);
  EXPECT_LT(StepStamp(4, 1u << 20), StepStamp(5, 0));
  EXPECT_LT(StepStamp(4, 1), StepStamp(4, 2));
}

}  // namespace
}  // namespace sluice
