// Scores of a span's positions from K, four lanes a position, and their exponentials.
#pragma once

#include <cfloat>

#include "kernels/cuda/device/attention/block.cuh"

namespace sluice::cuda::attention {

// The head of four whose dot a lane keeps at place i: its own first, lane mod 4, then those that it gives to
// its neighbours.
template <int kAtOnce>
__device__ inline unsigned HeadAt(unsigned i) {
  return kAtOnce == 1 ? i : i ^ threadIdx.x % 4;
}

// The values of q that a lane multiplies: columns 32 s + 8 j .. 8 j + 7, j = lane mod 4, of HeadAt(i).
template <typename S>
struct LaneQueries {
  float values[S::kAtOnce][S::kSteps > 0 ? S::kSteps : 1][8];

  __device__ void Load(const AttentionLaunch& launch, const Tile& tile) {
    const unsigned dim = launch.kv.head_dim;
    const float* const from = launch.q + tile.place.row * launch.q_stride + tile.first_head * dim;
    if constexpr (S::kDim > 0) {
      Keep(from, tile.heads);
    } else {
      for (unsigned i = threadIdx.x; i < S::kHeads * tile.padded; i += kThreads) {
        const unsigned h = i / tile.padded;
        const unsigned d = i % tile.padded;
        tile.q[i] = h < tile.heads && d < dim ? from[h * dim + d] : 0.0f;
      }
    }
  }

  // A head that is not there has the values of the first one: its dots go nowhere.
  __device__ void Keep(const float* from, unsigned heads) {
#pragma unroll
    for (int i = 0; i < S::kAtOnce; ++i) {
      const unsigned h = HeadAt<S::kAtOnce>(i);
      const float4* const fours =
          reinterpret_cast<const float4*>(from + (h < heads ? h * S::kDim : 0) + threadIdx.x % 4 * 8);
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        const float4 a = fours[step * (kLanes / 4)];
        const float4 b = fours[step * (kLanes / 4) + 1];
        float(&eight)[8] = values[i][step];
        eight[0] = a.x;
        eight[1] = a.y;
        eight[2] = a.z;
        eight[3] = a.w;
        eight[4] = b.x;
        eight[5] = b.y;
        eight[6] = b.z;
        eight[7] = b.w;
      }
    }
  }
};

// Eight values of a row of `dim` from column `first` on, zeros behind its end.
template <KvKind kKind>
__device__ inline void LoadEightOf(const uint8_t* row, unsigned aligned, unsigned first, unsigned dim,
                                   float (&values)[8]) {
  if (first + 8 <= dim) {
    LoadCached<kKind>(row, aligned, first, values);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = first + i < dim ? LoadCachedOne<kKind>(row, first + i) : 0.0f;
  }
}

// The tree of section 0 for four heads at once: lane j of four keeps the running sums 8 j .. 8 j + 7 of each
// at HeadAt()'s places, and gets the sum of head j. In every step a lane gives half of its heads away, and
// adds what it gets of the others: first the sums 16 apart, then those 8 apart, the rest by itself.
__device__ inline float TreeOfFourHeads(const float (&sums)[4][8]) {
  float s[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float own = sums[0][i] + ShuffleXor<2>(sums[2][i]);
    const float other = sums[1][i] + ShuffleXor<2>(sums[3][i]);
    s[i] = own + ShuffleXor<1>(other);
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])) + 0.0f;
}

