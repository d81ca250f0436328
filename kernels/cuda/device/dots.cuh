// Dot products of encoded rows with activations (ARITHMETIC.md section 2), a warp a time.
//
// Quantized rows: a warp four dots, of four rows with one token or of one row with four. A lane takes half a
// block of codes (16 bytes a load, 512 neighbouring bytes a warp), of all four rows before the next, and
// multiplies four bytes an instruction (dp4a) with the rounded x in shared memory, which it reads once for
// the four rows. Sums of a group's columns go to shared memory; then eight lanes a dot, each one of the eight
// running sums of section 2 (b), make the groups' terms in their order.
//
// Plain rows: four lanes a row, eight rows a warp. A lane keeps eight of the 32 running sums of section 0,
// those of its eight columns, and loads them by 16 bytes: a step of the warp is 64 bytes of each of eight
// rows.
#pragma once

#include "kernels/cuda/device/encoded.cuh"
#include "kernels/cuda/device/rounding.cuh"
#include "kernels/cuda/device/scalar.cuh"

namespace sluice::cuda {

constexpr int kDots = 4;
constexpr unsigned kDotLanes = kLanes / kDots;

// A warp's int32 of shared memory for the sums of its dots, a multiple of 4.
__device__ __host__ constexpr unsigned DotSums(Encoding encoding, unsigned group) {
  return kDots * SegmentSums(UnitsABlock(encoding), group);
}

// The sums of blocks [first, first + count) of codes, a segment: those of span s of block b and half h of its
// columns stand at ((b - first) * spans a block + s) * 2 + h of each dot's `stride`.
template <Encoding kEncoding, int kRows, int kTokens>
__device__ inline void SegmentProducts(const DeviceMatrix& m, const uint8_t* const (&rows)[kRows],
                                       const StagedRows& x, unsigned first, unsigned count, unsigned span,
                                       unsigned stride, int* sums) {
  using Half = HalfBlock<kEncoding>;
  constexpr int kUnits = Half::kUnits;
  for (unsigned item = threadIdx.x % kLanes; item < 2 * count; item += kLanes) {
    const unsigned block = first + item / 2;
    const unsigned half = item % 2;
    Half codes[kRows];
    if (m.aligned >= 16) {  // asked once for all rows, so that their loads stand together
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        codes[r].Load(m, 16, rows[r], block, half);
      }
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        codes[r].Load(m, m.aligned, rows[r], block, half);
      }
    }
    const uint8_t* const from = x.base + StagedPlace(block * kUnits * kUnit) + 8 * half;
    unsigned at = (item / 2 + 1) * (kUnits / span) * 2 - 2 + half;
    int running[kRows * kTokens] = {};
#pragma unroll
    for (int unit = kUnits - 1; unit >= 0; --unit) {
      // The sum of the units above comes down, or up, to this one's place.
      const int up = unit == kUnits - 1 ? 0 : Half::PlaceOf(unit) - Half::PlaceOf(unit + 1);
      uint2 values[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        values[t] = *reinterpret_cast<const uint2*>(from + t * x.token_bytes + unit * kUnit);
      }
#pragma unroll
      for (int i = 0; i < kRows * kTokens; ++i) {
        const int above = up < 0 ? running[i] >> -up : running[i] << up;
        running[i] = codes[i / kTokens].AddProducts(unit, values[i % kTokens], above);
      }
      if (unit % span == 0) {
#pragma unroll
        for (int i = 0; i < kRows * kTokens; ++i) {
          sums[i * stride + at] = running[i] >> Half::PlaceOf(unit);
          running[i] = 0;
        }
        at -= 2;
      }
    }
  }
}

