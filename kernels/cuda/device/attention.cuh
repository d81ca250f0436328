// A thread block's share of an attention (heads, positions, shared memory), reads of cached values, and the
// combination of the spans' softmaxes.
#pragma once

#include <cfloat>

#include "kernels/cuda/device/attention.h"
#include "kernels/cuda/device/dots.cuh"

namespace sluice::cuda::attention {

constexpr unsigned kThreads = 128;
constexpr unsigned kWarps = kThreads / kLanes;
constexpr unsigned kRowsAWarp = 8;    // positions, four lanes each
constexpr unsigned kStages = 4;       // tiles of V on their way
constexpr unsigned kMaxOfATile = 32;  // positions, of one page
constexpr unsigned kStageBytes = 8 * 1024;
constexpr unsigned kMaxValues = 512;
// From head to head of a span's scores: four neighbouring heads of eight positions meet no bank twice.
constexpr unsigned kScoreStride = kSpanPositions + 8;

// The scale of a row of `dim` values.
__device__ inline float ScaleAt(const DeviceKv& kv, unsigned dim, const uint8_t* page, unsigned kv_head,
                                unsigned token) {
  const float* const scales =
      reinterpret_cast<const float*>(page + uint64_t{kv.kv_heads} * kPagePositions * dim);
  return scales[kv_head * kPagePositions + token];
}

// Eight cached values from column `first`, a multiple of 8, by the widest load that `aligned` allows.
template <KvKind kKind>
__device__ inline void LoadCached(const uint8_t* row, unsigned aligned, unsigned first, float (&values)[8]) {
  if (kKind == KvKind::kF32) {
    LoadEight<Encoding::kF32>(row, aligned, first, values);
  } else if (kKind == KvKind::kF16) {
    LoadEight<Encoding::kF16>(row, aligned, first, values);
  } else {
    uint32_t words[2];
    LoadWords(row + first, aligned, words);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = static_cast<float>(static_cast<signed char>(words[i / 4] >> (8 * (i % 4))));
    }
  }
}

template <KvKind kKind>
__device__ inline float LoadCachedOne(const uint8_t* row, unsigned column) {
  return kKind == KvKind::kF32   ? reinterpret_cast<const float*>(row)[column]
         : kKind == KvKind::kF16 ? HalfAt(row + 2 * column)
                                 : static_cast<float>(static_cast<signed char>(row[column]));
}

// A span's softmax-weighted sum of one head, and what the spans before it have come to.
struct alignas(8) Softmax {
  float m;
  float l;
};

// Section 6, combining: what a running sum and the next span's are multiplied with.
struct alignas(8) Factors {
  float a;
  float b;
};
__device__ inline Factors Combine(Softmax* sum, const Softmax& next) {
  const float m = sum->m < next.m ? next.m : sum->m;
  const Factors factors = {Exp(sum->m - m), Exp(next.m - m)};
  sum->l = fmaf(next.l, factors.b, sum->l * factors.a);
  sum->m = m;
  return factors;
}

// Two cached values, columns 2 i and 2 i + 1, of a row in shared memory.
template <KvKind kKind>
__device__ inline float2 LoadPair(const uint8_t* row, unsigned i) {
  if (kKind == KvKind::kF32) {
    return reinterpret_cast<const float2*>(row)[i];
  }
  if (kKind == KvKind::kF16) {
    float2 pair;
    TwoHalves(reinterpret_cast<const uint32_t*>(row)[i], &pair.x, &pair.y);
    return pair;
  }
  const char2 codes = reinterpret_cast<const char2*>(row)[i];
  return make_float2(static_cast<float>(static_cast<signed char>(codes.x)),
                     static_cast<float>(static_cast<signed char>(codes.y)));
}

