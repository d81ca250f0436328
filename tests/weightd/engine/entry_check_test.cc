#include "weightd/engine/entry_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "tests/support/fakes/fake_extent_source.h"
#include "tests/support/local_client.h"

namespace sluice::weightd {
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
  EntryVerdict Check(const SubmissionEntry& entry) { return CheckEntry(entry, packs_, layout_, slabs_); }
  // All rows of an expert (16 of 256 bytes a part) into slab 3, just fitting.
  static SubmissionEntry Transfer() {
    SubmissionEntry entry = LocalClient::FillExpert(1, 1, 7);
    entry.opcode = Opcode::kTransfer;
    entry.slab = 3;
    for (uint64_t part = 0; part < kPartCount; ++part) {
      entry.base[part] = part * 4096;
      entry.stride[part] = 256;
    }
    return entry;
  }

  // All bytes of an extent (4096) into slab 3, just fitting.
  static SubmissionEntry ExtentTransfer() {
    SubmissionEntry entry = LocalClient::FillExtent(1, 5);
    entry.opcode = Opcode::kTransferExtent;
    entry.slab = 3;
    entry.base[0] = 2 * 4096;
    return entry;
  }

  FakeExtentSource source_{{}};  // 2 layers of 8 experts
  const std::vector<const ExtentSource*> packs_ = {&source_};
  const ControlLayout layout_;
  const std::vector<SlabView> slabs_ = {{1, 1 << 20}, {3, 3 * 4096}};
};

TEST_F(EntryCheckTest, PlainEntriesPass) {
  for (Opcode opcode : {Opcode::kNop, Opcode::kCancel, Opcode::kCancelPrefetches}) {
    EXPECT_EQ(Check(LocalClient::Plain(1, opcode)).code, absl::StatusCode::kOk);
  }
  EXPECT_EQ(Check(LocalClient::FillExpert(1, 1, 7)).code, absl::StatusCode::kOk);
  EXPECT_EQ(Check(LocalClient::FillExtent(1, source_.extent_count() - 1)).code, absl::StatusCode::kOk);
  EXPECT_EQ(Check(Transfer()).code, absl::StatusCode::kOk);
  ASSERT_EQ(source_.extent(5).length, 4096u);
  EXPECT_EQ(Check(ExtentTransfer()).code, absl::StatusCode::kOk);
}

TEST_F(EntryCheckTest, NeuronsOfDownByOutputsAreRefused) {
  const FakeExtentSource by_outputs({.outputs = 32});  // and 16 neurons
  const std::vector<const ExtentSource*> packs = {&by_outputs};
  SubmissionEntry entry = Transfer();
  entry.stride[2] = 128;
  EXPECT_EQ(CheckEntry(entry, packs, layout_, slabs_).code, absl::StatusCode::kOk);
  entry.list_count = 1;
  EXPECT_EQ(CheckEntry(entry, packs, layout_, slabs_).field, EntryField::kList);
  entry.base[1] = entry.base[2] = entry.stride[1] = entry.stride[2] = 0;
  entry.parts = PartBit(Part::kUp);
  EXPECT_EQ(CheckEntry(entry, packs, layout_, slabs_).code, absl::StatusCode::kOk);
}