// The dots of kRows rows of a kind with kTokens tokens, of row i / kTokens and token i % kTokens in lanes 8 i
// .. 8 i
// + 7. `sums`: DotSums(), shared, the warp's own.
template <typename Kind, int kRows, int kTokens>
__device__ inline float DotsOf(const DeviceMatrix& m, const uint8_t* const (&rows)[kRows],
                               const StagedRows& x, int* sums) {
  static_assert(kRows * kTokens == kDots);
  constexpr Encoding kEncoding = Kind::kEncoding;
  constexpr unsigned kUnits = HalfBlock<kEncoding>::kUnits;
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned dot = lane / kDotLanes;
  const uint8_t* row = rows[0];
#pragma unroll
  for (unsigned r = 1; r < kRows; ++r) {
    row = dot / kTokens == r ? rows[r] : row;
  }
  const uint8_t* const token = x.base + dot % kTokens * x.token_bytes;
  const float2* const x_groups = reinterpret_cast<const float2*>(token + StagedScales(m.cols));
  unsigned group = Kind::kGroup;
  if (Kind::kGroup == 0) {
    group = m.group;
    asm volatile("" : "+r"(group));  // keeps its divisions out of the way of rows of other encodings
  }
  const unsigned span = SpanUnits(kUnits, group);
  const unsigned stride = SegmentSums(kUnits, group);
  const unsigned segment = SegmentBlocks(kUnits, group);
  const unsigned parts = 2 * group / (span * kUnit);  // sums of a group
  const unsigned groups = GroupsOf(m.cols, group);
  const unsigned blocks = (m.cols + kUnits * kUnit - 1) / (kUnits * kUnit);
  float running = 0;
  for (unsigned first = 0; first < blocks; first += segment) {
    const unsigned count = min(segment, blocks - first);
    __syncwarp();
    SegmentProducts<kEncoding, kRows, kTokens>(m, rows, x, first, count, span, stride, sums);
    __syncwarp();
    const unsigned first_group = first * kUnits * kUnit / group;
    const unsigned end = min(groups, first_group + segment * kUnits * kUnit / group);
    const unsigned begin = first_group + (lane - first_group) % kDotLanes;
    const int* const of_dot = sums + dot * stride;
    if (kEncoding != Encoding::kMxfp4 && !kOfBlocks<kEncoding> && m.numbers == Numbers::kHalves &&
        parts == 2) {
      // Most groups are a span: nothing is asked for each of them.
      const int2* halves_at = reinterpret_cast<const int2*>(of_dot) + (begin - first_group);
      const float2* x_at = x_groups + begin;
      const uint8_t* scale_at = row + m.scales + 2 * begin;
      const uint8_t* zero_at = row + m.zeros + 2 * begin;
      for (unsigned g = begin; g < end; g += kDotLanes) {
        const int2 halves = *halves_at;
        const float2 x_group = *x_at;
        const float factor = HalfAt(scale_at) * x_group.x;
        const float zero = HalfAt(zero_at);
        halves_at += kDotLanes;
        x_at += kDotLanes;
        scale_at += 2 * kDotLanes;
        zero_at += 2 * kDotLanes;
        running = fmaf(factor, fmaf(-zero, x_group.y, static_cast<float>(halves.x + halves.y)), running);
      }
      continue;
    }
    if (Kind::kGroup == 0 && IsOfBlocks<kEncoding>(m)) {
      const int2* const halves = reinterpret_cast<const int2*>(of_dot);
#pragma unroll 1
      for (unsigned g = begin; g < end; g += kDotLanes) {
        const GroupNumbers numbers = NumbersOf<kEncoding>(m, row, g);
        const float2 x_group = x_groups[g];
        const float sum = static_cast<float>(halves[g - first_group].x + halves[g - first_group].y);
        running = HasMins<kEncoding>(m) ? AddGroup<true>(numbers, x_group.x, x_group.y, sum, running)
                                        : AddGroup<false>(numbers, x_group.x, x_group.y, sum, running);
      }
      continue;
    }
    for (unsigned g = begin; g < end; g += kDotLanes) {
      const unsigned at = (g - first_group) * parts;
      const int2* const from = reinterpret_cast<const int2*>(of_dot + at);
      const unsigned pairs = min(parts, 2 * count * (kUnits / span) - at) / 2;
      int sum = 0;
      for (unsigned i = 0; i < pairs; ++i) {
        sum += from[i].x + from[i].y;
      }
      const float factor = ScaleOf(m, row, g) * x_groups[g].x;
      const float term = fmaf(-ZeroOf(m, row, g), x_groups[g].y, static_cast<float>(sum));
      running = fmaf(factor, term, running);
    }
  }
  running += ShuffleXor<4>(running);
  running += ShuffleXor<2>(running);
  running += ShuffleXor<1>(running);
  return running + 0.0f;
}

// The same for any quantized encoding.
template <int kRows, int kTokens>
__device__ inline float QuantizedDots(const DeviceMatrix& m, const uint8_t* const (&rows)[kRows],
                                      const StagedRows& x, int* sums) {
  return WithKind<kTokens == 1, true>(
      m, [&](auto kind) { return DotsOf<decltype(kind), kRows, kTokens>(m, rows, x, sums); });
}

