// Every block format against the values that gguf-py 0.19 decodes from the same bytes, to the bit
// (tests/data/gguf/blocks.txt: the format's id, a block, its values, in hexadecimal; file_blocks.txt: the id,
// a number of blocks, the blocks, the digest of their values).
#include "common/model/gguf_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/checksum.h"
#include "common/base/grid_tables.h"
#include "tests/support/folder_bytes.h"

namespace sluice {
namespace {

TEST(GgufBlocks, DecodeToTheBit) {
  std::istringstream lines(ReadAll("tests/data/gguf/blocks.txt"));
  std::set<uint32_t> seen;
  uint32_t id = 0;
  std::string block_hex;
  std::string values_hex;
  while (lines >> id >> block_hex >> values_hex) {
    const GgufBlockFormat* format = FindGgufFormat(id);
    ASSERT_NE(format, nullptr) << id;
    const std::string block = absl::HexStringToBytes(block_hex);
    const std::string bytes = absl::HexStringToBytes(values_hex);
    ASSERT_EQ(block.size(), format->bytes) << format->name;
    ASSERT_EQ(bytes.size(), 4 * format->values) << format->name;
    std::vector<float> values(format->values);
    format->decode(reinterpret_cast<const uint8_t*>(block.data()), values.data());
    for (uint32_t i = 0; i < values.size(); ++i) {
      float want = 0;
      std::memcpy(&want, bytes.data() + 4 * i, 4);
      ASSERT_EQ(values[i], want) << format->name << " value " << i;
    }
    seen.insert(id);
  }
  EXPECT_EQ(seen.size(), 16u);
}

// Each index of a grid once, random blocks, all bits 0 and 1, and the extremes of d; the values as gguf-py
// and ggml decode them, zeros without a sign.
TEST(GgufBlocks, FileBlocksDecodeToTheBit) {
  std::istringstream lines(ReadAll("tests/data/gguf/file_blocks.txt"));
  std::set<Encoding> seen;
  uint32_t id = 0;
  size_t count = 0;
  std::string blocks_hex;
  std::string digest;
  while (lines >> id >> count >> blocks_hex >> digest) {
    const GgufBlockFormat* format = FindGgufFormat(id);
    ASSERT_NE(format, nullptr) << id;
    const std::string bytes = absl::HexStringToBytes(blocks_hex);
    ASSERT_EQ(bytes.size(), count * format->bytes) << format->name;
    std::vector<float> values(count * format->values);
    for (size_t b = 0; b < count; ++b) {
      format->decode(reinterpret_cast<const uint8_t*>(bytes.data()) + b * format->bytes,
                     &values[b * format->values]);
    }
    for (float& value : values) value += 0.0f;
    EXPECT_EQ(DigestOf(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                                           values.size() * sizeof(float)))
                  .ToHex(),
              digest)
        << format->name;
    seen.insert(format->rows);
  }
  EXPECT_EQ(seen.size(), std::size(kFileBlockEncodings));
}

template <typename Grid>
std::string GridDigest(const Grid& grid) {
  return DigestOf(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(grid.data()),
                                      grid.size() * sizeof(grid[0])))
      .ToHex();
}

// Digests of gguf-py 0.19's tables as int8; IQ1's times 8.
TEST(GgufBlocks, GridsAreThoseOfTheFileFormat) {
  EXPECT_EQ(GridDigest(kIq2XxsGrid), "60ba8e78317e21cf3de7d625dc4b1f07");
  EXPECT_EQ(GridDigest(kIq2XsGrid), "cba556c4dd65a4a979a31619c2aa4027");
  EXPECT_EQ(GridDigest(kIq2SGrid), "6c4d531c42a1b6b9c5212534caf3b5bf");
  EXPECT_EQ(GridDigest(kIq3XxsGrid), "e7fa6a721caa81a4cb32234e3a15f5a7");
  EXPECT_EQ(GridDigest(kIq3SGrid), "cab5b9ef11a971becd5ca92a3ff62aa6");
  EXPECT_EQ(GridDigest(kIq1SGrid), "fc984ea01aa4d0f65881362d5042f9a8");
}

TEST(GgufBlocks, TheStandardsNanExponentIsNan) {
  const uint8_t block[17] = {255, 0x11};
  float values[32];
  FindGgufFormat(kGgufMxfp4)->decode(block, values);
  EXPECT_TRUE(std::isnan(values[0]));
}

TEST(GgufBlocks, FormatsThatAreNotDecodedHaveNames) {
  for (const uint32_t id : {9u, 36u, 139u, 142u, 216u}) EXPECT_EQ(FindGgufFormat(id), nullptr);
  EXPECT_EQ(DescribeGgufFormat(9), "Q8_1");
  EXPECT_EQ(DescribeGgufFormat(145), "IQ2_KS, made for ik_llama.cpp,");
  EXPECT_EQ(DescribeGgufFormat(153), "IQ2_KT, made for ik_llama.cpp,");
  EXPECT_EQ(DescribeGgufFormat(212), "Q4_K with interleaved rows, made for ik_llama.cpp,");
  EXPECT_EQ(DescribeGgufFormat(339), "IQ4_K with interleaved rows, made for ik_llama.cpp,");
  EXPECT_EQ(DescribeGgufFormat(142), "PQ2_0, made for PrismML's fork,");
  EXPECT_EQ(DescribeGgufFormat(1234), "type 1234");
}

}  // namespace
}  // namespace sluice
