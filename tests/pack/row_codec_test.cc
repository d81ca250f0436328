// Rows: the layout's numbers, and encode -> decode against the definition.
#include "pack/row_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/half.h"
#include "common/model/gguf_blocks.h"
#include "pack/pack_format.h"
#include "pack/row_layout.h"
#include "pack/writer/synth_weights.h"
#include "tests/support/folder_bytes.h"

namespace sluice {
namespace {

// The frozen arithmetic, by hand.
static_assert(PlaneBytes(8, 2048) == 2048 && PlaneBytes(8, 1) == 32 && PlaneBytes(8, 33) == 64);
static_assert(PlaneBytes(4, 64) == 32 && PlaneBytes(4, 65) == 64 && PlaneBytes(2, 128) == 32);
static_assert(RowBytes(MakeDescriptor(Encoding::kBf16), 7) == 14);
static_assert(RowBytes(MakeDescriptor(Encoding::kQ8, 64), 2048) == 2048 + 4 * 32);
static_assert(RowBytes(MakeDescriptor(Encoding::kQ8, 64), 65) == 96 + 4 * 2);
static_assert(RowBytes(MakeDescriptor(Encoding::kQ4, 32), 4096) == 2048 + 4 * 128);
static_assert(RowBytes(MakeDescriptor(Encoding::kQ3, 64), 2048) == 512 + 256 + 4 * 32);
static_assert(RowBytes(MakeDescriptor(Encoding::kQ2, 16), 2048) == 512 + 4 * 128);
static_assert(RowBytes({Encoding::kQ2, 8, 64, 32}, 2048) == 512 + 32 + 32 + 8);
static_assert(RowBytes(MakeDescriptor(Encoding::kMxfp4), 2880) == 1440 + 90);
static_assert(ZeroOffset(MakeDescriptor(Encoding::kQ8, 64), 2048) == 2048 + 64);
static_assert(RoundStride(512) == 512 && RoundStride(513) == 576 && RoundStride(500) == 512 &&
              RoundStride(1) == 16);
static_assert(LocateCode(8, 17).byte_offset == 2 && LocateCode(8, 17).shift == 8);
static_assert(LocateCode(4, 64 + 16 * 3 + 5).byte_offset == 32 + 10 &&
              LocateCode(4, 64 + 16 * 3 + 5).shift == 12);
static_assert(LocateCode(2, 127).byte_offset == 30 && LocateCode(2, 127).shift == 14);
static_assert(LocateCode(1, 255).byte_offset == 30 && LocateCode(1, 255).shift == 15);
// Fifth bits of four blocks, and upper pairs of two, in a block each: those of a byte's two codes are in the
// same byte.
static_assert(LocateHighCode(1, 0).byte_offset == 0 && LocateHighCode(1, 0).shift == 0);
static_assert(LocateHighCode(1, 16).shift == 1 && LocateHighCode(1, 32).shift == 8);
static_assert(LocateHighCode(1, 64 * 3 + 16 * 3 + 5).byte_offset == 10 &&
              LocateHighCode(1, 64 * 3 + 16 * 3 + 5).shift == 8 + 7);
static_assert(LocateHighCode(2, 64 + 16 * 2 + 1).byte_offset == 2 &&
              LocateHighCode(2, 64 + 16 * 2 + 1).shift == 8 + 4);
static_assert(LocateHighCode(2, 128).byte_offset == 32 && LocateHighCode(1, 256).byte_offset == 32);
static_assert(!IsValidDescriptor({blocks::kQ4_K, 8, 32, 16}) &&
              !IsValidDescriptor({blocks::kQ4_0, 16, 64, 0}) && !IsValidDescriptor({Encoding{90}, 8, 32, 8}));
static_assert(!IsValidDescriptor({Encoding::kQ8, 16, 24, 0}) &&
              !IsValidDescriptor({Encoding::kBf16, 0, 64, 0}));
static_assert(IsValidDescriptor({Encoding::kQ4, 8, 64, 256}) &&
              !IsValidDescriptor({Encoding::kQ4, 8, 64, 257}));

std::vector<float> RandomRow(size_t columns, float scale, uint64_t seed) {
  std::vector<float> row(columns);
  NormalStream(seed).Fill(scale, absl::MakeSpan(row));
  return row;
}

std::vector<float> RoundTrip(const EncodingDescriptor& d, const std::vector<float>& row) {
  std::vector<std::byte> bytes(RowBytes(d, row.size()));
  EXPECT_EQ(EncodeRow(d, row, bytes.data()), -1);
  std::vector<float> out(row.size());
  EXPECT_TRUE(DecodeRow(d, bytes.data(), absl::MakeSpan(out)).ok());
  return out;
}

TEST(RowCodec, ExpertPlansInterleaveByTheLayout) {
  ExpertFormat format;
  format.parts = {MakeDescriptor(Encoding::kQ2, 64), MakeDescriptor(Encoding::kBf16),
                  MakeDescriptor(Encoding::kQ8, 64)};
  const ExpertPlan separate = PlanExpert(format, 40, 300);
  EXPECT_EQ(separate.streams, 3u);
  EXPECT_EQ(separate.parts[0].stride, 128u);  // 96 + 4 * 5 = 116
  EXPECT_EQ(separate.parts[1].stride, 640u);  // 600
  EXPECT_EQ(separate.parts[2].stride, 352u);  // 320 + 4 * 5 = 340
  format.layout = ExpertLayout::kUpGatedown;
  const ExpertPlan together = PlanExpert(format, 40, 300);
  EXPECT_EQ(together.streams, 2u);
  EXPECT_EQ(together.parts[1].stream, 1u);
  EXPECT_EQ(together.parts[1].base, 0u);
  EXPECT_EQ(together.parts[2].stream, 1u);
  EXPECT_EQ(together.parts[2].base, 640u);
  EXPECT_EQ(together.parts[2].stride, 1024u);  // 640 + 340 = 980
  format.layout = ExpertLayout::kGateUpdown;
  const ExpertPlan lead = PlanExpert(format, 40, 300);
  EXPECT_EQ(lead.parts[1].stream, 0u);
  EXPECT_EQ(lead.parts[0].stream, 1u);
  EXPECT_EQ(lead.parts[2].base, 128u);
  EXPECT_EQ(lead.parts[2].stride, 480u);  // 128 + 340 = 468
}

TEST(RowCodec, DownByOutputsHasARowForEachOutput) {
  ExpertFormat format;
  format.layout = ExpertLayout::kUpGateOutputs;
  format.parts = {MakeDescriptor(Encoding::kQ2, 64), MakeDescriptor(Encoding::kBf16),
                  MakeDescriptor(Encoding::kQ8, 64)};
  const ExpertPlan plan = PlanExpert(format, 40, 300);
  EXPECT_EQ(plan.streams, 3u);
  EXPECT_EQ(plan.stream_rows, (std::array<uint32_t, kPartCount>{40, 40, 300}));
  EXPECT_EQ(plan.parts[1].stride, 640u);  // 600
  EXPECT_EQ(plan.parts[2].rows, 300u);
  EXPECT_EQ(plan.parts[2].cols, 40u);
  EXPECT_EQ(plan.parts[2].stride, 80u);  // 64 + 4
  format.gates = false;
  format.parts[1] = format.parts[0];
  const ExpertPlan gateless = PlanExpert(format, 40, 300);
  EXPECT_EQ(gateless.streams, 2u);
  EXPECT_EQ(gateless.stream_rows[1], 300u);
}

TEST(RowCodec, SixteenBitRowsAreExactForTheirType) {
  for (const size_t columns : {1, 15, 64, 333}) {
    std::vector<float> row = RandomRow(columns, 1, columns);
    EXPECT_EQ(RoundTrip(MakeDescriptor(Encoding::kF32), row), row);
    for (float& value : row) value = Bf16ToFloat(FloatToBf16(value));
    EXPECT_EQ(RoundTrip(MakeDescriptor(Encoding::kBf16), row), row);
    for (float& value : row) value = F16ToFloat(FloatToF16(value));
    EXPECT_EQ(RoundTrip(MakeDescriptor(Encoding::kF16), row), row);
  }
}

TEST(RowCodec, Q8ErrorIsWithinTheStepForEveryShapeAndScale) {
  for (const uint16_t group : {16, 32, 64, 128}) {
    for (const size_t columns : {1, 16, 31, 64, 65, 127, 500}) {
      for (const float scale : {1e-7f, 1e-4f, 1.0f, 1e4f}) {
        const std::vector<float> row = RandomRow(columns, scale, columns * group);
        const std::vector<float> back = RoundTrip(MakeDescriptor(Encoding::kQ8, group), row);
        for (size_t i = 0; i < columns; ++i) {
          const size_t begin = i / group * group;
          const size_t end = std::min<size_t>(begin + group, columns);
          const auto [low, high] = std::minmax_element(row.begin() + begin, row.begin() + end);
          const float range = std::max(*high, 0.0f) - std::min(*low, 0.0f);
          // Half a step; f16 rounding of scale (2^-11) and zero (1/16 step); steps below the smallest half.
          const float step = std::max(range / 255, 0x1p-24f);
          ASSERT_NEAR(back[i], row[i], step * (0.5f + 255 * 0x1p-11f + 0.0625f + 0.5f * (step < 0x1p-14f)))
              << columns << " " << group << " " << scale;
        }
      }
    }
  }
}

TEST(RowCodec, Q8MatchesTheReferenceErrorOfHqqAt8Bits) {
  // hqq 0.2.8 leaves a relative Frobenius error of 0.0050 on matrices like this one at 8 bits, groups of 64.
  const std::vector<float> row = RandomRow(64 * 512, 0.02f, 7);
  const std::vector<float> back = RoundTrip(MakeDescriptor(Encoding::kQ8, 64), row);
  double error = 0, norm = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    error += std::pow(back[i] - row[i], 2);
    norm += std::pow(row[i], 2);
  }
  EXPECT_LT(std::sqrt(error / norm), 0.0055);
}

TEST(RowCodec, Q8KeepsZerosConstantsAndOneSidedGroups) {
  const EncodingDescriptor d = MakeDescriptor(Encoding::kQ8, 16);
  EXPECT_EQ(RoundTrip(d, std::vector<float>(40, 0.0f)), std::vector<float>(40, 0.0f));
  for (const float value : {0.75f, -0.75f}) {
    for (const float back : RoundTrip(d, std::vector<float>(40, value)))
      EXPECT_NEAR(back, value, 0.75f * 0x1p-10f);
  }
  std::vector<float> row(16, 5.0f);
  row[3] = 5.01f;
  for (const float back : RoundTrip(d, row)) EXPECT_NEAR(back, 5.0f, 0.02f);
}

const std::vector<EncodingDescriptor>& QuantizedRows() {
  static const auto* const rows = [] {
    auto* list = new std::vector<EncodingDescriptor>;
    for (const Encoding encoding : {Encoding::kQ8, Encoding::kQ4, Encoding::kQ3, Encoding::kQ2}) {
      for (const uint16_t group : {16, 48, 64, 128}) {
        list->push_back(MakeDescriptor(encoding, group));
        for (const uint16_t super_group : {1, 3, 256}) list->push_back({encoding, 8, group, super_group});
      }
    }
    return list;
  }();
  return *rows;
}

// The code of a column, directly from the format's definition.
uint32_t CodeAt(const EncodingDescriptor& d, const std::vector<std::byte>& row, size_t columns, size_t c) {
  const auto read = [&](uint32_t bits, size_t base) {
    const CodeLocation place = LocateCode(bits, c);
    uint16_t word = 0;
    std::memcpy(&word, row.data() + base + place.byte_offset, 2);
    return (word >> place.shift) & ((1u << bits) - 1);
  };
  if (d.encoding != Encoding::kQ3) return read(BitsOf(d.encoding), 0);
  return read(2, 0) | read(1, PlaneBytes(2, columns)) << 2;
}

TEST(RowCodec, QuantizedRowsDecodeToCodeMinusZeroTimesScale) {
  for (const EncodingDescriptor& d : QuantizedRows()) {
    for (const size_t columns : {1, 15, 16, 17, 64, 200, 515}) {
      const std::vector<float> row = RandomRow(columns, 0.02f, columns);
      std::vector<std::byte> bytes(RowBytes(d, columns));
      ASSERT_EQ(EncodeRow(d, row, bytes.data()), -1);
      std::vector<float> back(columns);
      ASSERT_TRUE(DecodeRow(d, bytes.data(), absl::MakeSpan(back)).ok());
      const auto half = [&](size_t at) {
        uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + at, 2);
        return F16ToFloat(bits);
      };
      const auto meta = [&](size_t at, size_t g, size_t pair) {
        if (d.super_group == 0) return half(at + 2 * g);
        const size_t super = SuperGroupOffset(d, columns) + g / d.super_group * 8 + pair * 4;
        return (static_cast<float>(static_cast<uint8_t>(bytes[at + g])) - half(super + 2)) * half(super);
      };
      for (size_t c = 0; c < columns; ++c) {
        const float scale = meta(ScaleOffset(d, columns), c / d.group, 0);
        const float zero = meta(ZeroOffset(d, columns), c / d.group, 1);
        const float code = static_cast<float>(CodeAt(d, bytes, columns, c));
        ASSERT_EQ(back[c], (code - zero) * scale)
            << DescribeEncoding(d) << " column " << c << " of " << columns;
      }
    }
  }
}