// The tree of section 0 where lane j of four keeps the running sums 8 j .. 8 j + 7; all four get the sum.
__device__ inline float TreeOfEight(const float (&sums)[8]) {
  float s[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    s[i] = sums[i] + ShuffleXor<2>(sums[i]);
    s[i] += ShuffleXor<1>(s[i]);
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])) + 0.0f;
}

// Adds the products of eight columns to the running sums; `x` are the columns of a token.
__device__ inline void AddEight(const float* x, const float (&w)[8], float (&sums)[8]) {
  const float4 a = reinterpret_cast<const float4*>(x)[0];
  const float4 b = reinterpret_cast<const float4*>(x)[1];
  sums[0] = fmaf(a.x, w[0], sums[0]);
  sums[1] = fmaf(a.y, w[1], sums[1]);
  sums[2] = fmaf(a.z, w[2], sums[2]);
  sums[3] = fmaf(a.w, w[3], sums[3]);
  sums[4] = fmaf(b.x, w[4], sums[4]);
  sums[5] = fmaf(b.y, w[5], sums[5]);
  sums[6] = fmaf(b.z, w[6], sums[6]);
  sums[7] = fmaf(b.w, w[7], sums[7]);
}

// Adds the products of the last columns of a row, fewer than eight.
template <Encoding kEncoding, int kTokens>
__device__ inline void AddLast(const uint8_t* row, unsigned aligned, const float* const (&x)[kTokens],
                               unsigned first, unsigned cols, float (&sums)[kTokens][8]) {
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    if (first + i < cols) {
      const float w = LoadOne<kEncoding>(row, aligned, first + i);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        sums[t][i] = fmaf(x[t][first + i], w, sums[t][i]);
      }
    }
  }
}

// The dots of the row that the lane's four share with the x of kTokens tokens, aligned to 16 bytes; nullptr:
// no row. A lane has kLoads loads of 16 bytes in flight: the matrix comes from memory, and one load at a time
// would wait for each.
template <Encoding kEncoding, int kTokens, int kLoads>
__device__ inline void PlainDotsOf(const uint8_t* row, unsigned aligned, const float* const (&x)[kTokens],
                                   unsigned cols, float (&out)[kTokens]) {
  constexpr unsigned kSteps = kEncoding == Encoding::kF32 ? (kLoads + 1) / 2 : kLoads;
  float sums[kTokens][8] = {};
  if (row != nullptr) {
    unsigned first = threadIdx.x % 4 * 8;
    if (aligned >= 16) {
      for (; first + (kSteps - 1) * kLanes + 8 <= cols; first += kSteps * kLanes) {
        float w[kSteps][8];
#pragma unroll
        for (unsigned step = 0; step < kSteps; ++step) {
          LoadEight<kEncoding>(row, 16, first + step * kLanes, w[step]);
        }
#pragma unroll
        for (unsigned step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int t = 0; t < kTokens; ++t) {
            AddEight(x[t] + first + step * kLanes, w[step], sums[t]);
          }
        }
      }
    }
#pragma unroll 1
    for (; first + 8 <= cols; first += kLanes) {
      float w[8];
      LoadEight<kEncoding>(row, aligned, first, w);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        AddEight(x[t] + first, w, sums[t]);
      }
    }
    if (first < cols) {
      AddLast<kEncoding>(row, aligned, x, first, cols, sums);
    }
  }
  __syncwarp();
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    out[t] = TreeOfEight(sums[t]);
  }
}

template <int kTokens, int kLoads = 4>
__device__ inline void PlainDots(const DeviceMatrix& m, const uint8_t* row, const float* const (&x)[kTokens],
                                 float (&out)[kTokens]) {
  switch (m.encoding) {
    case Encoding::kBf16:
      PlainDotsOf<Encoding::kBf16, kTokens, kLoads>(row, m.aligned, x, m.cols, out);
      break;
    case Encoding::kF16:
      PlainDotsOf<Encoding::kF16, kTokens, kLoads>(row, m.aligned, x, m.cols, out);
      break;
    default:
      PlainDotsOf<Encoding::kF32, kTokens, kLoads>(row, m.aligned, x, m.cols, out);
      break;
  }
}

}  // namespace sluice::cuda
