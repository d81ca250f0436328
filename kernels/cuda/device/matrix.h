// Encoded matrices as kernels see them, and activation rows rounded for quantized ones: plain structs that a
// launch is given by value.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>

#include "common/encoding.h"

namespace sluice::cuda {

// Columns whose codes lie at the same bits of a block's sixteen words (pack/row_layout.h). Groups are whole
// units, so a unit's sum of products belongs to one group.
inline constexpr uint32_t kUnit = 16;

struct DeviceMatrix {
  const uint8_t* base = nullptr;
  uint64_t stride = 0;                 // bytes
  const int32_t* positions = nullptr;  // int32[rows]: where row i lies, negative: absent; or none
  uint32_t rows = 0;
  uint32_t cols = 0;
  // Offsets in a row: scales, zeros, the quadruples of super-groups, and q3's plane of third bits.
  uint32_t scales = 0;
  uint32_t zeros = 0;
  uint32_t supers = 0;
  uint32_t third_bits = 0;
  uint16_t group = 0;
  uint16_t super_group = 0;
  Encoding encoding = Encoding::kInvalid;
  uint8_t meta_bits = 0;
  uint8_t aligned = 0;  // base and stride are multiples of this power of two, 2..16
};

// A rounded row of `cols` values in groups of `group` (ARITHMETIC.md 2 b): codes of -127..127, two bytes
// each, whole units, in each four of them the order 0, 2, 1, 3 in which a multiply-add of two pairs takes
// them; then the groups' scales, float; then the groups' sums of codes, int32.
inline constexpr uint32_t UnitsOf(uint32_t cols) { return (cols + kUnit - 1) / kUnit; }
inline constexpr uint32_t GroupsOf(uint32_t cols, uint32_t group) { return (cols + group - 1) / group; }
inline constexpr uint64_t RoundedScales(uint32_t cols) { return uint64_t{2} * kUnit * UnitsOf(cols); }
inline constexpr uint64_t RoundedSums(uint32_t cols, uint32_t group) {
  return RoundedScales(cols) + uint64_t{4} * GroupsOf(cols, group);
}
// From row to row, a multiple of 16.
inline constexpr uint64_t RoundedStride(uint32_t cols, uint32_t group) {
  return (RoundedSums(cols, group) + uint64_t{4} * GroupsOf(cols, group) + 15) / 16 * 16;
}

}  // namespace sluice::cuda
