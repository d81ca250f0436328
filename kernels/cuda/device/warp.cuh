// Operations that the lanes of a warp do together. Every function is called by all 32 lanes.
#pragma once

namespace sluice::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr unsigned kLanes = 32;

// __shfl_xor_sync by all lanes, without a float's way through an integer's register.
template <int kDistance>
__device__ inline float ShuffleXor(float value) {
  float other;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=f"(other) : "f"(value), "n"(kDistance));
  return other;
}
template <int kDistance>
__device__ inline int ShuffleXor(int value) {
  int other;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=r"(other) : "r"(value), "n"(kDistance));
  return other;
}

// The largest value of the 2 kDistance neighbouring lanes that the lane is one of; NaNs are left out.
template <int kDistance>
__device__ inline float MaxWithin(float value) {
  if constexpr (kDistance == 0) {
    return value;
  } else {
    return MaxWithin<kDistance / 2>(fmaxf(value, ShuffleXor<kDistance>(value)));
  }
}

// The sum over them.
template <int kDistance>
__device__ inline int SumWithin(int value) {
  if constexpr (kDistance == 0) {
    return value;
  } else {
    return SumWithin<kDistance / 2>(value + ShuffleXor<kDistance>(value));
  }
}

// The tree of ARITHMETIC.md section 0 over one value a lane, and its closing +0; every lane gets the sum. An
// addition commutes to the bit, so that each lane's partner may be found by xor.
__device__ inline float WarpTreeSum(float value) {
  for (int distance = 16; distance != 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value + 0.0f;
}

// The largest value; NaNs are left out.
__device__ inline float WarpMax(float value) {
  for (int distance = 16; distance != 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

__device__ inline int WarpSum(int value) {
  for (int distance = 16; distance != 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

}  // namespace sluice::cuda
