// A span's sums of V, weighted: tiles of V on their way to shared memory, a thread pairs of columns of some
// of the heads.
#pragma once

#include "kernels/cuda/device/attention/block.cuh"

namespace sluice::cuda::attention {

// Copies `count` rows of V, up to a tile, to shared memory by 16 bytes a thread, from the kFirst-th row of
// the threads on. `place` is `to` as shared memory has it: all places are constants behind it, where
// __pipeline_memcpy_async() would make each anew.
template <typename S, unsigned kFirst = 0>
__device__ inline void CopyRows(const uint8_t* from, unsigned count, uint8_t* to, unsigned place) {
  constexpr unsigned kPieces = S::kRowBytes / 16;
  constexpr unsigned kOffset = kFirst * S::kRowBytes;
  if constexpr (kFirst < S::kTile) {
    if (threadIdx.x / kPieces + kFirst < count) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
      *reinterpret_cast<uint4*>(to + kOffset) = *reinterpret_cast<const uint4*>(from + kOffset);
#else
      asm volatile("cp.async.cg.shared.global [%0+%2], [%1+%2], 16;" ::"r"(place), "l"(from), "n"(kOffset)
                   : "memory");
#endif
    }
    CopyRows<S, kFirst + kThreads / kPieces>(from, count, to, place);
  }
}

// The same of rows of any length and alignment: as many bytes a thread as the alignment allows.
template <typename S>
__device__ inline void CopyRows(const uint8_t* from, unsigned from_row, unsigned bytes, unsigned aligned,
                                unsigned count, uint8_t* to) {
  const unsigned pieces = (bytes + aligned - 1) / aligned;
  for (unsigned i = threadIdx.x; i < count * pieces; i += kThreads) {
    const unsigned row = i / pieces;
    const unsigned at = i % pieces * aligned;
    uint8_t* const place = to + row * S::kRowBytes + at;
    const uint8_t* const source = from + row * from_row + at;
    if (aligned == 16) {
      __pipeline_memcpy_async(place, source, 16);
    } else if (aligned == 4) {
      __pipeline_memcpy_async(place, source, 4);
    } else {
      *reinterpret_cast<uint16_t*>(place) = *reinterpret_cast<const uint16_t*>(source);
    }
  }
}

// Copies tile `n` of the span's V, those of its positions that are seen, into its stage. One group of
// asynchronous copies, which may be empty.
template <typename S>
__device__ inline void FetchValues(const AttentionLaunch& launch, const Tile& tile, unsigned v_aligned,
                                   unsigned n) {
  const DeviceKv& kv = launch.kv;
  const unsigned begin = tile.first / S::kTile * S::kTile + n * S::kTile;
  const unsigned first = max(begin, tile.first);
  const unsigned end = min(begin + S::kTile, tile.last + 1);
  if (first < end) {
    const uint8_t* const page = kv.v + tile.place.pages[begin / kPagePositions] * kv.page_stride;
    const uint8_t* const from = page + RowOffset<S>(kv, tile.kv_head, first % kPagePositions);
    uint8_t* const to = tile.values + n % kStages * S::kTileBytes + (first - begin) * S::kRowBytes;
    if constexpr (S::kDim > 0) {
      uint8_t* const own = to + 16 * threadIdx.x;
      CopyRows<S>(from + 16 * threadIdx.x, end - first, own,
                  static_cast<unsigned>(__cvta_generic_to_shared(own)));
    } else {
      CopyRows<S>(from, kv.head_dim * S::kValueBytes, kv.value_dim * S::kValueBytes, v_aligned, end - first,
                  to);
    }
  }
  __pipeline_commit();
}

// A thread's weighted values, of its pairs of columns and its heads.
template <typename S>
using Outputs = float2[S::kPairs][S::kPartHeads];

template <typename S>
__device__ inline void AddPosition(const uint8_t* row, unsigned pair, const float (&e)[S::kPartHeads],
                                   float2 (&o)[S::kPartHeads]) {
  const float2 v = LoadPair<S::kKind>(row, pair);
#pragma unroll
  for (int h = 0; h < S::kPartHeads; ++h) {
    o[h].x = fmaf(e[h], v.x, o[h].x);
    o[h].y = fmaf(e[h], v.y, o[h].y);
  }
}