TEST_F(EntryCheckTest, EveryFieldOfAnExtentsTransferIsTestedAndNamed) {
  const std::vector<Damage> damages = {
      {EntryField::kParts, kInvalid, [](SubmissionEntry* e) { e->parts = kAllParts; }},
      {EntryField::kExpert, kInvalid, [](SubmissionEntry* e) { e->expert = 1; }},
      {EntryField::kExtent, kInvalid, [](SubmissionEntry* e) { e->extent = kNoExtent; }},
      {EntryField::kExtent, kInvalid, [](SubmissionEntry* e) { e->extent = 2 * 8 * 3; }},
      {EntryField::kList, kInvalid, [](SubmissionEntry* e) { e->list_count = 1; }},
      {EntryField::kList, kInvalid, [](SubmissionEntry* e) { e->list_offset = 1; }},
      {EntryField::kTile, kInvalid, [](SubmissionEntry* e) { e->tile_neurons = 8; }},
      {EntryField::kSlab, kInvalid, [](SubmissionEntry* e) { e->slab = kNoSlab; }},
      {EntryField::kSlab, kInvalid, [](SubmissionEntry* e) { e->slab = 2; }},
      {EntryField::kBase, kInvalid, [](SubmissionEntry* e) { e->base[0] += 1; }},
      {EntryField::kBase, kInvalid, [](SubmissionEntry* e) { e->base[0] = ~uint64_t{0} - 4095; }},
      {EntryField::kBase, kInvalid, [](SubmissionEntry* e) { e->base[1] = 64; }},
      {EntryField::kStride, kInvalid, [](SubmissionEntry* e) { e->stride[0] = 64; }},
      {EntryField::kTarget, kInvalid, [](SubmissionEntry* e) { e->target = 5; }},
      {EntryField::kReserved, kInvalid, [](SubmissionEntry* e) { e->reserved = 1; }},
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    SubmissionEntry entry = ExtentTransfer();
    damages[i].apply(&entry);
    const EntryVerdict verdict = Check(entry);
    EXPECT_EQ(verdict.field, damages[i].field) << i;
    EXPECT_EQ(verdict.code, damages[i].code) << i;
  }
}

