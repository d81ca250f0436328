// Rows of activations in shared memory, normed and rounded (ARITHMETIC.md sections 5 and 2 b), by all threads
// of a block.
#pragma once

#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/device/row_kernels.h"
#include "kernels/cuda/device/scalar.cuh"

namespace sluice::cuda {

// The lane sum of section 0 over f(k), k < cols, by one warp.
template <typename Term>
__device__ inline float LaneSum(unsigned cols, Term term) {
  float sum = 0;
#pragma unroll 8
  for (unsigned k = threadIdx.x % kLanes; k < cols; k += kLanes) {
    sum = term(sum, k);
  }
  return WarpTreeSum(sum);
}

struct Normed {
  float mean;
  float r;
};

__device__ inline float ApplyNorm(const DeviceNorm& norm, const Normed& by, float x, unsigned k) {
  float y = (x - by.mean) * by.r;
  if (norm.weight != nullptr) {
    y = y * norm.weight[k];
  }
  return norm.bias == nullptr ? y : y + norm.bias[k];
}

// Returns the norm of row x: warp 0 makes the sums, lane l over the columns l mod 32 ascending. The block
// waits.
__device__ inline Normed NormOfRow(const float* x, unsigned cols, const DeviceNorm& norm) {
  __shared__ Normed shared_norm;
  if (threadIdx.x < kLanes) {
    const float n = static_cast<float>(cols);
    float mean = 0;
    if (norm.kind == NormKind::kLayer) {
      mean = LaneSum(cols, [=](float sum, unsigned k) { return sum + x[k]; }) / n;
    }
    const float squares = LaneSum(cols, [=](float sum, unsigned k) {
      const float d = x[k] - mean;
      return fmaf(d, d, sum);
    });
    if (threadIdx.x == 0) {
      shared_norm = {mean, 1.0f / sqrtf(squares / n + norm.epsilon)};
    }
  }
  __syncthreads();
  return shared_norm;
}

// The row `from`, normed if a norm is on, into shared memory: zeros up to whole kRoundedColumns behind it.
// The block waits.
__device__ inline void StageValues(const float* from, unsigned cols, const DeviceNorm& norm, float* row) {
  for (unsigned k = threadIdx.x; k < RoundedCodes(cols); k += blockDim.x) {
    row[k] = k < cols ? from[k] : 0.0f;
  }
  __syncthreads();
  if (norm.on) {
    const Normed by = NormOfRow(row, cols, norm);
    for (unsigned k = threadIdx.x; k < cols; k += blockDim.x) {
      row[k] = ApplyNorm(norm, by, row[k], k);
    }
    __syncthreads();
  }
}

// Where a rounded row goes: device memory or shared memory (matrix.h).
template <bool kStaged>
struct RoundedRow {
  uint8_t* base;
  unsigned cols;
  unsigned group;
  // Writes the codes of eight columns.
  __device__ void PutCodes(unsigned column, uint2 codes) const {
    *reinterpret_cast<uint2*>(base + (kStaged ? StagedPlace(column) : column)) = codes;
  }
  __device__ void PutGroup(unsigned g, float scale, int sum) const {
    if (kStaged) {
      reinterpret_cast<float2*>(base + StagedScales(cols))[g] = make_float2(scale, static_cast<float>(sum));
    } else {
      reinterpret_cast<float*>(base + RoundedScales(cols))[g] = scale;
      reinterpret_cast<int*>(base + RoundedSums(cols, group))[g] = sum;
    }
  }
};

// The codes of four values.
__device__ inline unsigned CodesOf(float4 v, float inverse) {
  const unsigned low = __byte_perm(static_cast<unsigned>(__float2int_rn(v.x * inverse)),
                                   static_cast<unsigned>(__float2int_rn(v.y * inverse)), 0x0040);
  const unsigned high = __byte_perm(static_cast<unsigned>(__float2int_rn(v.z * inverse)),
                                    static_cast<unsigned>(__float2int_rn(v.w * inverse)), 0x0040);
  return __byte_perm(low, high, 0x5410);
}
__device__ inline float LargestOf(float4 v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

// Eight neighbouring values of a row.
struct EightValues {
  float4 low;
  float4 high;
};

// Rounds a row. A lane has eight neighbouring columns of a group; kWidth columns of a warp's 256 are a
// group's, of one of so many. eight(k) gives the values of columns k..k + 7, zeros beyond the row.
template <unsigned kWidth, bool kStaged, typename Eight>
__device__ inline void RoundGroups(const RoundedRow<kStaged>& to, Eight eight) {
  constexpr unsigned own = 8;
  constexpr unsigned at_once = own * kLanes / kWidth;
  constexpr bool whole =
      kWidth < kRoundedColumns;  // a group has all of its lanes, and is no longer than codes
  const unsigned group = whole ? kWidth : to.group;
  const unsigned groups = GroupsOf(to.cols, group);
  const unsigned within = threadIdx.x * own % kWidth;
  for (unsigned first = threadIdx.x / kLanes * at_once; first < groups;
       first += blockDim.x / kLanes * at_once) {
    const unsigned g = first + threadIdx.x % kLanes * own / kWidth;
    // Lanes behind the last group have its values, too, and keep what they make of them.
    const unsigned k = min(g, groups - 1) * group + within;
    const bool has_values = whole || (within < group && k < RoundedCodes(to.cols));
    EightValues v = {};
    if (has_values) {
      v = eight(k);
    }
    const float largest = MaxWithin<kWidth / own / 2>(fmaxf(LargestOf(v.low), LargestOf(v.high)));
    const bool tiny = largest < 1e-30f;
    const float inverse = tiny ? 0.0f : 127.0f / largest;
    const uint2 codes = make_uint2(CodesOf(v.low, inverse), CodesOf(v.high, inverse));
    constexpr int ones = 0x01010101;
    const int sum = SumWithin<kWidth / own / 2>(
        __dp4a(static_cast<int>(codes.x), ones, __dp4a(static_cast<int>(codes.y), ones, 0)));
    if (has_values && g < groups) {
      to.PutCodes(k, codes);
      if (within == 0) {
        to.PutGroup(g, tiny ? 0.0f : largest / 127.0f, sum);
      }
    }
  }
  for (unsigned k = groups * group + threadIdx.x * own; k < RoundedCodes(to.cols); k += blockDim.x * own) {
    to.PutCodes(k, make_uint2(0, 0));
  }
}

template <bool kStaged, typename Eight>
__device__ inline void RoundRow(const RoundedRow<kStaged>& to, Eight eight) {
  switch (to.group) {
    case 16:
      return RoundGroups<16>(to, eight);
    case 32:
      return RoundGroups<32>(to, eight);
    case 64:
      return RoundGroups<64>(to, eight);
    default:
      return RoundGroups<kRoundedColumns>(to, eight);
  }
}

__device__ inline EightValues EightOf(const float* values) {
  return {*reinterpret_cast<const float4*>(values), *reinterpret_cast<const float4*>(values + 4)};
}

// Rounds values that StageValues() has put into shared memory.
template <bool kStaged>
__device__ inline void RoundStaged(const float* values, const RoundedRow<kStaged>& to) {
  RoundRow(to, [=](unsigned k) { return EightOf(values + k); });
}

// A row of x normed, if a norm is on, and rounded into shared memory. `values`: float[RoundedCodes()],
// shared, which a row without a norm does without if it is aligned. The block waits.
__device__ inline void NormAndRound(const float* x, const DeviceNorm& norm, const RoundedRow<true>& to,
                                    float* values) {
  if (!norm.on && reinterpret_cast<uintptr_t>(x) % 16 == 0 && to.cols % 8 == 0) {
    const unsigned cols = to.cols;
    RoundRow(to, [=](unsigned k) { return k < cols ? EightOf(x + k) : EightValues{}; });
  } else {
    StageValues(x, to.cols, norm, values);
    RoundStaged(values, to);
  }
  __syncthreads();
}

// Rounded rows of tokens in shared memory.
struct StagedRows {
  const uint8_t* base = nullptr;
  unsigned token_bytes = 0;
};

// Copies `tokens` rounded rows into shared memory, those beyond `last` as that one; codes by 16-byte
// asynchronous copies, which the caller waits for before the barrier.
__device__ inline void StageRounded(const uint8_t* rounded, uint64_t stride, unsigned tokens, unsigned last,
                                    unsigned cols, unsigned group, uint8_t* shared) {
  const unsigned pieces = RoundedCodes(cols) / 16;
  const unsigned groups = GroupsOf(cols, group);
  for (unsigned t = 0; t < tokens; ++t) {
    const uint8_t* const from = rounded + min(t, last) * stride;
    uint8_t* const to = shared + t * StagedBytes(cols, group);
    for (unsigned i = threadIdx.x; i < pieces; i += blockDim.x) {
      __pipeline_memcpy_async(to + StagedPlace(16 * i), from + 16 * i, 16);
    }
    for (unsigned g = threadIdx.x; g < groups; g += blockDim.x) {
      const float scale = reinterpret_cast<const float*>(from + RoundedScales(cols))[g];
      const int sum = reinterpret_cast<const int*>(from + RoundedSums(cols, group))[g];
      reinterpret_cast<float2*>(to + StagedScales(cols))[g] = make_float2(scale, static_cast<float>(sum));
    }
  }
  __pipeline_commit();
}

}  // namespace sluice::cuda
