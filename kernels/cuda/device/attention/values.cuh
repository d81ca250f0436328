// A span's sums of V, weighted: tiles of V on their way to shared memory, a thread two columns of half the
// heads.
#pragma once

#include "kernels/cuda/device/attention/block.cuh"

namespace sluice::cuda::attention {

// Copies tile `n` of the span's V, those of its positions that are seen, into its stage: 16 bytes a thread
// where the rows' alignment allows. One group of asynchronous copies, which may be empty.
template <typename S>
__device__ inline void FetchValues(const AttentionLaunch& launch, const Tile& tile, const Widths& widths,
                                   unsigned n) {
  const DeviceKv& kv = launch.kv;
  const unsigned begin = tile.first / widths.tile * widths.tile + n * widths.tile;
  const unsigned first = max(begin, tile.first);
  const unsigned end = min(begin + widths.tile, tile.last + 1);
  if (first < end) {
    const uint8_t* const page = kv.v + tile.place.pages[begin / kPagePositions] * kv.page_stride;
    const uint8_t* const from = page + RowOffset(kv, tile.kv_head, first % kPagePositions);
    const unsigned from_row = kv.head_dim * ValueBytes(S::kKind);
    uint8_t* const to = tile.values + (n % kStages * widths.tile + first - begin) * widths.row_bytes;
    const unsigned bytes = kv.value_dim * ValueBytes(S::kKind);
    const unsigned pieces = (bytes + widths.v_aligned - 1) / widths.v_aligned;
    const unsigned rows_a_turn = kThreads / pieces;
    const unsigned pieces_a_turn = kThreads % pieces;
    unsigned row = threadIdx.x / pieces;
    unsigned piece = threadIdx.x % pieces;
    while (row < end - first) {
      uint8_t* const place = to + row * widths.row_bytes + piece * widths.v_aligned;
      const uint8_t* const source = from + row * from_row + piece * widths.v_aligned;
      if (widths.v_aligned == 16) {
        __pipeline_memcpy_async(place, source, 16);
      } else if (widths.v_aligned == 4) {
        __pipeline_memcpy_async(place, source, 4);
      } else {
        *reinterpret_cast<uint16_t*>(place) = *reinterpret_cast<const uint16_t*>(source);
      }
      row += rows_a_turn;
      piece += pieces_a_turn;
      if (piece >= pieces) {
        piece -= pieces;
        ++row;
      }
    }
  }
  __pipeline_commit();
}

// What a position's value is multiplied with, of the thread's heads.
template <typename S>
__device__ inline void LoadWeights(const float* from, float (&weights)[S::kPartHeads]) {
  if constexpr (S::kPartHeads == 2) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    weights[0] = two.x;
    weights[1] = two.y;
  } else if constexpr (S::kPartHeads == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    weights[0] = four.x;
    weights[1] = four.y;
    weights[2] = four.z;
    weights[3] = four.w;
  } else {
    weights[0] = from[0];
  }
}

// A span's weighted values of the thread's columns and heads, positions ascending, tile by tile as they come.
template <typename S>
using Outputs = float2[S::kPairs][S::kPartHeads];

template <typename S>
__device__ inline void SumValues(const AttentionLaunch& launch, const Tile& tile, const Widths& widths,
                                 Outputs<S>& o) {
  const unsigned part = threadIdx.x / S::kPairThreads * S::kPartHeads;
  const unsigned pair = threadIdx.x % S::kPairThreads;
  const unsigned tiles = tile.last / widths.tile - tile.first / widths.tile + 1;
  const unsigned pairs = launch.kv.value_dim / 2;
  for (unsigned n = 0; n < tiles; ++n) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();
    FetchValues<S>(launch, tile, widths,
                   n + kStages - 1);  // where tile n - 1 was, which all have behind them
    const unsigned begin = tile.first / widths.tile * widths.tile + n * widths.tile;
    const unsigned first = max(begin, tile.first);
    const unsigned end = min(begin + widths.tile, tile.last + 1);
    const uint8_t* const rows = tile.values + (n % kStages * widths.tile + first - begin) * widths.row_bytes;
    const float* const weights = tile.scores + (first - tile.first) * S::kHeads + part;
#pragma unroll
    for (unsigned c = 0; c < S::kPairs; ++c) {
      const unsigned at = c * S::kPairThreads + pair;
      if (at < pairs) {
        const uint8_t* row = rows;
        const float* weight = weights;
#pragma unroll 8
        for (unsigned i = first; i < end; ++i) {
          const float2 v = LoadPair<S::kKind>(row, at);
          float e[S::kPartHeads];
          LoadWeights<S>(weight, e);
#pragma unroll
          for (int h = 0; h < S::kPartHeads; ++h) {
            o[c][h].x = fmaf(e[h], v.x, o[c][h].x);
            o[c][h].y = fmaf(e[h], v.y, o[c][h].y);
          }
          row += widths.row_bytes;
          weight += S::kHeads;
        }
      }
    }
  }
}

// What spans have come to, for the heads and columns of a thread.
template <typename S>
struct Sums {
  Softmax softmax[S::kPartHeads];
  Outputs<S> out;
};

template <typename S>
__device__ inline void AddSpan(const AttentionLaunch& launch, const Tile& tile, const Widths& widths,
                               bool is_first, Sums<S>* sums) {
  const unsigned part = threadIdx.x / S::kPairThreads * S::kPartHeads;
  Outputs<S> o = {};
  SumValues<S>(launch, tile, widths, o);
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
