#include <cfloat>

#include "kernels/cuda/device/attention.h"
#include "kernels/cuda/device/dots.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kWarps = kThreads / kLanes;
constexpr unsigned kRowsAWarp = 8;  // positions, four lanes each
constexpr unsigned kMaxPairs = 2;   // of columns a thread: up to 512 values

__device__ inline unsigned ValueBytes(KvKind kind) {
  return kind == KvKind::kF32 ? 4 : kind == KvKind::kF16 ? 2 : 1;
}

__device__ inline uint64_t RowOffset(const DeviceKv& kv, unsigned kv_head, unsigned token) {
  return (uint64_t{kv_head} * kPagePositions + token) * kv.head_dim * ValueBytes(kv.kind);
}

__device__ inline float ScaleAt(const DeviceKv& kv, const uint8_t* page, unsigned kv_head, unsigned token) {
  const float* const scales =
      reinterpret_cast<const float*>(page + uint64_t{kv.kv_heads} * kPagePositions * kv.head_dim);
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

// Two cached values, columns 2 i and 2 i + 1.
template <KvKind kKind>
__device__ inline float2 LoadPair(const uint8_t* row, bool aligned, unsigned i) {
  if (kKind == KvKind::kF16 && aligned) {
    return __half22float2(reinterpret_cast<const __half2*>(row)[i]);
  }
  return make_float2(LoadCachedOne<kKind>(row, 2 * i), LoadCachedOne<kKind>(row, 2 * i + 1));
}

// The dots of the position that the lane's four share with kHeads heads of q, in shared memory.
template <KvKind kKind, int kHeads>
__device__ inline void Scores(const uint8_t* row, unsigned aligned, const float* q, unsigned dim,
                              unsigned padded_dim, float (&out)[kHeads]) {
  float sums[kHeads][8] = {};
  if (row != nullptr) {
    for (unsigned first = threadIdx.x % 4 * 8; first < dim; first += kLanes) {
      float values[8];
      if (first + 8 <= dim) {
        LoadCached<kKind>(row, aligned, first, values);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          values[i] = first + i < dim ? LoadCachedOne<kKind>(row, first + i) : 0.0f;
        }
      }
      // q is padded with zeros to whole eights: what is beyond the row adds nothing.
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float4* const from = reinterpret_cast<const float4*>(q + h * padded_dim + first);
        const float4 a = from[0];
        const float4 b = from[1];
        sums[h][0] = fmaf(a.x, values[0], sums[h][0]);
        sums[h][1] = fmaf(a.y, values[1], sums[h][1]);
        sums[h][2] = fmaf(a.z, values[2], sums[h][2]);
        sums[h][3] = fmaf(a.w, values[3], sums[h][3]);
        sums[h][4] = fmaf(b.x, values[4], sums[h][4]);
        sums[h][5] = fmaf(b.y, values[5], sums[h][5]);
        sums[h][6] = fmaf(b.z, values[6], sums[h][6]);
        sums[h][7] = fmaf(b.w, values[7], sums[h][7]);
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    out[h] = TreeOfEight(sums[h]);
  }
}

// A span's softmax-weighted sum of one head, and what the spans before it have come to.
struct Softmax {
  float m;
  float l;
};

// Section 6, combining: what a running sum and the next span's are multiplied with.
struct Factors {
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

// What a block has: query heads [first_head, first_head + heads) of one KV head for one row, and their shared
// memory.
struct Tile {
  RowPlace place;
  unsigned kv_head;
  unsigned first_head;
  unsigned heads;
  unsigned padded;  // of a head of q: whole eights
  float* q;         // [kHeads][padded]
  float* scores;    // [kHeads][256]: scores, then what values are multiplied with
  float* v_scales;  // [256], q8
  Softmax* spans;   // [kHeads]
};

template <int kHeads>
__device__ inline void LoadQueries(const AttentionLaunch& launch, const Tile& tile) {
  const unsigned dim = launch.kv.head_dim;
  const float* const from = launch.q + tile.place.row * launch.q_stride + tile.first_head * dim;
  for (unsigned i = threadIdx.x; i < kHeads * tile.padded; i += kThreads) {
    const unsigned h = i / tile.padded;
    const unsigned d = i % tile.padded;
    tile.q[i] = h < tile.heads && d < dim ? from[h * dim + d] : 0.0f;
  }
}

// The scores of positions [first, last].
template <KvKind kKind, int kHeads>
__device__ inline void ScoreSpan(const AttentionLaunch& launch, const Tile& tile, unsigned first,
                                 unsigned last, unsigned k_aligned) {
  const DeviceKv& kv = launch.kv;
  const unsigned lane = threadIdx.x % kLanes;
  for (unsigned base = first + threadIdx.x / kLanes * kRowsAWarp; base <= last; base += kWarps * kRowsAWarp) {
    const unsigned p = base + lane / 4;
    const unsigned token = p % kPagePositions;
    const uint8_t* page = nullptr;
    const uint8_t* row = nullptr;
    if (p <= last) {
      page = kv.k + tile.place.pages[p / kPagePositions] * kv.page_stride;
      row = page + RowOffset(kv, tile.kv_head, token);
    }
    float dots[kHeads];
    Scores<kKind, kHeads>(row, k_aligned, tile.q, kv.head_dim, tile.padded, dots);
    if (p <= last && lane % 4 == 0) {
      const float scale = kKind == KvKind::kQ8 ? ScaleAt(kv, page, tile.kv_head, token) : 1.0f;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        tile.scores[h * kSpanPositions + p - first] =
            (kKind == KvKind::kQ8 ? dots[h] * scale : dots[h]) * launch.scale;
      }
      if (kKind == KvKind::kQ8) {
        const uint8_t* const v_page = kv.v + tile.place.pages[p / kPagePositions] * kv.page_stride;
        tile.v_scales[p - first] = ScaleAt(kv, v_page, tile.kv_head, token);
      }
    }
  }
}

// Scores to exponentials, a warp a head.
template <KvKind kKind, int kHeads>
__device__ inline void SoftmaxSpan(const Tile& tile, unsigned first, unsigned count) {
  const unsigned lane = threadIdx.x % kLanes;
  if (threadIdx.x >= tile.heads && threadIdx.x < kHeads) {
    tile.spans[threadIdx.x] = {0, 1};  // heads that are not there
  }
  for (unsigned h = threadIdx.x / kLanes; h < tile.heads; h += kWarps) {
    float* const scores = tile.scores + h * kSpanPositions;
    float m = -FLT_MAX;
    for (unsigned i = lane; i < count; i += kLanes) {
      m = fmaxf(m, scores[i]);
    }
    m = WarpMax(m);
    __syncwarp();  // other lanes have read what this one writes
    // A position's running sum is that of its number, which the span's beginning shifts.
    float l = 0;
    for (unsigned i = (lane + kLanes - first % kLanes) % kLanes; i < count; i += kLanes) {
      const float e = Exp(scores[i] - m);
      l += e;
      scores[i] = kKind == KvKind::kQ8 ? e * tile.v_scales[i] : e;
    }
    l = WarpTreeSum(l);
    if (lane == 0) {
      tile.spans[h] = {m, l};
    }
  }
}

// The span's weighted values of the thread's columns: positions ascending.
template <KvKind kKind, int kHeads>
__device__ inline void SumValues(const AttentionLaunch& launch, const Tile& tile, unsigned first,
                                 unsigned count, unsigned pair, bool v_aligned, float2 (&o)[kHeads]) {
  const DeviceKv& kv = launch.kv;
#pragma unroll 2
  for (unsigned i = 0; i < count; ++i) {
    const unsigned p = first + i;
    const uint8_t* const row = kv.v + tile.place.pages[p / kPagePositions] * kv.page_stride +
                               RowOffset(kv, tile.kv_head, p % kPagePositions);
    const float2 v = LoadPair<kKind>(row, v_aligned, pair);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float e = h < tile.heads ? tile.scores[h * kSpanPositions + i] : 0.0f;
      o[h].x = fmaf(e, v.x, o[h].x);
      o[h].y = fmaf(e, v.y, o[h].y);
    }
  }
}

