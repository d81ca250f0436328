// Heads of GGUF files: valid ones are read, invalid ones are refused before anything is allocated for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/gguf_files.h"
#include "tests/common/model/gguf/gguf_builder.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<GgufHeader> Parse(const std::string& file) {
  return ParseGgufHeader(
      file.size(),
      [&file](uint64_t offset, absl::Span<std::byte> bytes) {
        EXPECT_LE(offset + bytes.size(), file.size());
        std::memcpy(bytes.data(), file.data() + offset, bytes.size());
        return absl::OkStatus();
      },
      "f");
}

std::string Error(const std::string& file) {
  const auto header = Parse(file);
  EXPECT_FALSE(header.ok());
  return std::string(header.status().message());
}

GgufBuilder Small() {
  return GgufBuilder()
      .Word("general.architecture", "llama")
      .U32("n", 7)
      .F32("x", 0.5f)
      .Words("words", {"a", "", "b"})
      .Tensor("t", {2, 3}, kGgufF32, std::string(24, 'x'))
      .Tensor("u", {32}, 8, std::string(34, 'y'));
}

TEST(GgufHeader, ReadsKeysAndTensorsOfBothVersions) {
  for (const uint32_t version : {2u, 3u}) {
    const std::string file = Small().File(version);
    const auto header = Parse(file);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->keys.Int("n", 0, 9)->value(), 7);
    EXPECT_EQ(header->keys.Real("x")->value(), 0.5);
    EXPECT_EQ(header->keys.Real("n")->value(), 7.0);
    EXPECT_EQ(**header->keys.Texts("words"), (std::vector<std::string>{"a", "", "b"}));
    EXPECT_FALSE(header->keys.Text("absent")->has_value());
    ASSERT_EQ(header->tensors.size(), 2u);
    EXPECT_EQ(header->tensors[0].dims, (std::vector<uint64_t>{2, 3}));
    EXPECT_EQ(header->tensors[0].bytes, 24u);
    EXPECT_EQ(header->tensors[1].offset - header->tensors[0].offset, 32u);
    EXPECT_EQ(file[header->tensors[1].offset], 'y');
    EXPECT_EQ(header->tensors[1].bytes, 34u);
  }
}

TEST(GgufHeader, AFileMayEndWithItsLastTensorsLastByte) {
  const std::string file = Small().File();
  EXPECT_TRUE(Parse(file.substr(0, file.size() - 30)).ok());
  EXPECT_THAT(Error(file.substr(0, file.size() - 31)), HasSubstr("tensor u: 34 bytes"));
}

TEST(GgufHeader, EveryTruncationIsRefused) {
  const std::string file = Small().File();
  for (size_t size = 0; size < file.size() - 30; ++size)
    EXPECT_FALSE(Parse(file.substr(0, size)).ok()) << size;
}

TEST(GgufHeader, KeysOfAnotherTypeOrRangeAreNamed) {
  const auto header = Parse(Small().File());
  ASSERT_TRUE(header.ok());
  EXPECT_THAT(std::string(header->keys.Int("n", 0, 6).status().message()),
              HasSubstr("f: n is 7; a whole number"));
  EXPECT_THAT(std::string(header->keys.Int("x", 0, 6).status().message()), HasSubstr("x is no whole number"));
  EXPECT_THAT(std::string(header->keys.Texts("n").status().message()), HasSubstr("n is no list of texts"));
}

TEST(GgufHeader, OtherVersionsAndByteOrdersAreNamed) {
  EXPECT_THAT(Error(Small().File(1)), HasSubstr("GGUF version 1 is not supported"));
  EXPECT_THAT(Error(Small().File(3u << 24)), HasSubstr("big-endian"));
  EXPECT_THAT(Error("GGML" + Small().File().substr(4)), HasSubstr("does not begin as a GGUF file"));
}

TEST(GgufHeader, HostileCountsAreRefused) {
  std::string file = Small().File();
  const auto with = [&](size_t at, uint64_t value) {
    std::string changed = file;
    std::memcpy(changed.data() + at, &value, sizeof(value));
    return changed;
  };
  EXPECT_THAT(Error(with(8, 1ull << 40)), HasSubstr("1099511627776 tensors"));
  EXPECT_THAT(Error(with(16, 1ull << 40)), HasSubstr("1099511627776 keys"));
  EXPECT_THAT(Error(with(24, UINT64_MAX)), HasSubstr("a text of 18446744073709551615 bytes"));
  EXPECT_THAT(
      Error(
          GgufBuilder().Key("k", 9, GgufBuilder::Bytes<uint32_t>(4) + GgufBuilder::Bytes(1ull << 60)).File()),
      HasSubstr("a list of 1152921504606846976 elements"));
  EXPECT_THAT(
      Error(GgufBuilder().Key("k", 9, GgufBuilder::Bytes<uint32_t>(13) + GgufBuilder::Bytes(1ull)).File()),
      HasSubstr("a list of type 13"));
  EXPECT_THAT(Error(GgufBuilder().Key("k", 13, std::string(64, '\0')).File()), HasSubstr("unknown type 13"));
}

