// Dot products of encoded rows with activations (ARITHMETIC.md section 2), a warp a time.
//
// Quantized rows: a warp a row. Lane l takes the 32-byte blocks l, l + 32, ... of codes, by 16-byte loads,
// and adds up each unit of 16 columns in int32, two products an instruction (dp2a); unit sums meet in shared
// memory, and then a lane a group makes the group's term. Terms are added in the order of groups by eight
// running sums, each kept by four lanes alike.
//
// Plain rows: four lanes a row, eight rows a warp. A lane keeps eight of the 32 running sums of section 0,
// those of its eight columns, and loads them by 16 bytes: a step of the warp is 64 bytes of each of eight
// rows.
#pragma once

#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/device/encoded.cuh"
#include "kernels/cuda/device/warp.cuh"

namespace sluice::cuda {

// Rounded rows (matrix.h) of kTokens tokens: codes in shared memory, scales and sums where they were made.
// Behind the codes of a block of kUnits units stand 16 bytes of nothing, so that lanes that read neighbouring
// blocks meet no bank twice.
struct StagedRows {
  const int4* codes = nullptr;  // shared
  unsigned token_quads = 0;     // int4 from token to token
  const uint8_t* rounded = nullptr;
  uint64_t stride = 0;  // bytes from token to token
};

__device__ inline unsigned StagedQuad(unsigned unit, unsigned units_a_block) {
  return 2 * unit + unit / units_a_block;
}

// Both signs of codes: q8's go to 255, mxfp4's are signed.
template <bool kSigned>
__device__ inline int Dp2aLow(int pair, unsigned codes, int sum) {
  if (kSigned) {
    return __dp2a_lo(pair, static_cast<int>(codes), sum);
  }
  asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(pair), "r"(codes), "r"(sum));
  return sum;
}
template <bool kSigned>
__device__ inline int Dp2aHigh(int pair, unsigned codes, int sum) {
  if (kSigned) {
    return __dp2a_hi(pair, static_cast<int>(codes), sum);
  }
  asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(pair), "r"(codes), "r"(sum));
  return sum;
}

// sums[t * units + u] = the products of unit u. `sums` is the warp's own; the lanes' writes are ordered by
// the next __syncwarp().
template <Encoding kEncoding, int kTokens>
__device__ inline void UnitSums(const DeviceMatrix& m, const uint8_t* row, const StagedRows& x, int* sums) {
  constexpr int kUnits = 16 / kPlaneBits<kEncoding>;
  constexpr bool kSigned = kEncoding == Encoding::kMxfp4;
  const unsigned units = UnitsOf(m.cols);
  for (unsigned block = threadIdx.x % kLanes; block * kUnits < units; block += kLanes) {
    uint32_t words[8];
    uint32_t third[8] = {};
    LoadWords(row + 32 * block, m.aligned, words);
    if (kEncoding == Encoding::kQ3) {
      LoadWords(row + m.third_bits + 32 * (block / 2), m.aligned, third);
    }
    const unsigned third_select = block % 2 == 0 ? 0x6240 : 0x7351;
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const unsigned unit = block * kUnits + k;
      if (unit >= units) {
        break;
      }
      unsigned codes[4];
#pragma unroll
      for (int quad = 0; quad < 4; ++quad) {
        codes[quad] = CodesOf<kEncoding>(words, third, third_select, k, quad);
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const int4* const from = x.codes + t * x.token_quads + StagedQuad(unit, kUnits);
        const int4 a = from[0];
        const int4 b = from[1];
        int sum = Dp2aLow<kSigned>(a.x, codes[0], 0);
        sum = Dp2aHigh<kSigned>(a.y, codes[0], sum);
        sum = Dp2aLow<kSigned>(a.z, codes[1], sum);
        sum = Dp2aHigh<kSigned>(a.w, codes[1], sum);
        sum = Dp2aLow<kSigned>(b.x, codes[2], sum);
        sum = Dp2aHigh<kSigned>(b.y, codes[2], sum);
        sum = Dp2aLow<kSigned>(b.z, codes[3], sum);
        sum = Dp2aHigh<kSigned>(b.w, codes[3], sum);
        sums[t * units + unit] = sum;
      }
    }
  }
}