TEST(RowCodec, FewerBitsLoseMoreAndEightBitScalesLittle) {
  const std::vector<float> row = RandomRow(4096, 0.02f, 11);
  const auto error = [&](const EncodingDescriptor& d) {
    const std::vector<float> back = RoundTrip(d, row);
    double sum = 0;
    double norm = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      sum += std::pow(back[i] - row[i], 2);
      norm += std::pow(row[i], 2);
    }
    return std::sqrt(sum / norm);
  };
  double last = 0;
  for (const Encoding encoding : {Encoding::kQ8, Encoding::kQ4, Encoding::kQ3, Encoding::kQ2}) {
    const double halves = error(MakeDescriptor(encoding, 64));
    EXPECT_GT(halves, 2 * last);
    EXPECT_LT(error({encoding, 8, 64, 64}), 1.02 * halves + 0.003) << EncodingName(encoding);
    last = halves;
  }
  EXPECT_LT(last, 0.45);
}

TEST(RowCodec, RowsOfZerosAndOfOneValueAreExact) {
  // From below the smallest half to above the largest; all have at most 11 significant bits.
  for (const float value : {0.0f, 0.75f, -0.75f, 0x1.5p-3f, 0x1.8p-20f, -0x1.8p-30f, 65504.0f, -98304.0f}) {
    for (const EncodingDescriptor& d : QuantizedRows()) {
      const bool tiny = value != 0 && std::fabs(value) < 0x1p-14f;
      if (d.meta_bits == 8 && (tiny || std::fabs(value) > 65504.0f)) continue;
      const std::vector<float> row(200, value);
      EXPECT_EQ(RoundTrip(d, row), row) << DescribeEncoding(d) << " " << value;
    }
  }
}

