// Every block format against the values that gguf-py 0.19 decodes from the same bytes, to the bit
// (tests/data/gguf/blocks.txt: the format's id, a block, its values, in hexadecimal).
#include "common/model/gguf_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/escaping.h"
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

TEST(GgufBlocks, TheStandardsNanExponentIsNan) {
  const uint8_t block[17] = {255, 0x11};
  float values[32];
  FindGgufFormat(kGgufMxfp4)->decode(block, values);
  EXPECT_TRUE(std::isnan(values[0]));
}

TEST(GgufBlocks, FormatsThatAreNotDecodedHaveNames) {
  for (const uint32_t id : {16u, 18u, 19u, 40u, 139u}) EXPECT_EQ(FindGgufFormat(id), nullptr);
  EXPECT_EQ(GgufFormatName(19), "IQ1_S");
  EXPECT_EQ(GgufFormatName(1234), "type 1234");
}

}  // namespace
}  // namespace sluice