// What spans have come to, for the heads and columns of a thread.
template <int kHeads>
struct Sums {
  Softmax softmax[kHeads];
  float2 out[kMaxPairs][kHeads];
};

template <KvKind kKind, int kHeads>
__device__ inline void AddSpan(const AttentionLaunch& launch, const Tile& tile, unsigned first,
                               unsigned count, bool is_first, bool v_aligned, Sums<kHeads>* sums) {
  Factors factors[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (is_first) {
      sums->softmax[h] = tile.spans[h];
    } else {
      factors[h] = Combine(&sums->softmax[h], tile.spans[h]);
    }
  }
#pragma unroll
  for (unsigned c = 0; c < kMaxPairs; ++c) {
    const unsigned pair = c * kThreads + threadIdx.x;
    if (pair >= launch.kv.value_dim / 2) {
      continue;
    }
    float2 o[kHeads] = {};
    SumValues<kKind, kHeads>(launch, tile, first, count, pair, v_aligned, o);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float2& out = sums->out[c][h];
      const float x = o[h].x + 0.0f;
      const float y = o[h].y + 0.0f;
      out = is_first ? make_float2(x, y)
                     : make_float2(fmaf(x, factors[h].b, out.x * factors[h].a),
                                   fmaf(y, factors[h].b, out.y * factors[h].a));
    }
  }
}

