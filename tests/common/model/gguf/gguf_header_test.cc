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
      Error(GgufBuilder().Key("k", 9, GgufBuilder::Bytes<uint32_t>(9) + GgufBuilder::Bytes(1ull)).File()),
      HasSubstr("a list of type 9"));
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
  EXPECT_THAT(with({256}, 18), HasSubstr("blocks of IQ3_XXS are not supported"));
  EXPECT_THAT(with({256}, 144), HasSubstr("blocks of IQ4_KS are not supported"));
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

TEST(GgufHeader, OffsetsFollowFromTheOrder) {
  std::string file = Small().File();
  // The second tensor's offset is the last number before the padding: 32.
  const auto header = Parse(file);
  ASSERT_TRUE(header.ok());
  const std::string offset = GgufBuilder::Bytes<uint32_t>(8) + GgufBuilder::Bytes<uint64_t>(32);
  const size_t place = file.find(offset);
  ASSERT_NE(place, std::string::npos);
  file.replace(place + 4, 8, GgufBuilder::Bytes<uint64_t>(0));
  EXPECT_THAT(Error(file), HasSubstr("tensor u begins at byte 0 of the data, expected 32"));
}

TEST(GgufHeader, AlignmentIsAPowerOfTwo) {
  EXPECT_THAT(Error(GgufBuilder().U32("general.alignment", 24).File()), HasSubstr("is no power of two"));
  EXPECT_TRUE(Parse(GgufBuilder().U32("general.alignment", 64).File()).ok());
  EXPECT_FALSE(Parse(GgufBuilder().U32("general.alignment", 0).File()).ok());
}

}  // namespace
}  // namespace sluice