TEST(RowCodec, ConstantGroupsAreExactBesideOthers) {
  for (const EncodingDescriptor& d : QuantizedRows()) {
    if (d.meta_bits == 8) continue;
    std::vector<float> row = RandomRow(4 * d.group, 1, 3);
    std::fill_n(row.begin() + d.group, d.group, 0.0f);
    std::fill_n(row.begin() + 2 * d.group, d.group, -1.5f);
    const std::vector<float> back = RoundTrip(d, row);
    for (size_t i = d.group; i < 3u * d.group; ++i) EXPECT_EQ(back[i], row[i]) << DescribeEncoding(d);
  }
}

TEST(RowCodec, EightBitScalesKeepZeroAndOneSidedGroups) {
  for (const EncodingDescriptor& d : QuantizedRows()) {
    if (d.meta_bits != 8) continue;
    std::vector<float> row = RandomRow(4 * d.group, 1, 3);
    std::fill_n(row.begin() + d.group, d.group, 0.0f);
    for (size_t i = 2 * d.group; i < 3u * d.group; ++i) row[i] = 5.0f + 0.01f * row[i];
    const std::vector<float> back = RoundTrip(d, row);
    for (size_t i = d.group; i < 2u * d.group; ++i) EXPECT_NEAR(back[i], 0, 0.02) << DescribeEncoding(d);
    for (size_t i = 2 * d.group; i < 3u * d.group; ++i) EXPECT_NEAR(back[i], 5, 0.5) << DescribeEncoding(d);
  }
}

