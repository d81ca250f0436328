// Sums and extremes of values in 16 lanes, which the solver adds up for any vector width: the same pairs in
// the same order on every CPU, so the same bits.
//
// Thread safety: pure functions.
#pragma once

#include <cstring>

#include "common/vector_clones.h"

namespace sluice {

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