// The result of a head, or its partial sums.
template <int kHeads>
__device__ inline void WriteHead(const AttentionLaunch& launch, const Tile& tile, int h, Sums<kHeads>* sums) {
  const unsigned cols = launch.kv.value_dim;
  const unsigned head = tile.first_head + h;
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
    if (threadIdx.x == 0) {
      partial[0] = sum.m;
      partial[1] = sum.l;
    }
    to = partial + 2;
  }
#pragma unroll
  for (unsigned c = 0; c < kMaxPairs; ++c) {
    const unsigned pair = c * kThreads + threadIdx.x;
    if (pair < cols / 2) {
      float2 o = sums->out[c][h];
      if (sinks) {
        o = make_float2(fmaf(0.0f, sink.b, o.x * sink.a), fmaf(0.0f, sink.b, o.y * sink.a));
      }
      to[2 * pair] = whole ? o.x / sum.l : o.x;
      to[2 * pair + 1] = whole ? o.y / sum.l : o.y;
    }
  }
}

// The blocks of a multiprocessor that the kernel's registers have to leave room for.
template <int kHeads>
constexpr unsigned kBlocks = kHeads == 8   ? 2
                             : kHeads == 4 ? 3
                                           : 4;

// A block: kHeads query heads of one KV head for one row, over one span (splits above 1) or all of the row's
// spans in turn. Scores: four lanes a position, eight positions a warp, 16-byte loads of K, which lies in
// pages of 32 positions, and kHeads products for each value loaded. Softmax: a warp a head. Values: a thread
// keeps two columns (4-byte loads, 128 neighbouring bytes a warp) of all kHeads heads, positions ascending.
// Bytes: K and V of the visible positions once for kHeads heads. Bound: memory for decode steps; prompts read
// K and V again for every row, from the cache, and are bound by instructions.
template <KvKind kKind, int kHeads>
__global__ void __launch_bounds__(kThreads, kBlocks<kHeads>)
    AttentionKernel(AttentionLaunch launch, unsigned k_aligned, bool v_aligned) {
  extern __shared__ float4 shared4[];
  __shared__ Softmax spans[kHeads];
  const unsigned group = launch.heads / launch.kv.kv_heads;
  const unsigned tiles = (group + kHeads - 1) / kHeads;  // of a KV head
  Tile tile;
  tile.place = launch.places[blockIdx.x];
  tile.kv_head = blockIdx.y / tiles;
  tile.first_head = tile.kv_head * group + blockIdx.y % tiles * kHeads;
  tile.heads = min(static_cast<unsigned>(kHeads), (tile.kv_head + 1) * group - tile.first_head);
  tile.padded = (launch.kv.head_dim + 7) / 8 * 8;
  tile.q = reinterpret_cast<float*>(shared4);
  tile.scores = tile.q + kHeads * tile.padded;
  tile.v_scales = tile.scores + kHeads * kSpanPositions;
  tile.spans = spans;
  const unsigned first_span = tile.place.first_visible / kSpanPositions;
  const unsigned last_span = tile.place.position / kSpanPositions;
  const unsigned begin = launch.splits == 1 ? first_span : first_span + blockIdx.z;
  const unsigned end = launch.splits == 1 ? last_span : begin;
  if (begin > last_span) {
    return;
  }
  LoadQueries<kHeads>(launch, tile);
  Sums<kHeads> sums;
  for (unsigned s = begin; s <= end; ++s) {
    const unsigned first = max(tile.place.first_visible, s * kSpanPositions);
    const unsigned last = min(tile.place.position, s * kSpanPositions + kSpanPositions - 1);
    __syncthreads();
    ScoreSpan<kKind, kHeads>(launch, tile, first, last, k_aligned);
    __syncthreads();
    SoftmaxSpan<kKind, kHeads>(tile, first, last - first + 1);
    __syncthreads();
    AddSpan<kKind, kHeads>(launch, tile, first, last - first + 1, s == begin, v_aligned, &sums);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h < tile.heads) {
      WriteHead<kHeads>(launch, tile, h, &sums);
    }
  }
}