TEST(RowCodec, TailsArePaddedWithZerosInEveryPlane) {
  for (const EncodingDescriptor& d : QuantizedRows()) {
    constexpr size_t kColumns = 20;
    std::vector<std::byte> bytes(RowBytes(d, kColumns), std::byte{0xff});
    ASSERT_EQ(EncodeRow(d, RandomRow(kColumns, 1, 1), bytes.data()), -1);
    // The number of codes in the shorter plane's last block.
    const size_t padded = 32 * 8 / (d.encoding == Encoding::kQ3 ? 2 : BitsOf(d.encoding));
    for (size_t column = kColumns; column < padded; ++column) {
      EXPECT_EQ(CodeAt(d, bytes, kColumns, column), 0u) << DescribeEncoding(d);
    }
  }
}

TEST(RowCodec, ValuesThatDoNotFitAreReportedByIndex) {
  std::vector<float> row(100, 1.0f);
  std::vector<std::byte> bytes(1000);
  row[70] = 70000.0f;
  EXPECT_EQ(EncodeRow(MakeDescriptor(Encoding::kF16), row, bytes.data()), 70);
  EXPECT_EQ(EncodeRow(MakeDescriptor(Encoding::kBf16), row, bytes.data()), -1);
  row[70] = 3.4e38f;
  EXPECT_EQ(EncodeRow(MakeDescriptor(Encoding::kBf16), row, bytes.data()), 70);
  row[70] = 1e9f;
  for (const EncodingDescriptor& d : QuantizedRows()) {
    EXPECT_EQ(EncodeRow(d, row, bytes.data()), 70) << DescribeEncoding(d);
  }
}

