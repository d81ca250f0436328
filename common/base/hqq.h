// Half-quadratic quantization (HQQ, Badri and Shaji 2023, "Half-Quadratic Quantization of Large Machine
// Learning Models"), the zero-point solver of FloE 3.2 and CORM 4.1: per group minimise ||w - (code - zero) *
// scale||_p^p, p = 0.7, over the zero, with the scale fixed by the group's range.
//
// Groups are encoded one at a time, so any row can be encoded alone, in any order, on any thread, to the same
// bits: sums run over 16 fixed lanes and no multiply-add is contracted. The reference package stops all
// groups of a matrix together; here every group stops when its own error no longer falls, and keeps its best
// zero.
//
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "common/base/vector_clones.h"

namespace sluice {

// A weight of the group is (code - zero) * scale. Both are finite and exactly representable in f16.
struct GroupQuantizer {
  float scale = 0;
  float zero = 0;
};

// Maximum weights of a group, or groups of a super-group.
inline constexpr uint32_t kMaxQuantGroup = 256;

// Chooses scale and zero for `weights` (1..kMaxQuantGroup finite values that fit, see below) and codes of
// `bits` (2, 3, 4 or 8) bits, each 0 .. 2^bits - 1, chosen after scale and zero were rounded to f16. A group
// of equal values is exact if the value has at most 11 significant bits (as bf16 and f16 have) and is 0 or at
// least 2^-38. REQUIRES: codes.size() == weights.size().
GroupQuantizer QuantizeGroupHqq(absl::Span<const float> weights, uint32_t bits, absl::Span<uint8_t> codes);

// Rounds to nearest over the group's range without the solver: for scales and zeros in super-groups, and as a
// baseline.
GroupQuantizer QuantizeGroupNearest(absl::Span<const float> weights, uint32_t bits,
                                    absl::Span<uint8_t> codes);

// True if an f16 scale can span the weights and 0: a range of at most 65504 * (2^bits - 1).
bool GroupFits(absl::Span<const float> weights, uint32_t bits);

// The single steps of the above, for scales and zeros that are themselves stored in few bits.
// The scale that spans the weights and 0 in 2^bits - 1 steps; 0 if all are 0.
float ScaleOverZero(absl::Span<const float> weights, uint32_t bits);
// The zero for a given scale, between 0 and 2^bits - 1, not rounded; 0 if the scale is not above 0.
float SolveZero(absl::Span<const float> weights, uint32_t bits, float scale);
// The nearest codes for a given scale and zero.
void AssignCodes(absl::Span<const float> weights, uint32_t bits, const GroupQuantizer& quantizer,
                 absl::Span<uint8_t> codes);

// Sums and extremes of values in 16 lanes, which the solver adds up for any vector width: the same pairs in
// the same order on every CPU, so the same bits.
//
// Thread safety: pure functions.

inline constexpr int kQuantLanes = 16;

// Four of the lanes: every x86-64 CPU has a register of this width.
using LaneVector = float __attribute__((vector_size(16)));
struct LaneVectors {
  LaneVector quarters[4];
};
static_assert(sizeof(LaneVectors) == kQuantLanes * sizeof(float));

SLUICE_ALWAYS_INLINE LaneVectors LoadLanes(const float* values) {
  LaneVectors lanes;
  std::memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

// Lane by lane std::min and std::max of `lanes` and `others`: the former if they are equal.
SLUICE_ALWAYS_INLINE void UpdateMinLanes(const LaneVectors& others, LaneVectors* lanes) {
  for (int i = 0; i < 4; ++i) {
    const LaneVector other = others.quarters[i];
    lanes->quarters[i] = other < lanes->quarters[i] ? other : lanes->quarters[i];
  }
}
SLUICE_ALWAYS_INLINE void UpdateMaxLanes(const LaneVectors& others, LaneVectors* lanes) {
  for (int i = 0; i < 4; ++i) {
    const LaneVector other = others.quarters[i];
    lanes->quarters[i] = lanes->quarters[i] < other ? other : lanes->quarters[i];
  }
}

// Folds lane i with lane i + 8, then the result with i + 4, and so on, by `fold`, which accepts vectors and
// floats.
template <typename Fold>
SLUICE_ALWAYS_INLINE float FoldLanes(const LaneVectors& lanes, const Fold& fold) {
  const LaneVector* const quarters = lanes.quarters;
  const LaneVector four = fold(fold(quarters[0], quarters[2]), fold(quarters[1], quarters[3]));
  const LaneVector two = fold(four, LaneVector{four[2], four[3], four[2], four[3]});
  return fold(two[0], two[1]);
}

SLUICE_ALWAYS_INLINE float SumOfLanes(const LaneVectors& lanes) {
  return FoldLanes(lanes, [](auto a, auto b) { return a + b; });
}

// For two zeros of different signs, either one.
SLUICE_ALWAYS_INLINE float MinOfLanes(const LaneVectors& lanes) {
  return FoldLanes(lanes, [](auto a, auto b) { return b < a ? b : a; });
}
SLUICE_ALWAYS_INLINE float MaxOfLanes(const LaneVectors& lanes) {
  return FoldLanes(lanes, [](auto a, auto b) { return a < b ? b : a; });
}

}  // namespace sluice