// The groups' terms from the unit sums, added up in the order of section 2 (b). Every lane gets the sums.
template <int kTokens>
__device__ inline void GroupSums(const DeviceMatrix& m, const uint8_t* row, const StagedRows& x,
                                 const int* sums, float (&out)[kTokens]) {
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned units = UnitsOf(m.cols);
  const unsigned groups = GroupsOf(m.cols, m.group);
  const unsigned group_units = m.group / kUnit;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    out[t] = 0;
  }
  for (unsigned first = 0; first < groups; first += kLanes) {
    const unsigned g = first + lane;
    const bool inside = g < groups;
    const float scale = inside ? ScaleOf(m, row, g) : 0.0f;
    const float zero = inside ? ZeroOf(m, row, g) : 0.0f;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float factor = 0;
      float term = 0;
      if (inside) {
        const uint8_t* const rounded = x.rounded + t * x.stride;
        const unsigned end = min(units, (g + 1) * group_units);
        int sum = 0;
        for (unsigned u = g * group_units; u < end; ++u) {
          sum += sums[t * units + u];
        }
        const float x_scale = reinterpret_cast<const float*>(rounded + RoundedScales(m.cols))[g];
        const int x_sum = reinterpret_cast<const int*>(rounded + RoundedSums(m.cols, m.group))[g];
        factor = scale * x_scale;
        term = fmaf(-zero, static_cast<float>(x_sum), static_cast<float>(sum));
      }
#pragma unroll
      for (unsigned step = 0; step < kLanes; step += 8) {
        const float step_factor = __shfl_sync(kAllLanes, factor, lane % 8 + step);
        const float step_term = __shfl_sync(kAllLanes, term, lane % 8 + step);
        out[t] = fmaf(step_factor, step_term, out[t]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    for (int distance = 4; distance != 0; distance /= 2) {
      out[t] += __shfl_xor_sync(kAllLanes, out[t], distance);
    }
    out[t] += 0.0f;
  }
}

// The dots of one quantized row, in every lane. `sums`: int32[kTokens * units], shared, the warp's own.
template <int kTokens>
__device__ inline void QuantizedDots(const DeviceMatrix& m, const uint8_t* row, const StagedRows& x,
                                     int* sums, float (&out)[kTokens]) {
  __syncwarp();
  switch (m.encoding) {
    case Encoding::kQ8:
      UnitSums<Encoding::kQ8, kTokens>(m, row, x, sums);
      break;
    case Encoding::kQ4:
      UnitSums<Encoding::kQ4, kTokens>(m, row, x, sums);
      break;
    case Encoding::kQ3:
      UnitSums<Encoding::kQ3, kTokens>(m, row, x, sums);
      break;
    case Encoding::kQ2:
      UnitSums<Encoding::kQ2, kTokens>(m, row, x, sums);
      break;
    default:
      UnitSums<Encoding::kMxfp4, kTokens>(m, row, x, sums);
      break;
  }
  __syncwarp();
  GroupSums<kTokens>(m, row, x, sums, out);
}

// The tree of section 0 where lane j of four keeps the running sums 8 j .. 8 j + 7; all four get the sum.
__device__ inline float TreeOfEight(const float (&sums)[8]) {
  float s[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    s[i] = sums[i] + __shfl_xor_sync(kAllLanes, sums[i], 2);
    s[i] += __shfl_xor_sync(kAllLanes, s[i], 1);
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])) + 0.0f;
}

// The dots of the row that the lane's four share with the x of kTokens tokens, x_stride floats apart, aligned
// to 16 bytes; nullptr: no row.
template <Encoding kEncoding, int kTokens>
__device__ inline void PlainDotsOf(const uint8_t* row, unsigned aligned, const float* x, uint64_t x_stride,
                                   unsigned cols, float (&out)[kTokens]) {
  float sums[kTokens][8] = {};
  if (row != nullptr) {
    for (unsigned first = threadIdx.x % 4 * 8; first < cols; first += kLanes) {
      if (first + 8 <= cols) {
        float w[8];
        LoadEight<kEncoding>(row, aligned, first, w);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float4* const from = reinterpret_cast<const float4*>(x + t * x_stride + first);
          const float4 a = from[0];
          const float4 b = from[1];
          sums[t][0] = fmaf(a.x, w[0], sums[t][0]);
          sums[t][1] = fmaf(a.y, w[1], sums[t][1]);
          sums[t][2] = fmaf(a.z, w[2], sums[t][2]);
          sums[t][3] = fmaf(a.w, w[3], sums[t][3]);
          sums[t][4] = fmaf(b.x, w[4], sums[t][4]);
          sums[t][5] = fmaf(b.y, w[5], sums[t][5]);
          sums[t][6] = fmaf(b.z, w[6], sums[t][6]);
          sums[t][7] = fmaf(b.w, w[7], sums[t][7]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 7; ++i) {
          if (first + i < cols) {
            const float w = LoadOne<kEncoding>(row, aligned, first + i);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
              sums[t][i] = fmaf(x[t * x_stride + first + i], w, sums[t][i]);
            }
          }
        }
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    out[t] = TreeOfEight(sums[t]);
  }
}

template <int kTokens>
__device__ inline void PlainDots(const DeviceMatrix& m, const uint8_t* row, const float* x, uint64_t x_stride,
                                 float (&out)[kTokens]) {
  switch (m.encoding) {
    case Encoding::kBf16:
      PlainDotsOf<Encoding::kBf16, kTokens>(row, m.aligned, x, x_stride, m.cols, out);
      break;
    case Encoding::kF16:
      PlainDotsOf<Encoding::kF16, kTokens>(row, m.aligned, x, x_stride, m.cols, out);
      break;
    default:
      PlainDotsOf<Encoding::kF32, kTokens>(row, m.aligned, x, x_stride, m.cols, out);
      break;
  }
}

// Copies the codes of kTokens rounded rows into shared memory as StagedRows has them: by all threads of the
// block, 16 bytes each; the caller waits for the copies and synchronises.
__device__ inline void StageCodes(const uint8_t* rounded, uint64_t stride, unsigned tokens, unsigned units,
                                  unsigned units_a_block, unsigned token_quads, int4* codes) {
  for (unsigned t = 0; t < tokens; ++t) {
    const int4* const from = reinterpret_cast<const int4*>(rounded + t * stride);
    int4* const to = codes + t * token_quads;
    for (unsigned quad = threadIdx.x; quad < 2 * units; quad += blockDim.x) {
      __pipeline_memcpy_async(&to[quad + quad / (2 * units_a_block)], &from[quad], 16);
    }
  }
  __pipeline_commit();
}

// Units in a block of 32 bytes of codes.
__device__ __host__ inline unsigned UnitsABlock(Encoding encoding) {
  return encoding == Encoding::kQ8 ? 2 : encoding == Encoding::kQ4 || encoding == Encoding::kMxfp4 ? 4 : 8;
}

}  // namespace sluice::cuda
