#include <algorithm>

#include "kernels/cuda/device/attention/attention.h"
#include "kernels/cuda/device/attention/scores.cuh"
#include "kernels/cuda/device/attention/values.cuh"

namespace sluice::cuda {
namespace {

using namespace attention;

// The result of a head, or its partial sums, by the threads that have its columns.
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

// A block: kHeads query heads of one KV head for one row, over one span (splits above 1) or all of the row's
// spans in turn. V's first tiles are on their way to shared memory while K is read: four lanes a position,
// 16-byte loads, 64 neighbouring bytes a position, eight positions of a page a warp, times q in registers.
// Softmax: a warp a head. Values: a thread keeps two columns of half the heads, positions ascending; V comes
// by 16-byte copies, tile by tile, three ahead. Bytes: K and V of the visible positions once for kHeads
// heads; a group of more heads than four reads them again, from the cache. Bound: memory for decode steps,
// instructions where eight heads share a KV head; prompts read K and V again for every row, from the cache,
// and are bound by instructions.
template <typename S>
__global__ void __launch_bounds__(kThreads, 2) AttentionKernel(AttentionLaunch launch, Widths widths) {
  extern __shared__ float4 shared4[];
  __shared__ Softmax spans[S::kHeads];
  const unsigned group = launch.heads / launch.kv.kv_heads;
  const unsigned tiles = (group + S::kHeads - 1) / S::kHeads;  // of a KV head
  Tile tile;
  tile.place = launch.places[blockIdx.x];
  tile.kv_head = blockIdx.y / tiles;
  tile.first_head = tile.kv_head * group + blockIdx.y % tiles * S::kHeads;
  tile.heads = min(static_cast<unsigned>(S::kHeads), (tile.kv_head + 1) * group - tile.first_head);
  tile.padded = (launch.kv.head_dim + kLanes - 1) / kLanes * kLanes;
  tile.values = reinterpret_cast<uint8_t*>(shared4);
  tile.scores = reinterpret_cast<float*>(tile.values + kStages * widths.tile * widths.row_bytes);
  tile.v_scales = tile.scores + S::kHeads * kSpanPositions;
  tile.q = tile.v_scales + kSpanPositions;
  tile.spans = spans;
  const unsigned first_span = tile.place.first_visible / kSpanPositions;
  const unsigned last_span = tile.place.position / kSpanPositions;
  const unsigned begin = launch.splits == 1 ? first_span : first_span + blockIdx.z;
  const unsigned end = launch.splits == 1 ? last_span : begin;
  if (begin > last_span) {
    return;
  }
  LaneQueries<S> q;
  q.Load(launch, tile, widths.q_aligned);
  Sums<S> sums;
  for (unsigned s = begin; s <= end; ++s) {
    tile.first = max(tile.place.first_visible, s * kSpanPositions);
    tile.last = min(tile.place.position, s * kSpanPositions + kSpanPositions - 1);
    __syncthreads();
    for (unsigned n = 0; n + 1 < kStages; ++n) {
      FetchValues<S>(launch, tile, widths, n);
    }
    ScoreSpan<S>(launch, tile, q, widths.k_aligned);
    __syncthreads();
    SoftmaxSpan<S>(tile);
    AddSpan<S>(launch, tile, widths, s == begin, &sums);
  }
  __pipeline_wait_prior(0);
  const unsigned part = threadIdx.x / S::kPairThreads * S::kPartHeads;
#pragma unroll
  for (int h = 0; h < S::kPartHeads; ++h) {
    if (part + h < tile.heads) {
      WriteHead<S>(launch, tile, h, &sums);
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

template <typename S>
cudaError_t Enqueue(const AttentionLaunch& launch, cudaStream_t stream) {
  const DeviceKv& kv = launch.kv;
  const unsigned group = launch.heads / kv.kv_heads;
  const unsigned tiles = (group + S::kHeads - 1) / S::kHeads;
  const uint64_t value = S::kKind == KvKind::kF32 ? 4 : S::kKind == KvKind::kF16 ? 2 : 1;
  const uint64_t row_bytes = kv.head_dim * value;
  Widths widths;
  widths.q_aligned =
      reinterpret_cast<uintptr_t>(launch.q) % 16 == 0 && launch.q_stride % 4 == 0 && kv.head_dim % 8 == 0;
  widths.k_aligned = AlignmentOf(kv.k, kv.page_stride, row_bytes);
  widths.v_aligned = AlignmentOf(kv.v, kv.page_stride, row_bytes);
  widths.row_bytes = static_cast<unsigned>((kv.value_dim * value + 15) / 16 * 16);
  widths.tile = kMostOfATile;
  while (widths.tile > 1 && widths.tile * widths.row_bytes > kStageBytes) {
    widths.tile /= 2;
  }
  const uint64_t padded = S::kSteps > 0 ? 0 : (kv.head_dim + kLanes - 1) / kLanes * kLanes;
  const uint64_t shared = uint64_t{kStages} * widths.tile * widths.row_bytes +
                          4 * (S::kHeads * (padded + kSpanPositions) + kSpanPositions);
  if (shared > kDefaultShared) {
    const cudaError_t error = cudaFuncSetAttribute(
        AttentionKernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) {
      return error;
    }
  }
  AttentionKernel<S>
      <<<dim3(launch.rows, kv.kv_heads * tiles, launch.splits), kThreads, shared, stream>>>(launch, widths);
  return cudaGetLastError();
}

template <KvKind kKind>
cudaError_t EnqueueOf(const AttentionLaunch& launch, cudaStream_t stream) {
  constexpr int kSteps = 4;  // heads of up to 128 values
  const unsigned group = launch.heads / launch.kv.kv_heads;
  if (launch.kv.head_dim <= kSteps * kLanes) {
    return group == 1 ? Enqueue<Shape<kKind, 1, kSteps>>(launch, stream)
                      : Enqueue<Shape<kKind, 4, kSteps>>(launch, stream);
  }
  return group == 1 ? Enqueue<Shape<kKind, 1, 0>>(launch, stream)
                    : Enqueue<Shape<kKind, 8, 0>>(launch, stream);
}

}  // namespace

cudaError_t EnqueueAttention(const AttentionLaunch& launch, cudaStream_t stream) {
  if (launch.kv.value_dim > kMostValues || launch.kv.value_dim % 2 != 0) {
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