TEST(GgufHeader, TensorsThatCannotBeAreNamed) {
  const auto with = [](const std::vector<uint64_t>& dims, uint32_t type) {
    return Error(GgufBuilder().Tensor("t", dims, type, std::string(64, 'x')).File());
  };
  EXPECT_THAT(with({1, 1, 1, 1, 1}, 0), HasSubstr("5 dimensions"));
  EXPECT_THAT(with({0}, 0), HasSubstr("dimensions [0]"));
  EXPECT_THAT(with({1u << 31, 1u << 31, 1u << 31}, 0), HasSubstr("dimensions ["));
  EXPECT_THAT(with({64}, 12), HasSubstr("rows of 64 values are no whole blocks of Q4_K"));
  EXPECT_THAT(with({128}, 18), HasSubstr("rows of 128 values are no whole blocks of IQ3_XXS"));
  EXPECT_THAT(with({256}, 144), HasSubstr("blocks of IQ4_KS, made for ik_llama.cpp, are not supported"));
  EXPECT_THAT(with({256}, 77), HasSubstr("blocks of type 77"));
  EXPECT_THAT(with({17}, 0), HasSubstr("68 bytes from byte 0"));
}

TEST(GgufHeader, NamesOccurOnce) {
  EXPECT_THAT(Error(GgufBuilder().U32("k", 1).U32("k", 1).File()), HasSubstr("k is there twice"));
  const std::string four(4, 'x');
  EXPECT_THAT(Error(GgufBuilder().Tensor("t", {1}, 0, four).Tensor("t", {1}, 0, four).File()),
              HasSubstr("tensor t: its name is"));
  EXPECT_THAT(Error(GgufBuilder().U32("", 1).File()), HasSubstr("an empty key"));
}

// Replaces the offset of a tensor of type Q8_0 that is stored at `from`.
std::string WithOffset(std::string file, uint64_t from, uint64_t to) {
  const std::string offset = GgufBuilder::Bytes<uint32_t>(8) + GgufBuilder::Bytes(from);
  const size_t place = file.find(offset);
  EXPECT_NE(place, std::string::npos);
  return file.replace(place + 4, 8, GgufBuilder::Bytes(to));
}

TEST(GgufHeader, TensorsMayLieInAnyOrderWithGaps) {
  // The first info's data comes last, and 32 bytes are nobody's.
  std::string file = GgufBuilder()
                         .Tensor("late", {32}, 8, std::string(34, 'x'))
                         .Tensor("t", {2, 3}, kGgufF32, std::string(24, 'y'))
                         .File();
  file = WithOffset(file, 0, 128) + std::string(64, 'z') + std::string(34, 'w');
  const auto header = Parse(file);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(file[header->tensors[0].offset], 'z');
  EXPECT_EQ(file[header->tensors[1].offset], 'y');
}

TEST(GgufHeader, OverlapsAndOddOffsetsAreNamed) {
  const std::string file = Small().File();
  EXPECT_THAT(Error(WithOffset(file, 32, 0)), HasSubstr("begins at byte 0 of the data, before tensor"));
  EXPECT_THAT(Error(WithOffset(file, 32, 33)),
              HasSubstr("tensor u begins at byte 33 of the data, no multiple"));
}

// Blocks of 128 values in 34 bytes under the id of Q2_0: the next tensor begins too early.
TEST(GgufHeader, BlocksOfAnOlderForkAreNamed) {
  EXPECT_THAT(Error(GgufBuilder()
                        .Tensor("t", {1024, 8}, 42, std::string(8 * 8 * 34, 'x'))
                        .Tensor("u", {32}, 8, std::string(34, 'y'))
                        .File()),
              HasSubstr("made by an older fork"));
  EXPECT_THAT(Error(GgufBuilder().Tensor("t", {1024, 8}, 42, std::string(8 * 8 * 34, 'x')).File()),
              HasSubstr("made by an older fork"));
}

TEST(GgufHeader, TrailingDimensionsOfOneAreDropped) {
  const auto header = Parse(GgufBuilder()
                                .Tensor("t", {2, 3, 1, 1}, kGgufF32, std::string(24, 'x'))
                                .Tensor("u", {1, 1}, kGgufF32, std::string(4, 'x'))
                                .File());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors[0].dims, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(header->tensors[1].dims, (std::vector<uint64_t>{1}));
}

TEST(GgufHeader, ListsOfListsAreSkipped) {
  const auto list = [](uint32_t type, uint64_t count, const std::string& elements) {
    return GgufBuilder::Bytes(type) + GgufBuilder::Bytes(count) + elements;
  };
  const std::string words = list(8, 2, GgufBuilder::Text("a") + GgufBuilder::Text(""));
  const std::string bytes = list(0, 3, "abc");
  const std::string nested = list(9, 2, list(9, 1, words) + bytes);
  const auto header = Parse(GgufBuilder().Key("k", 9, nested).U32("n", 7).File());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_FALSE(header->keys.Has("k"));
  EXPECT_EQ(header->keys.Int("n", 0, 9)->value(), 7);
  std::string deep = words;
  for (int i = 0; i < 9; ++i) deep = list(9, 1, deep);
  EXPECT_THAT(Error(GgufBuilder().Key("k", 9, deep).File()), HasSubstr("lists in lists"));
  EXPECT_FALSE(Parse(GgufBuilder().Key("k", 9, list(9, 1, list(0, 1u << 20, "a"))).File()).ok());
}

TEST(GgufHeader, AlignmentIsAPowerOfTwo) {
  EXPECT_THAT(Error(GgufBuilder().U32("general.alignment", 24).File()), HasSubstr("is no power of two"));
  EXPECT_TRUE(Parse(GgufBuilder().U32("general.alignment", 64).File()).ok());
  EXPECT_FALSE(Parse(GgufBuilder().U32("general.alignment", 0).File()).ok());
}

}  // namespace
}  // namespace sluice