TEST(RowCodec, Mxfp4RowsHoldEveryCodeUnderEveryScale) {
  EXPECT_FALSE(CanEncode(Encoding::kMxfp4));
  const EncodingDescriptor mxfp4 = MakeDescriptor(Encoding::kMxfp4);
  for (int scale = 0; scale <= 252; ++scale) {
    // Groups whose largest value is each of the codes, a short one at the end.
    std::vector<float> values;
    for (uint32_t largest = 0; largest < 8; ++largest) {
      for (uint32_t i = 0; i < 32; ++i)
        values.push_back(Mxfp4Value(i % (largest + 1) + (i % 3 == 0 ? 8 : 0), scale));
    }
    values.resize(values.size() - 13);
    std::vector<std::byte> row(RowBytes(mxfp4, values.size()));
    ASSERT_EQ(EncodeRow(mxfp4, values, row.data()), -1) << scale;
    std::vector<float> decoded(values.size());
    ASSERT_TRUE(DecodeRow(mxfp4, row.data(), absl::MakeSpan(decoded)).ok());
    EXPECT_EQ(std::memcmp(decoded.data(), values.data(), values.size() * sizeof(float)), 0) << scale;
  }
}

TEST(RowCodec, Mxfp4RowsRefuseInexactValues) {
  std::vector<float> values(40, 0.5f);
  std::vector<std::byte> row(RowBytes(MakeDescriptor(Encoding::kMxfp4), values.size()));
  values[37] = 0.3f;
  EXPECT_EQ(EncodeRow(MakeDescriptor(Encoding::kMxfp4), values, row.data()), 37);
  values[37] = 8;  // 0.5 is no code of its scale
  EXPECT_EQ(EncodeRow(MakeDescriptor(Encoding::kMxfp4), values, row.data()), 32);
}

// gguf-py and this project decode blocks to the same values (gguf_blocks_test): rows copied from them decode
// to these values too, to the bit, beside any other blocks.
TEST(RowCodec, BlockRowsHoldTheValuesOfGgufsBlocks) {
  std::istringstream lines(ReadAll("tests/data/gguf/blocks.txt"));
  std::map<uint32_t, std::vector<std::string>> by_format;
  uint32_t id = 0;
  std::string block_hex;
  std::string values_hex;
  while (lines >> id >> block_hex >> values_hex) by_format[id].push_back(absl::HexStringToBytes(block_hex));
  size_t encodings = 0;
  for (const auto& [number, stored] : by_format) {
    const GgufBlockFormat* format = FindGgufFormat(number);
    if (format->unpack == nullptr) continue;
    ++encodings;
    const EncodingDescriptor descriptor = MakeDescriptor(format->rows);
    EXPECT_TRUE(IsValidDescriptor(descriptor)) << format->name;
    EXPECT_FALSE(CanEncode(format->rows)) << format->name;
    ASSERT_EQ(ValuesPerBlock(format->rows), format->values) << format->name;
    for (const size_t count : {size_t{1}, size_t{3}, size_t{8}, size_t{9}}) {
      std::vector<CodeBlock> blocks(count);
      std::vector<float> want(count * format->values);
      for (size_t b = 0; b < count; ++b) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(stored[b % stored.size()].data());
        format->unpack(bytes, &blocks[b]);
        format->decode(bytes, want.data() + b * format->values);
      }
      std::vector<std::byte> row(RowBytes(descriptor, want.size()));
      EncodeBlockRow(descriptor, blocks, want.size(), row.data());
      std::vector<float> got(want.size());
      ASSERT_TRUE(DecodeRow(descriptor, row.data(), absl::MakeSpan(got)).ok());
      for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << format->name << " value " << i;
    }
  }
  EXPECT_EQ(encodings, std::size(kBlockEncodings));
}

