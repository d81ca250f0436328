// Work of a warp on the values of a head or an entry (ARITHMETIC.md section 6): the norm's factor, the
// rotation in shared memory, and the writing into a cache.
#pragma once

#include "kernels/cuda/device/attention.h"
#include "kernels/cuda/device/scalar.cuh"

namespace sluice::cuda {

// 1 / sqrt(mean of squares + epsilon) of a row, by one warp (section 5).
__device__ inline float NormFactor(const float* x, unsigned cols, float epsilon) {
  float sum = 0;
  for (unsigned k = threadIdx.x % kLanes; k < cols; k += kLanes) {
    sum = fmaf(x[k], x[k], sum);
  }
  return 1.0f / sqrtf(WarpTreeSum(sum) / static_cast<float>(cols) + epsilon);
}

// Rotates pair `i` of a head.
__device__ inline void RopePair(const float* cos_sin, unsigned dims, bool interleaved, bool back, unsigned i,
                                float* head) {
  const unsigned half = dims / 2;
  const float c = cos_sin[i];
  const float s = back ? -cos_sin[half + i] : cos_sin[half + i];
  float* const a = head + (interleaved ? 2 * i : i);
  float* const b = head + (interleaved ? 2 * i + 1 : i + half);
  const float x = *a;
  const float y = *b;
  *a = fmaf(x, c, -(y * s));
  *b = fmaf(y, c, x * s);
}

// Rotates a head in shared memory, a lane a pair. (Unrolled, it takes a third more registers.)
__device__ inline void RopeHead(const float* cos_sin, unsigned dims, bool interleaved, float* head) {
#pragma unroll 1
  for (unsigned i = threadIdx.x % kLanes; i < dims / 2; i += kLanes) {
    RopePair(cos_sin, dims, interleaved, false, i, head);
  }
}

// Writes `dim` values, which lie in shared memory, as a cache's row; `scale`: where q8 has the row's.
__device__ inline void StoreRow(KvKind kind, unsigned dim, const float* values, uint8_t* to, float* scale) {
  const unsigned lane = threadIdx.x % kLanes;
  if (kind == KvKind::kF32) {
    float* const row = reinterpret_cast<float*>(to);
    for (unsigned d = lane; d < dim; d += kLanes) {
      row[d] = values[d];
    }
    return;
  }
  if (kind == KvKind::kF16) {
    __half2* const row = reinterpret_cast<__half2*>(to);
    for (unsigned d = lane; d < dim / 2; d += kLanes) {
      row[d] = __halves2half2(__float2half_rn(values[2 * d]), __float2half_rn(values[2 * d + 1]));
    }
    return;
  }
  float largest = 0;
  for (unsigned d = lane; d < dim; d += kLanes) {
    largest = fmaxf(largest, fabsf(values[d]));
  }
  largest = WarpMax(largest);
  const bool tiny = largest < 1e-30f;
  const float inverse = tiny ? 0.0f : 127.0f / largest;
  signed char* const row = reinterpret_cast<signed char*>(to);
  for (unsigned d = lane; d < dim; d += kLanes) {
    row[d] = static_cast<signed char>(min(max(__float2int_rn(values[d] * inverse), -128), 127));
  }
  if (lane == 0) {
    *scale = tiny ? 0.0f : largest / 127.0f;
  }
}

}  // namespace sluice::cuda
