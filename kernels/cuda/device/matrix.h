// Encoded matrices as kernels see them, and activation rows rounded for quantized ones: plain structs that a
// launch is given by value.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>

#include "common/base/encoding.h"

namespace sluice::cuda {

// Columns whose codes lie at the same bits of a block's sixteen words (pack/row_layout.h). Groups are whole
// units, so a unit's sum of products belongs to one group.
inline constexpr uint32_t kUnit = 16;

// The numbers of a group (common/base/encoding.h: RowMeta) and their layout. Values from kScales on are of
// block encodings, whose super-groups have kBlockColumns columns.
enum class Numbers : uint8_t {
  kHalves,          // a scale and a zero, f16
  kSupers,          // the same in 8 bits, by super-groups
  kExponents,       // mxfp4's
  kScales,          // f16; the zero is the encoding's
  kScalesMins,      // f16
  kSuperScales,     // i8 times the super-group's f16; the zero is the encoding's
  kSuperScalesMins  // u8 times the super-group's f16
};
inline constexpr uint32_t kBlockColumns = 256;

// Kernels know encodings by how their codes lie: a block encoding that has the codes of another one is that
// one to them, with numbers of its own.
inline constexpr Encoding CodesOf(Encoding encoding) {
  if (!IsBlockEncoding(encoding)) {
    return encoding;
  }
  const RowTraits traits = TraitsOf(encoding);
  if (traits.low_bits == 4) {
    return IsIq4(encoding)         ? blocks::kIq4Nl
           : traits.high_bits == 0 ? Encoding::kQ4
           : traits.high_bits == 1 ? blocks::kQ5_0
                                   : blocks::kQ6_K;
  }
  return traits.low_bits == 8 ? Encoding::kQ8 : traits.high_bits == 0 ? Encoding::kQ2 : Encoding::kQ3;
}

// Aligned so that a kernel copies one by wide loads.
struct alignas(16) DeviceMatrix {
  const uint8_t* base = nullptr;
  uint64_t stride = 0;                 // bytes
  const int32_t* positions = nullptr;  // int32[rows]: where row i lies, negative: absent; or none
  uint32_t rows = 0;
  uint32_t cols = 0;
  // Offsets in a row: scales, zeros or mins, the numbers of super-groups, and the second plane: q3's third
  // bits, the upper ones of codes of five and six bits.
  uint32_t scales = 0;
  uint32_t zeros = 0;
  uint32_t supers = 0;
  uint32_t third_bits = 0;
  uint16_t group = 0;
  uint16_t super_group = 0;
  Encoding encoding = Encoding::kInvalid;  // CodesOf()
  Numbers numbers = Numbers::kHalves;
  uint8_t zero = 0;     // the encoding's
  uint8_t aligned = 0;  // base and stride are multiples of this power of two, 2..16
  bool operator==(const DeviceMatrix& other) const = default;
};

inline constexpr uint32_t GroupsOf(uint32_t cols, uint32_t group) { return (cols + group - 1) / group; }

// A rounded row of `cols` values in groups of `group` (ARITHMETIC.md 2 b), in device memory: codes of
// -127..127, a byte each, zeros up to whole kRoundedColumns; then the groups' scales, float; then the groups'
// sums of codes, int32.
inline constexpr uint32_t kRoundedColumns = 128;
inline constexpr uint32_t RoundedCodes(uint32_t cols) {
  return (cols + kRoundedColumns - 1) / kRoundedColumns * kRoundedColumns;
}
inline constexpr uint64_t RoundedScales(uint32_t cols) { return RoundedCodes(cols); }
inline constexpr uint64_t RoundedSums(uint32_t cols, uint32_t group) {
  return RoundedScales(cols) + uint64_t{4} * GroupsOf(cols, group);
}
// From row to row, a multiple of 16.
inline constexpr uint64_t RoundedStride(uint32_t cols, uint32_t group) {
  return (RoundedSums(cols, group) + uint64_t{4} * GroupsOf(cols, group) + 15) / 16 * 16;
}

// The longest row whose values a block keeps in shared memory, 32 KiB; longer ones are read again from the
// cache.
inline constexpr uint32_t kStagedColumns = 8192;

// The same in shared memory: behind every kRoundedColumns codes stand 16 bytes of nothing, so that lanes that
// read neighbouring blocks meet no bank twice; a group's scale and sum stand side by side, as floats.
inline constexpr uint32_t kStagedBytes = kRoundedColumns + 16;
inline constexpr uint32_t StagedPlace(uint32_t column) {
  return column + column / kRoundedColumns * (kStagedBytes - kRoundedColumns);
}
inline constexpr uint32_t StagedScales(uint32_t cols) {
  return RoundedCodes(cols) / kRoundedColumns * kStagedBytes;
}
inline constexpr uint32_t StagedBytes(uint32_t cols, uint32_t group) {
  return (StagedScales(cols) + 8 * GroupsOf(cols, group) + 15) / 16 * 16;
}

// Units in a block of 32 bytes of codes, two to eight.
inline constexpr uint32_t UnitsABlock(Encoding encoding) {
  return encoding == Encoding::kQ8 ? 2 : encoding == Encoding::kQ2 || encoding == Encoding::kQ3 ? 8 : 4;
}

// The order in which a warp adds the products of a row: units of a block that lie in one group are a span; a
// segment is as many blocks of whole groups as the warp has room for their sums.
inline constexpr uint32_t kSegmentBlocks = 32;
inline constexpr uint32_t kSegmentSpans = 128;
inline constexpr uint32_t SpanUnits(uint32_t units_a_block, uint32_t group) {
  const uint32_t even = (group & (0 - group)) / kUnit;  // the largest power of two in the group's units
  return even < units_a_block ? even : units_a_block;
}
inline constexpr uint32_t SegmentBlocks(uint32_t units_a_block, uint32_t group) {
  const uint32_t span = SpanUnits(units_a_block, group);
  const uint32_t room = kSegmentSpans / (units_a_block / span);
  const uint32_t period = group / kUnit / span;  // blocks that end with a group
  return (room < kSegmentBlocks ? room : kSegmentBlocks) / period * period;
}
// int32 of a segment's sums, two halves a span, and what keeps the sums of two rows in other banks.
inline constexpr uint32_t SegmentSums(uint32_t units_a_block, uint32_t group) {
  return 2 * SegmentBlocks(units_a_block, group) * units_a_block / SpanUnits(units_a_block, group) + 16;
}

}  // namespace sluice::cuda
