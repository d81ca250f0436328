// ARITHMETIC.md's functions of single values, to the bit: exp, sigmoid, the activations' factors, log,
// rounding to codes. Nothing here is approximate: no instruction whose bits a GPU may choose.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "common/model/model_config.h"

namespace sluice::cuda {

// The function that makes a neuron's coefficient (ops.h: ActivationSpec).
struct DeviceActivation {
  Activation kind = Activation::kSilu;
  float alpha = 0;
  float limit = 0;
};

// Section 7.
__device__ inline float Exp(float x) {
  const float top = x > 88.0f ? 88.0f : x;
  const float n = rintf(top * 1.44269504f);
  float r = fmaf(-n, 0.693359375f, top);
  r = fmaf(-n, -2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, r * r, r);
  p = p + 1.0f;
  const float e = p * __int_as_float((__float2int_rn(n) + 127) << 23);
  return x < -87.0f ? 0.0f : x != x ? x : e;
}

__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }
__device__ inline float Silu(float x) { return x / (1.0f + Exp(-x)); }

__device__ inline float Gelu(float x) {
  const float z = fabsf(x) * 0.707106781f;
  const float t = 1.0f / fmaf(0.5f, z, 1.0f);
  float p = 0.17087277f;
  p = fmaf(p, t, -0.82215223f);
  p = fmaf(p, t, 1.48851587f);
  p = fmaf(p, t, -1.13520398f);
  p = fmaf(p, t, 0.27886807f);
  p = fmaf(p, t, -0.18628806f);
  p = fmaf(p, t, 0.09678418f);
  p = fmaf(p, t, 0.37409196f);
  p = fmaf(p, t, 1.00002368f);
  p = fmaf(p, t, -1.26551223f);
  const float tail = 0.5f * t * Exp(fmaf(-z, z, p));
  return x < 0 ? x * tail : x * (1.0f - tail);
}

// Section 3.
__device__ inline float GateFactor(const DeviceActivation& activation, float g) {
  switch (activation.kind) {
    case Activation::kSilu:
      return Silu(g);
    case Activation::kGeluTanh:
      return g / (1.0f + Exp(-(g * fmaf(g * g, 0.0713548163f, 1.59576912f))));
    case Activation::kGelu:
      return Gelu(g);
    case Activation::kRelu2:
      return 0.0f > g ? 0.0f : g;
    case Activation::kLimitedSilu:
      return Silu(activation.limit < g ? activation.limit : g);
    case Activation::kClampedSilu: {
      const float silu = Silu(g);
      return activation.limit < silu ? activation.limit : silu;
    }
    default: {
      const float clamped = activation.limit < g ? activation.limit : g;
      return clamped / (1.0f + Exp(-(activation.alpha * clamped)));
    }
  }
}

__device__ inline float UpFactor(const DeviceActivation& activation, float u) {
  if (activation.kind != Activation::kClampedSwiglu && activation.kind != Activation::kClampedSilu &&
      activation.kind != Activation::kLimitedSilu) {
    return u;
  }
  const float low = -activation.limit > u ? -activation.limit : u;
  const float clamped = activation.limit < low ? activation.limit : low;
  return activation.kind == Activation::kClampedSwiglu ? 1.0f + clamped : clamped;
}

// Section 7: the natural logarithm of a normal y >= 1.
__device__ inline double LogOf(double y) {
  const long long bits = __double_as_longlong(y);
  int exponent = static_cast<int>(bits >> 52) - 1022;
  double f = __longlong_as_double((bits & 0x000fffffffffffffLL) | 0x3fe0000000000000LL);
  if (f < 0.70710678118654752) {
    f = f * 2;
    --exponent;
  }
  const double s = (f - 1) / (f + 1);
  const double z = s * s;
  double p = 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  p = p * z + 1.0;
  return exponent * 0.69314718055994531 + 2 * s * p;
}

__device__ inline float Softplus(float x) {
  if (x > 20.0f || x != x) {
    return x;
  }
  const float e = Exp(x);
  return e < 0x1p-24f ? e : static_cast<float>(LogOf(1 + static_cast<double>(e)));
}

// Nearest, ties to even; saturating; what a NaN becomes is not specified.
__device__ inline int RoundCode(float value) { return min(max(__float2int_rn(value), -128), 127); }

__device__ inline float HalfAt(const uint8_t* place) {
  return __half2float(*reinterpret_cast<const __half*>(place));
}

// Operations that the lanes of a warp do together. Every function is called by all 32 lanes.

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