// The same of four neighbouring positions, from a multiple of four on.
template <typename S>
__device__ inline void AddFourPositions(const uint8_t* row, unsigned pair, const float* weights,
                                        float2 (&o)[S::kPartHeads]) {
  float e[4][S::kPartHeads];
#pragma unroll
  for (int h = 0; h < S::kPartHeads; ++h) {
    const float4 four = *reinterpret_cast<const float4*>(weights + h * kScoreStride);
    e[0][h] = four.x;
    e[1][h] = four.y;
    e[2][h] = four.z;
    e[3][h] = four.w;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    AddPosition<S>(row + i * S::kRowBytes, pair, e[i], o);
  }
}

// Positions [first, end) of a tile that begins at `begin`, ascending.
template <typename S>
__device__ inline void AddTile(const uint8_t* rows, const float* weights, unsigned pair, unsigned first,
                               unsigned end, float2 (&o)[S::kPartHeads]) {
  if (first == 0 && end == S::kTile) {
#pragma unroll
    for (unsigned i = 0; i < S::kTile; i += 4) {
      AddFourPositions<S>(rows + i * S::kRowBytes, pair, weights + i, o);
    }
    return;
  }
  for (unsigned i = first; i < end; ++i) {
    float e[S::kPartHeads];
#pragma unroll
    for (int h = 0; h < S::kPartHeads; ++h) {
      e[h] = weights[h * kScoreStride + i];
    }
    AddPosition<S>(rows + i * S::kRowBytes, pair, e, o);
  }
}

// A span's weighted values, positions ascending, tile by tile as they come.
template <typename S>
__device__ inline void SumValues(const AttentionLaunch& launch, const Tile& tile, unsigned v_aligned,
                                 Outputs<S>& o) {
  const unsigned part = threadIdx.x / S::kPairThreads * S::kPartHeads;
  const unsigned tiles = tile.last / S::kTile - tile.first / S::kTile + 1;
  const unsigned pairs = S::kDim > 0 ? S::kDim / 2 : launch.kv.value_dim / 2;
  for (unsigned n = 0; n < tiles; ++n) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();
    // Where tile n - 1 was, which all have behind them.
    FetchValues<S>(launch, tile, v_aligned, n + kStages - 1);
    const unsigned begin = tile.first / S::kTile * S::kTile + n * S::kTile;
    const unsigned first = max(begin, tile.first) - begin;
    const unsigned end = min(begin + S::kTile, tile.last + 1) - begin;
    const uint8_t* const rows = tile.values + n % kStages * S::kTileBytes;
    const float* const weights = tile.scores + part * kScoreStride + begin % kSpanPositions;
#pragma unroll
    for (unsigned c = 0; c < S::kPairs; ++c) {
      const unsigned pair = c * S::kPairThreads + threadIdx.x % S::kPairThreads;
      if (pair < pairs) {
        AddTile<S>(rows, weights, pair, first, end, o[c]);
      }
    }
  }
}

// Combined spans, for the heads and columns of a thread.
template <typename S>
struct Sums {
  Softmax softmax[S::kPartHeads];
  Outputs<S> out;
};

template <typename S>
__device__ inline void AddSpan(const AttentionLaunch& launch, const Tile& tile, unsigned v_aligned,
                               bool is_first, Sums<S>* sums) {
  const unsigned part = threadIdx.x / S::kPairThreads * S::kPartHeads;
  Outputs<S> o = {};
  SumValues<S>(launch, tile, v_aligned, o);
#pragma unroll
  for (int h = 0; h < S::kPartHeads; ++h) {
    Factors factors = {1, 1};
    if (is_first) {
      sums->softmax[h] = tile.spans[part + h];
    } else {
      factors = Combine(&sums->softmax[h], tile.spans[part + h]);
    }
#pragma unroll
    for (int c = 0; c < S::kPairs; ++c) {
      float2& out = sums->out[c][h];
      const float x = o[c][h].x + 0.0f;
      const float y = o[c][h].y + 0.0f;
      out = is_first
                ? make_float2(x, y)
                : make_float2(fmaf(x, factors.b, out.x * factors.a), fmaf(y, factors.b, out.y * factors.a));
    }
  }
}

}  // namespace sluice::cuda::attention
