// Rows: the layout's numbers, and encode -> decode against the definition.
#include "common/pack/row_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/half.h"
#include "common/pack/mxfp4_row.h"
#include "common/pack/pack_format.h"
#include "common/pack/row_layout.h"
#include "common/pack/synth_weights.h"

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
static_assert(PlaceOfCode(8, 17).byte_offset == 2 && PlaceOfCode(8, 17).shift == 8);
static_assert(PlaceOfCode(4, 64 + 16 * 3 + 5).byte_offset == 32 + 10 &&
              PlaceOfCode(4, 64 + 16 * 3 + 5).shift == 12);
static_assert(PlaceOfCode(2, 127).byte_offset == 30 && PlaceOfCode(2, 127).shift == 14);
static_assert(PlaceOfCode(1, 255).byte_offset == 30 && PlaceOfCode(1, 255).shift == 15);
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
  const ExpertPlan separate = PlanExpert(format, 300);
  EXPECT_EQ(separate.streams, 3u);
  EXPECT_EQ(separate.parts[0].stride, 128u);  // 96 + 4 * 5 = 116
  EXPECT_EQ(separate.parts[1].stride, 640u);  // 600
  EXPECT_EQ(separate.parts[2].stride, 352u);  // 320 + 4 * 5 = 340
  format.layout = ExpertLayout::kUpGatedown;
  const ExpertPlan together = PlanExpert(format, 300);
  EXPECT_EQ(together.streams, 2u);
  EXPECT_EQ(together.parts[1].stream, 1u);
  EXPECT_EQ(together.parts[1].base, 0u);
  EXPECT_EQ(together.parts[2].stream, 1u);
  EXPECT_EQ(together.parts[2].base, 640u);
  EXPECT_EQ(together.parts[2].stride, 1024u);  // 640 + 340 = 980
  format.layout = ExpertLayout::kGateUpdown;
  const ExpertPlan lead = PlanExpert(format, 300);
  EXPECT_EQ(lead.parts[1].stream, 0u);
  EXPECT_EQ(lead.parts[0].stream, 1u);
  EXPECT_EQ(lead.parts[2].base, 128u);
  EXPECT_EQ(lead.parts[2].stride, 480u);  // 128 + 340 = 468
}

TEST(RowCodec, FloatRowsOfSixteenBitsAreExactForValuesOfTheirType) {
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

TEST(RowCodec, TailsArePaddedWithZeros) {
  const EncodingDescriptor d = MakeDescriptor(Encoding::kQ8, 16);
  std::vector<std::byte> bytes(RowBytes(d, 20), std::byte{0xff});
  ASSERT_EQ(EncodeRow(d, RandomRow(20, 1, 1), bytes.data()), -1);
  for (size_t column = 20; column < 32; ++column) {
    const CodePlace place = PlaceOfCode(8, column);
    EXPECT_EQ(bytes[place.byte_offset + place.shift / 8], std::byte{0});
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
  EXPECT_EQ(EncodeRow(MakeDescriptor(Encoding::kQ8, 64), row, bytes.data()), 64);
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

TEST(RowCodec, Mxfp4RowsRefuseWhatTheyWouldRound) {
  std::vector<float> values(40, 0.5f);
  std::vector<std::byte> row(RowBytes(MakeDescriptor(Encoding::kMxfp4), values.size()));
  values[37] = 0.3f;
  EXPECT_EQ(EncodeRow(MakeDescriptor(Encoding::kMxfp4), values, row.data()), 37);
  values[37] = 8;  // 0.5 is no code of its scale
  EXPECT_EQ(EncodeRow(MakeDescriptor(Encoding::kMxfp4), values, row.data()), 32);
}

}  // namespace
}  // namespace sluice
