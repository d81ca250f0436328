// Half-quadratic quantization (HQQ, Badri and Shaji 2023, "Half-Quadratic Quantization of Large Machine
// Learning Models"), the zero-point solver of FloE 3.2 and CORM 4.1: per group minimise ||w - (code - zero) *
// scale||_p^p, p = 0.7, over the zero, with the scale fixed by the group's range.
//
// One group at a time, so that any row can be encoded alone, in any order, on any thread, to the same bits:
// sums run over 16 fixed lanes and no multiply-add is contracted. Different from the reference package, which
// stops all groups of a matrix together: here every group stops when its own error no longer falls, and keeps
// its best zero.
//
// Thread safety: a pure function.
#ifndef SLUICE_COMMON_QUANT_HQQ_H_
#define SLUICE_COMMON_QUANT_HQQ_H_

#include <cstdint>

#include "absl/types/span.h"

namespace sluice {

// A weight of the group is (code - zero) * scale. Both are finite and exactly representable in f16.
struct GroupQuantizer {
  float scale = 0;
  float zero = 0;
};

inline constexpr uint32_t kMaxQuantGroup = 128;

// Chooses scale and zero for `weights` (1..kMaxQuantGroup finite values) and codes of `bits` (2, 3, 4 or 8)
// bits, each 0 .. 2^bits - 1, chosen after scale and zero were rounded to f16. A group of equal values is
// exact where the value is representable in f16; |w| above 65504 * (2^bits - 1) cannot be represented and
// saturates. REQUIRES: codes.size() == weights.size().
GroupQuantizer QuantizeGroupHqq(absl::Span<const float> weights, uint32_t bits, absl::Span<uint8_t> codes);

// Round to nearest over the group's range without the solver, for comparison (`sluice pack` does not use it).
GroupQuantizer QuantizeGroupNearest(absl::Span<const float> weights, uint32_t bits,
                                    absl::Span<uint8_t> codes);

}  // namespace sluice

#endif  // SLUICE_COMMON_QUANT_HQQ_H_
