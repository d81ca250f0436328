// Thread safety: tests.
#include "weightd/entry_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "tests/support/fake_extent_source.h"
#include "tests/support/local_client.h"

namespace sluice {
namespace {

struct Damage {
  EntryField field;
  absl::StatusCode code;
  std::function<void(SubmissionEntry*)> apply;
};

const absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
const absl::StatusCode kUnbuilt = absl::StatusCode::kUnimplemented;

class EntryCheckTest : public ::testing::Test {
 protected:
  EntryVerdict Check(const SubmissionEntry& entry) { return CheckEntry(entry, packs_, layout_); }

  FakeExtentSource source_{{}};  // 2 layers of 8 experts
  const std::vector<const ExtentSource*> packs_ = {&source_};
  const ControlLayout layout_;
};

TEST_F(EntryCheckTest, PlainEntriesPass) {
  for (Opcode opcode : {Opcode::kNop, Opcode::kCancel, Opcode::kCancelPrefetches}) {
    EXPECT_EQ(Check(LocalClient::Plain(1, opcode)).code, absl::StatusCode::kOk);
  }
  EXPECT_EQ(Check(LocalClient::FillExpert(1, 1, 7)).code, absl::StatusCode::kOk);
  EXPECT_EQ(Check(LocalClient::FillExtent(1, source_.extent_count() - 1)).code, absl::StatusCode::kOk);
  EXPECT_EQ(Check(LocalClient::Plain(1, Opcode::kTransfer)).code, kUnbuilt);
}

TEST_F(EntryCheckTest, EveryFieldOfAFillIsTestedAndNamed) {
  const std::vector<Damage> damages = {
      {EntryField::kOpcode, kUnbuilt, [](SubmissionEntry* e) { e->opcode = static_cast<Opcode>(999); }},
      {EntryField::kOpcode, kUnbuilt, [](SubmissionEntry* e) { e->opcode = Opcode::kTransfer; }},
      {EntryField::kClass, kInvalid,
       [](SubmissionEntry* e) { e->request_class = static_cast<RequestClass>(2); }},
      {EntryField::kParts, kInvalid, [](SubmissionEntry* e) { e->parts = 0; }},
      {EntryField::kParts, kInvalid, [](SubmissionEntry* e) { e->parts = 0x8; }},
      {EntryField::kFlags, kUnbuilt, [](SubmissionEntry* e) { e->flags = 1; }},
      {EntryField::kPack, kInvalid, [](SubmissionEntry* e) { e->pack = 1; }},
      {EntryField::kLayer, kInvalid, [](SubmissionEntry* e) { e->layer = 2; }},
      {EntryField::kExpert, kInvalid, [](SubmissionEntry* e) { e->expert = 8; }},
      {EntryField::kExtent, kInvalid, [](SubmissionEntry* e) { e->extent = 0; }},
      {EntryField::kList, kInvalid, [](SubmissionEntry* e) { e->list_offset = 0xffffffff; }},
      {EntryField::kList, kInvalid,
       [](SubmissionEntry* e) { e->list_offset = 0xffffffff, e->list_count = 0xffffffff; }},
      {EntryField::kList, kUnbuilt, [](SubmissionEntry* e) { e->list_count = 3; }},
      {EntryField::kSlab, kUnbuilt, [](SubmissionEntry* e) { e->slab = 0; }},
      {EntryField::kProgress, kInvalid, [](SubmissionEntry* e) { e->progress = 1u << 20; }},
      {EntryField::kBase, kInvalid, [](SubmissionEntry* e) { e->base[2] = 64; }},
      {EntryField::kStride, kInvalid, [](SubmissionEntry* e) { e->stride[0] = 64; }},
      {EntryField::kTarget, kInvalid, [](SubmissionEntry* e) { e->target = 5; }},
      {EntryField::kReserved, kInvalid, [](SubmissionEntry* e) { e->reserved = 1; }},
  };
  for (const Damage& damage : damages) {
    SubmissionEntry entry = LocalClient::FillExpert(1, 0, 0);
    damage.apply(&entry);
    const EntryVerdict verdict = Check(entry);
    EXPECT_EQ(verdict.field, damage.field) << static_cast<int>(damage.field);
    EXPECT_EQ(verdict.code, damage.code) << static_cast<int>(damage.field);
  }
}

TEST_F(EntryCheckTest, FieldsOfOtherOpcodesMustBeNeutral) {
  SubmissionEntry entry = LocalClient::FillExtent(1, source_.extent_count());
  EXPECT_EQ(Check(entry).field, EntryField::kExtent);
  entry = LocalClient::FillExtent(1, 0);
  entry.parts = kAllParts;
  EXPECT_EQ(Check(entry).field, EntryField::kParts);
  entry = LocalClient::FillExtent(1, 0);
  entry.expert = 1;
  EXPECT_EQ(Check(entry).field, EntryField::kExpert);
  entry = LocalClient::Plain(1, Opcode::kCancelPrefetches);
  entry.layer = 100000;
  entry.step = 5;
  EXPECT_EQ(Check(entry).code, absl::StatusCode::kOk);
  for (Opcode opcode : {Opcode::kNop, Opcode::kCancel}) {
    entry = LocalClient::Plain(1, opcode);
    entry.layer = 1;
    EXPECT_EQ(Check(entry).field, EntryField::kLayer);
    entry = LocalClient::Plain(1, opcode);
    entry.progress = 0;
    EXPECT_EQ(Check(entry).field, EntryField::kProgress);
    entry = LocalClient::Plain(1, opcode);
    entry.request_class = RequestClass::kPrefetch;
    EXPECT_EQ(Check(entry).field, EntryField::kClass);
  }
}

TEST_F(EntryCheckTest, RandomBytesAreNeverFollowedOutOfRange) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 100000; ++i) {
    SubmissionEntry entry = LocalClient::FillExpert(1, 0, 0);
    auto* bytes = reinterpret_cast<unsigned char*>(&entry);
    for (int flips = 0; flips < 4; ++flips) {
      bytes[random() % sizeof(entry)] = static_cast<unsigned char>(random());
    }
    if (Check(entry).code == absl::StatusCode::kOk && entry.opcode == Opcode::kFillExpert) {
      ASSERT_LT(entry.layer, source_.layer_count());
      ASSERT_LT(entry.expert, source_.expert_count(entry.layer));
    }
  }
}

}  // namespace
}  // namespace sluice