// The shape of a block. kHeads query heads share the K and V that are read. With kDim above 0 heads have so
// many values, all rows are aligned to 16 bytes, and q is kept in registers; else q is in shared memory. For
// values the threads are parts: one has kPartHeads heads and kPairs pairs of columns, kPairThreads apart.
template <KvKind kKind_, int kHeads_, int kDim_>
struct Shape {
  static constexpr KvKind kKind = kKind_;
  static constexpr int kHeads = kHeads_;
  static constexpr int kDim = kDim_;
  static constexpr int kSteps = kDim / static_cast<int>(kLanes);
  static constexpr int kAtOnce = kHeads == 1 ? 1 : 4;  // heads whose dots a lane makes side by side
  static constexpr int kMaxColumns = kDim > 0 ? kDim : static_cast<int>(kMaxValues);
  static constexpr int kParts = kHeads == 1 ? 1 : kDim == 64 ? 4 : 2;
  static constexpr int kPartHeads = kHeads / kParts;
  static constexpr unsigned kPairThreads = kThreads / kParts;
  static constexpr int kPairs = (kMaxColumns / 2 + kPairThreads - 1) / kPairThreads;
  static constexpr unsigned kValueBytes = kKind == KvKind::kF32 ? 4 : kKind == KvKind::kF16 ? 2 : 1;
  // A row of V in shared memory, and positions in a tile of V: constants, so that a thread's addresses are.
  static constexpr unsigned kRowBytes = kMaxColumns * kValueBytes;
  static constexpr unsigned kTile =
      kMaxOfATile * kRowBytes <= kStageBytes ? kMaxOfATile : kStageBytes / kRowBytes;
  static constexpr unsigned kTileBytes = kTile * kRowBytes;
};

// Where a position's K or V, of `stored` values, stands in its page; a page is smaller than 4 GiB.
template <typename S>
__device__ inline unsigned RowOffset(unsigned stored, unsigned kv_head, unsigned token) {
  const unsigned dim = S::kDim > 0 ? S::kDim : stored;
  return (kv_head * kPagePositions + token) * dim * S::kValueBytes;
}

// Alignment of K's and V's rows, a power of two up to 16.
struct Widths {
  unsigned k_aligned;
  unsigned v_aligned;
  bool operator==(const Widths& other) const = default;
};

// A block's work: heads [first_head, first_head + heads) of one KV head for one row, positions [first, last]
// of a span, and shared memory.
struct Tile {
  RowPlace place;
  unsigned kv_head;
  unsigned first_head;
  unsigned heads;
  unsigned padded;  // of a head of q in shared memory: whole 32
  unsigned first;
  unsigned last;
  float* q;  // [kHeads][padded], unless registers have it
  // [kHeads][kScoreStride], by position of the span: scores, then what values are multiplied with.
  float* scores;
  float* v_scales;  // [256], q8
  Softmax* spans;   // [kHeads]
  uint8_t* values;  // [kStages][kTile][kRowBytes]
};

// Scores of a span's positions from K, four lanes a position, and their exponentials.

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
    const uint8_t* const row = k_page + RowOffset<S>(kv.head_dim, tile.kv_head, token);
    const float scale = kScaled ? ScaleAt(kv, kv.head_dim, k_page, tile.kv_head, token) : 1.0f;