// Rows of file blocks are the file's bytes, and a factor behind NVFP4's.
TEST(RowCodec, FileBlockRowsAreTheFilesBlocks) {
  std::istringstream lines(ReadAll("tests/data/gguf/file_blocks.txt"));
  uint32_t id = 0;
  size_t count = 0;
  std::string blocks_hex;
  std::string digest;
  size_t encodings = 0;
  while (lines >> id >> count >> blocks_hex >> digest) {
    const GgufBlockFormat* format = FindGgufFormat(id);
    const std::string bytes = absl::HexStringToBytes(blocks_hex);
    const auto* from = reinterpret_cast<const uint8_t*>(bytes.data());
    const EncodingDescriptor descriptor = MakeDescriptor(format->rows);
    ++encodings;
    EXPECT_TRUE(IsValidDescriptor(descriptor)) << format->name;
    EXPECT_FALSE(CanEncode(format->rows)) << format->name;
    ASSERT_EQ(ValuesPerBlock(format->rows), format->values) << format->name;
    const bool has_factor = HasRowFactor(format->rows);
    const float factor = has_factor ? 0.75f : 1;
    std::vector<CodeBlock> blocks(count);
    std::vector<float> want(count * format->values);
    for (size_t b = 0; b < count; ++b) {
      format->unpack(from + b * format->bytes, &blocks[b]);
      blocks[b].factor = factor;
      format->decode(from + b * format->bytes, want.data() + b * format->values);
    }
    std::vector<std::byte> row(RowBytes(descriptor, want.size()));
    ASSERT_EQ(row.size(), bytes.size() + (has_factor ? 4 : 0)) << format->name;
    EncodeBlockRow(descriptor, blocks, want.size(), row.data());
    EXPECT_EQ(std::memcmp(row.data(), bytes.data(), bytes.size()), 0) << format->name;
    std::vector<float> got(want.size());
    ASSERT_TRUE(DecodeRow(descriptor, row.data(), absl::MakeSpan(got)).ok());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i], want[i] * factor) << format->name << " value " << i;
    }
  }
  EXPECT_EQ(encodings, std::size(kFileBlockEncodings));
}

// Extra size of the rows over the file's blocks: u8 scales and mins instead of 6-bit and 4-bit ones.
TEST(RowCodec, BlockRowsAreLittleLongerThanTheBlocks) {
  EXPECT_EQ(RowBytes(MakeDescriptor(blocks::kQ4_0), 2048), 2048 / 32 * 18);
  EXPECT_EQ(RowBytes(MakeDescriptor(blocks::kQ8_0), 2048), 2048 / 32 * 34);
  EXPECT_EQ(RowBytes(MakeDescriptor(blocks::kQ5_1), 2048), 2048 / 32 * 24);
  EXPECT_EQ(RowBytes(MakeDescriptor(blocks::kIq4Nl), 2048), 2048 / 32 * 18);
  EXPECT_EQ(RowBytes(MakeDescriptor(blocks::kQ6_K), 2048), 2048 / 256 * 210);
  EXPECT_EQ(RowBytes(MakeDescriptor(blocks::kQ4_K), 2048), 2048 / 256 * (144 + 4));
  EXPECT_EQ(RowBytes(MakeDescriptor(blocks::kQ5_K), 2048), 2048 / 256 * (176 + 4));
  EXPECT_EQ(RowBytes(MakeDescriptor(blocks::kIq4Xs), 2048), 2048 / 256 * (136 + 2));
}

}  // namespace
}  // namespace sluice