// The dots of the lane's position with kAtOnce heads from `head` on; lane j of four gets that of head j.
template <typename S>
__device__ inline float Dots(const uint8_t* row, unsigned aligned, const LaneQueries<S>& q, const Tile& tile,
                             unsigned head, unsigned dim) {
  float sums[S::kAtOnce][8] = {};
  const unsigned j = threadIdx.x % 4 * 8;
  if constexpr (S::kDim > 0) {
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      float k[8];
      LoadCached<S::kKind>(row, 16, step * kLanes + j, k);
#pragma unroll
      for (int h = 0; h < S::kAtOnce; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          sums[h][i] = fmaf(q.values[h][step][i], k[i], sums[h][i]);
        }
      }
    }
  } else {
    for (unsigned first = j; first < tile.padded; first += kLanes) {
      float k[8];
      LoadEightOf<S::kKind>(row, aligned, first, dim, k);
#pragma unroll
      for (int h = 0; h < S::kAtOnce; ++h) {
        const float4* const from =
            reinterpret_cast<const float4*>(tile.q + (head + HeadAt<S::kAtOnce>(h)) * tile.padded + first);
        const float4 a = from[0];
        const float4 b = from[1];
        const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          sums[h][i] = fmaf(x[i], k[i], sums[h][i]);
        }
      }
    }
  }
  __syncwarp();
  if constexpr (S::kAtOnce == 1) {
    return TreeOfEight(sums[0]);
  } else {
    return TreeOfFourHeads(sums);
  }
}

// The scores of the tile's positions: four lanes a position, eight neighbouring positions of a page a warp.
template <typename S>
__device__ inline void ScoreSpan(const AttentionLaunch& launch, const Tile& tile, const LaneQueries<S>& q,
                                 unsigned k_aligned) {
  constexpr bool kScaled = S::kKind == KvKind::kQ8;
  const DeviceKv& kv = launch.kv;
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned from = tile.first / kRowsAWarp * kRowsAWarp + threadIdx.x / kLanes * kRowsAWarp;
#pragma unroll 2
  for (unsigned base = from; base <= tile.last; base += kWarps * kRowsAWarp) {
    const unsigned p = base + lane / 4;
    const bool inside = p >= tile.first && p <= tile.last;
    const unsigned token = min(max(p, tile.first), tile.last) % kPagePositions;
    const unsigned page = tile.place.pages[base / kPagePositions];
    const uint8_t* const k_page = kv.k + page * kv.page_stride;
    const uint8_t* const row = k_page + RowOffset<S>(kv, tile.kv_head, token);
    const float scale = kScaled ? ScaleAt(kv, k_page, tile.kv_head, token) : 1.0f;
#pragma unroll
    for (unsigned head = 0; head < S::kHeads; head += S::kAtOnce) {
      const float dot = Dots<S>(row, k_aligned, q, tile, head, kv.head_dim);
      const unsigned h = S::kAtOnce == 1 ? 0 : head + lane % 4;
      if (inside && (S::kAtOnce > 1 || lane % 4 == 0)) {
        tile.scores[h * kScoreStride + p % kSpanPositions] = (kScaled ? dot * scale : dot) * launch.scale;
      }
    }
    if (kScaled && inside && lane % 4 == 0) {
      tile.v_scales[p % kSpanPositions] = ScaleAt(kv, kv.v + page * kv.page_stride, tile.kv_head, token);
    }
  }
}

// Scores to exponentials, a warp a head: a lane has the positions of one running sum.
template <typename S>
__device__ inline void SoftmaxSpan(const Tile& tile) {
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned begin = tile.first % kSpanPositions;
  const unsigned end = tile.last % kSpanPositions + 1;
  const unsigned first = (begin - lane + kLanes - 1) / kLanes * kLanes + lane;
  if (threadIdx.x >= tile.heads && threadIdx.x < S::kHeads) {
    tile.spans[threadIdx.x] = {0, 1};  // heads that are not there
  }
  for (unsigned h = threadIdx.x / kLanes; h < tile.heads; h += kWarps) {
    float* const scores = tile.scores + h * kScoreStride;
    float m = -FLT_MAX;
#pragma unroll 4
    for (unsigned i = first; i < end; i += kLanes) {
      m = fmaxf(m, scores[i]);
    }
    m = WarpMax(m);
    float l = 0;
#pragma unroll 4
    for (unsigned i = first; i < end; i += kLanes) {
      const float e = Exp(scores[i] - m);
      l += e;
      scores[i] = S::kKind == KvKind::kQ8 ? e * tile.v_scales[i] : e;
    }
    l = WarpTreeSum(l);
    if (lane == 0) {
      tile.spans[h] = {m, l};
    }
  }
}

}  // namespace sluice::cuda::attention