#pragma unroll
    for (unsigned head = 0; head < S::kHeads; head += S::kAtOnce) {
      const float dot = Dots<S>(row, k_aligned, q, tile, head, kv.head_dim);
      const unsigned h = S::kAtOnce == 1 ? 0 : head + lane % 4;
      if (inside && (S::kAtOnce > 1 || lane % 4 == 0)) {
        tile.scores[h * kScoreStride + p % kSpanPositions] = (kScaled ? dot * scale : dot) * launch.scale;
      }
    }
    if (kScaled && inside && lane % 4 == 0) {
      tile.v_scales[p % kSpanPositions] =
          ScaleAt(kv, kv.v_dim, kv.v + page * kv.v_page_stride, tile.kv_head, token);
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

// A span's sums of V, weighted: tiles of V on their way to shared memory, a thread pairs of columns of some
// of the heads.

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

// Copies `aligned` bytes to shared memory.
__device__ inline void CopyPiece(const uint8_t* from, unsigned aligned, uint8_t* to) {
  if (aligned == 16) {
    __pipeline_memcpy_async(to, from, 16);
  } else if (aligned == 4) {
    __pipeline_memcpy_async(to, from, 4);
  } else {
    *reinterpret_cast<uint16_t*>(to) = *reinterpret_cast<const uint16_t*>(from);
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
    CopyPiece(from + row * from_row + at, aligned, to + row * S::kRowBytes + at);
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
    const uint8_t* const page = kv.v + tile.place.pages[begin / kPagePositions] * kv.v_page_stride;
    const uint8_t* const from = page + RowOffset<S>(kv.v_dim, tile.kv_head, first % kPagePositions);
    uint8_t* const to = tile.values + n % kStages * S::kTileBytes + (first - begin) * S::kRowBytes;
    if constexpr (S::kDim > 0) {
      uint8_t* const own = to + 16 * threadIdx.x;
      CopyRows<S>(from + 16 * threadIdx.x, end - first, own,
                  static_cast<unsigned>(__cvta_generic_to_shared(own)));
    } else {
      CopyRows<S>(from, kv.v_dim * S::kValueBytes, kv.value_dim * S::kValueBytes, v_aligned, end - first, to);
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

// A span's weighted values, positions ascending, tile by tile as they come; fetch(n) starts the copies of
// tile n.
template <typename S, typename Fetch>
__device__ inline void SumValues(const AttentionLaunch& launch, const Tile& tile, Fetch fetch,
                                 Outputs<S>& o) {
  const unsigned part = threadIdx.x / S::kPairThreads * S::kPartHeads;
  const unsigned tiles = tile.last / S::kTile - tile.first / S::kTile + 1;
  const unsigned pairs = S::kDim > 0 ? S::kDim / 2 : launch.kv.value_dim / 2;
  for (unsigned n = 0; n < tiles; ++n) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();
    // Where tile n - 1 was, which all have behind them.
    fetch(n + kStages - 1);
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

template <typename S, typename Fetch>
__device__ inline void AddSpan(const AttentionLaunch& launch, const Tile& tile, Fetch fetch, bool is_first,
                               Sums<S>* sums) {
  const unsigned part = threadIdx.x / S::kPairThreads * S::kPartHeads;
  Outputs<S> o = {};
  SumValues<S>(launch, tile, fetch, o);
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

// Writes the result of a head, or its partial sums, by the threads that have its columns.
template <typename S>
__device__ inline void WriteHead(const AttentionLaunch& launch, const Tile& tile, int h, Sums<S>* sums) {
  const unsigned cols = launch.kv.value_dim;
  const unsigned head = tile.first_head + threadIdx.x / S::kPairThreads * S::kPartHeads + h;
  const unsigned pair = threadIdx.x % S::kPairThreads;
  Softmax& sum = sums->softmax[h];
  const bool whole = launch.splits == 1;
  const bool sinks = whole && launch.sinks != nullptr;
  Factors sink = {1, 0};
  float* to = launch.out + tile.place.row * launch.out_stride + head * cols;
  if (sinks) {
    sink = Combine(&sum, {launch.sinks[head], 1.0f});
  }
  if (!whole) {
    float* const partial =
        launch.partial +
        ((uint64_t{blockIdx.x} * launch.heads + head) * launch.splits + blockIdx.z) * (cols + 2);
    if (pair == 0) {
      partial[0] = sum.m;
      partial[1] = sum.l;
    }
    to = partial + 2;
  }
#pragma unroll
  for (unsigned c = 0; c < S::kPairs; ++c) {
    const unsigned at = c * S::kPairThreads + pair;
    if (at < cols / 2) {
      float2 o = sums->out[c][h];
      if (sinks) {
        o = make_float2(fmaf(0.0f, sink.b, o.x * sink.a), fmaf(0.0f, sink.b, o.y * sink.a));
      }
      to[2 * at] = whole ? o.x / sum.l : o.x;
      to[2 * at + 1] = whole ? o.y / sum.l : o.y;
    }
  }
}

// Places a tile's arrays in a block's shared memory.
template <typename S>
__device__ inline void PlaceTile(const AttentionLaunch& launch, uint8_t* shared, Softmax* spans, Tile* tile) {
  tile->padded = (launch.kv.head_dim + kLanes - 1) / kLanes * kLanes;
  tile->values = shared;
  tile->scores = reinterpret_cast<float*>(shared + kStages * S::kTileBytes);
  tile->v_scales = tile->scores + S::kHeads * kScoreStride;
  tile->q = tile->v_scales + kSpanPositions;
  tile->spans = spans;
}

// Shared memory of a block whose heads have `head_dim` values.
template <typename S>
uint64_t SharedBytes(unsigned head_dim) {
  const uint64_t padded = S::kDim > 0 ? 0 : (head_dim + kLanes - 1) / kLanes * kLanes;
  return uint64_t{kStages} * S::kTileBytes + 4 * (S::kHeads * (padded + kScoreStride) + kSpanPositions);
}

inline unsigned AlignmentOf(const uint8_t* base, uint64_t page_stride, uint64_t row_bytes) {
  const uint64_t all = reinterpret_cast<uintptr_t>(base) | page_stride | row_bytes;
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 2;
}

}  // namespace sluice::cuda::attention