TEST_F(EntryCheckTest, EveryFieldOfAFillIsTestedAndNamed) {
  const std::vector<Damage> damages = {
      {EntryField::kOpcode, kUnbuilt, [](SubmissionEntry* e) { e->opcode = static_cast<Opcode>(999); }},
      {EntryField::kClass, kInvalid,
       [](SubmissionEntry* e) { e->request_class = static_cast<RequestClass>(2); }},
      {EntryField::kParts, kInvalid, [](SubmissionEntry* e) { e->parts = 0; }},
      {EntryField::kParts, kInvalid, [](SubmissionEntry* e) { e->parts = 0x8; }},
      {EntryField::kFlags, kUnbuilt, [](SubmissionEntry* e) { e->flags = 2; }},
      {EntryField::kPack, kInvalid, [](SubmissionEntry* e) { e->pack = 1; }},
      {EntryField::kLayer, kInvalid, [](SubmissionEntry* e) { e->layer = 2; }},
      {EntryField::kExpert, kInvalid, [](SubmissionEntry* e) { e->expert = 8; }},
      {EntryField::kExtent, kInvalid, [](SubmissionEntry* e) { e->extent = 0; }},
      {EntryField::kList, kInvalid, [](SubmissionEntry* e) { e->list_offset = 0xffffffff; }},
      {EntryField::kList, kInvalid,
       [](SubmissionEntry* e) { e->list_offset = 0xffffffff, e->list_count = 0xffffffff; }},
      {EntryField::kList, kInvalid, [](SubmissionEntry* e) { e->list_count = 3; }},
      {EntryField::kSlab, kInvalid, [](SubmissionEntry* e) { e->slab = 0; }},
      {EntryField::kTile, kInvalid, [](SubmissionEntry* e) { e->tile_neurons = 8; }},
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

TEST_F(EntryCheckTest, EveryFieldOfATransferIsTestedAndNamed) {
  const std::vector<Damage> damages = {
      {EntryField::kParts, kInvalid, [](SubmissionEntry* e) { e->parts = 0; }},
      {EntryField::kLayer, kInvalid, [](SubmissionEntry* e) { e->layer = 2; }},
      {EntryField::kExpert, kInvalid, [](SubmissionEntry* e) { e->expert = 8; }},
      {EntryField::kExtent, kInvalid, [](SubmissionEntry* e) { e->extent = 3; }},
      {EntryField::kSlab, kInvalid, [](SubmissionEntry* e) { e->slab = kNoSlab; }},
      {EntryField::kSlab, kInvalid, [](SubmissionEntry* e) { e->slab = 2; }},
      {EntryField::kList, kInvalid, [](SubmissionEntry* e) { e->list_offset = 1; }},
      {EntryField::kList, kInvalid, [](SubmissionEntry* e) { e->list_count = 17; }},
      {EntryField::kList, kInvalid,
       [](SubmissionEntry* e) { e->list_offset = 0xffffffff, e->list_count = 2; }},
      {EntryField::kBase, kInvalid, [](SubmissionEntry* e) { e->parts = 3; }},
      {EntryField::kStride, kInvalid, [](SubmissionEntry* e) { e->parts = 3, e->base[2] = 0; }},
      {EntryField::kStride, kInvalid, [](SubmissionEntry* e) { e->base[2] += 1; }},
      {EntryField::kBase, kInvalid, [](SubmissionEntry* e) { e->base[1] = 3 * 4096 - 255; }},
      {EntryField::kBase, kInvalid, [](SubmissionEntry* e) { e->base[0] = ~uint64_t{0} - 200; }},
      {EntryField::kStride, kInvalid, [](SubmissionEntry* e) { e->stride[1] = 255; }},
      {EntryField::kStride, kInvalid, [](SubmissionEntry* e) { e->stride[0] = 0; }},
      {EntryField::kStride, kInvalid, [](SubmissionEntry* e) { e->stride[1] = ~uint64_t{0} / 15 + 2; }},
      {EntryField::kTarget, kInvalid, [](SubmissionEntry* e) { e->target = 5; }},
      {EntryField::kReserved, kInvalid, [](SubmissionEntry* e) { e->reserved = 1; }},
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    SubmissionEntry entry = Transfer();
    damages[i].apply(&entry);
    const EntryVerdict verdict = Check(entry);
    EXPECT_EQ(verdict.field, damages[i].field) << "damage " << i;
    EXPECT_EQ(verdict.code, damages[i].code) << "damage " << i;
  }
}

TEST_F(EntryCheckTest, ATransferMayFillASlabToItsLastByte) {
  SubmissionEntry entry = Transfer();
  entry.base[2] = 3 * 4096 - 256;
  entry.list_count = 1;
  EXPECT_EQ(Check(entry).code, absl::StatusCode::kOk) << "one row";
  entry.list_count = 2;
  EXPECT_EQ(Check(entry).field, EntryField::kStride);
}

TEST_F(EntryCheckTest, ListsAreAscendingDistinctAndOfThisExpert) {
  const SubmissionEntry entry = Transfer();
  const auto check = [&](std::vector<uint32_t> neurons) {
    return CheckNeurons(entry, neurons, source_).code;
  };
  EXPECT_EQ(check({}), absl::StatusCode::kOk);
  EXPECT_EQ(check({0, 1, 7, 15}), absl::StatusCode::kOk);
  EXPECT_EQ(check({0, 1, 7, 16}), kInvalid);
  EXPECT_EQ(check({3, 3}), kInvalid);
  EXPECT_EQ(check({5, 4}), kInvalid);
  EXPECT_EQ(check({0xffffffff}), kInvalid);
  EXPECT_EQ(check({0xffffffff, 0}), kInvalid);
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

TEST_F(EntryCheckTest, NoRandomTransferLeavesItsSlab) {
  std::mt19937_64 random(8);
  int passed = 0;
  for (int i = 0; i < 200000; ++i) {
    SubmissionEntry entry = Transfer();
    auto* bytes = reinterpret_cast<unsigned char*>(&entry);
    // Offsets of parts, list, bases and strides.
    const size_t from =
        random() % 4 == 0 ? offsetof(SubmissionEntry, parts) : offsetof(SubmissionEntry, list_offset);
    for (int flips = 0; flips < 2; ++flips) {
      bytes[from + random() % (offsetof(SubmissionEntry, target) - from)] =
          static_cast<unsigned char>(random() % 4 == 0 ? random() : 0);
    }
    if (Check(entry).code != absl::StatusCode::kOk || entry.opcode != Opcode::kTransfer) {
      continue;
    }
    ++passed;
    uint64_t slab_bytes = 0;
    for (const SlabView& slab : slabs_) {
      slab_bytes = slab.number == entry.slab ? slab.bytes : slab_bytes;
    }
    for (int part = 0; part < kPartCount; ++part) {
      if ((entry.parts >> part & 1) != 0) {
        const uint64_t rows = entry.list_count == 0 ? 16 : entry.list_count;
        ASSERT_LE(rows, 16u);
        ASSERT_LE(entry.base[part], slab_bytes);
        ASSERT_TRUE(rows == 1 || entry.stride[part] <= slab_bytes);
        ASSERT_LE(entry.base[part] + (rows - 1) * entry.stride[part] + 256, slab_bytes);
      }
    }
  }
  EXPECT_GT(passed, 1000);
}

}  // namespace
}  // namespace sluice::weightd