// A block a row and head: spans ascending, a thread a column, 128 neighbouring bytes a warp. Bytes: the
// partial sums once. Bound: latency.
__global__ void __launch_bounds__(kThreads) CombineSpansKernel(AttentionLaunch launch) {
  const RowPlace place = launch.places[blockIdx.x];
  const unsigned head = blockIdx.y;
  const unsigned cols = launch.kv.value_dim;
  const unsigned spans = place.position / kSpanPositions - place.first_visible / kSpanPositions + 1;
  const float* const partial =
      launch.partial + (uint64_t{blockIdx.x} * launch.heads + head) * launch.splits * (cols + 2);
  for (unsigned d = threadIdx.x; d < cols; d += kThreads) {
    Softmax sum = {partial[0], partial[1]};
    float o = partial[2 + d];
    for (unsigned s = 1; s < spans; ++s) {
      const float* const next = partial + s * (cols + 2);
      const Factors by = Combine(&sum, {next[0], next[1]});
      o = fmaf(next[2 + d], by.b, o * by.a);
    }
    if (launch.sinks != nullptr) {
      const Factors by = Combine(&sum, {launch.sinks[head], 1.0f});
      o = fmaf(0.0f, by.b, o * by.a);
    }
    launch.out[place.row * launch.out_stride + head * cols + d] = o / sum.l;
  }
}

unsigned AlignmentOf(const uint8_t* base, uint64_t page_stride, uint64_t row_bytes) {
  const uint64_t all = reinterpret_cast<uintptr_t>(base) | page_stride | row_bytes;
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 2;
}

template <KvKind kKind, int kHeads>
cudaError_t Enqueue(const AttentionLaunch& launch, cudaStream_t stream) {
  const unsigned group = launch.heads / launch.kv.kv_heads;
  const unsigned tiles = (group + kHeads - 1) / kHeads;
  const uint64_t padded = (launch.kv.head_dim + 7) / 8 * 8;
  const uint64_t shared = 4 * (kHeads * (padded + kSpanPositions) + kSpanPositions);
  const uint64_t row_bytes = uint64_t{launch.kv.head_dim} * (kKind == KvKind::kF32   ? 4
                                                             : kKind == KvKind::kF16 ? 2
                                                                                     : 1);
  AttentionKernel<kKind, kHeads>
      <<<dim3(launch.rows, launch.kv.kv_heads * tiles, launch.splits), kThreads, shared, stream>>>(
          launch, AlignmentOf(launch.kv.k, launch.kv.page_stride, row_bytes),
          AlignmentOf(launch.kv.v, launch.kv.page_stride, row_bytes) >= 4);
  return cudaGetLastError();
}

template <KvKind kKind>
cudaError_t EnqueueOf(const AttentionLaunch& launch, cudaStream_t stream) {
  const unsigned group = launch.heads / launch.kv.kv_heads;
  return group == 1   ? Enqueue<kKind, 1>(launch, stream)
         : group <= 4 ? Enqueue<kKind, 4>(launch, stream)
                      : Enqueue<kKind, 8>(launch, stream);
}

}  // namespace

cudaError_t EnqueueAttention(const AttentionLaunch& launch, cudaStream_t stream) {
  if (launch.kv.value_dim > 2 * kMaxPairs * kThreads || launch.kv.value_dim % 2 != 0) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = launch.kv.kind == KvKind::kF32   ? EnqueueOf<KvKind::kF32>(launch, stream)
                            : launch.kv.kind == KvKind::kF16 ? EnqueueOf<KvKind::kF16>(launch, stream)
                                                             : EnqueueOf<KvKind::kQ8>(launch, stream);
  if (error != cudaSuccess || launch.splits == 1) {
    return error;
  }
  CombineSpansKernel<<<dim3(launch.rows, launch.heads), kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace sluice::cuda
