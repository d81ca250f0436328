#include <algorithm>

#include "kernels/cuda/device/attention.cuh"
#include "kernels/cuda/device/attention.h"

namespace sluice::cuda {
namespace {

using namespace attention;

// A block: kHeads query heads of one KV head for one row, over one span (splits above 1) or all of the row's
// spans in turn. V's first tiles are on their way to shared memory while K is read: four lanes a position,
// 16-byte loads, 64 neighbouring bytes a position, eight positions of a page a warp, times q in registers.
// Softmax: a warp a head. Values: a thread keeps two columns of half the heads, positions ascending, four
// positions' weights a load; V comes by 16-byte copies, tile by tile, three ahead. Bytes: K and V of the
// visible positions once for kHeads heads; a group of more heads than four reads them again, from the cache.
// Bound: memory for decode steps, instructions where eight heads share a KV head; prompts read K and V again
// for every row, from the cache, and are bound by instructions.
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
  PlaceTile<S>(launch, reinterpret_cast<uint8_t*>(shared4), spans, &tile);
  const unsigned first_span = tile.place.first_visible / kSpanPositions;
  const unsigned last_span = tile.place.position / kSpanPositions;
  const unsigned begin = launch.splits == 1 ? first_span : first_span + blockIdx.z;
  const unsigned end = launch.splits == 1 ? last_span : begin;
  if (begin > last_span) {
    return;
  }
  LaneQueries<S> q;
  q.Load(launch, tile);
  Sums<S> sums;
  for (unsigned s = begin; s <= end; ++s) {
    tile.first = max(tile.place.first_visible, s * kSpanPositions);
    tile.last = min(tile.place.position, s * kSpanPositions + kSpanPositions - 1);
    __syncthreads();
    const auto fetch = [&](unsigned n) { FetchValues<S>(launch, tile, widths.v_aligned, n); };
    for (unsigned n = 0; n + 1 < kStages; ++n) {
      fetch(n);
    }
    ScoreSpan<S>(launch, tile, q, widths.k_aligned);
    __syncthreads();
    SoftmaxSpan<S>(tile);
    AddSpan<S>(launch, tile, fetch, s == begin, &sums);
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

// A block a row and head, up to 128 spans at once: a thread makes the factors of one, from the maxima of
// those before it; then spans ascending, a thread kColumns columns, 128 neighbouring bytes a warp. Bytes: the
// partial sums once. Bound: latency.
template <int kColumns>
__global__ void __launch_bounds__(kThreads) CombineSpansKernel(AttentionLaunch launch) {
  __shared__ Softmax parts[kThreads];
  __shared__ Factors factors[kThreads];
  __shared__ float shared_max;
  const RowPlace place = launch.places[blockIdx.x];
  const unsigned head = blockIdx.y;
  const unsigned cols = launch.kv.value_dim;
  const unsigned spans = place.last_visible / kSpanPositions - place.first_visible / kSpanPositions + 1;
  const float* const partial =
      launch.partial + (uint64_t{blockIdx.x} * launch.heads + head) * launch.splits * (cols + 2);
  Softmax sum = {partial[0], partial[1]};
  const float* next[kColumns];
  float o[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    next[c] = partial + 2 + min(c * kThreads + threadIdx.x, cols - 1);
    o[c] = *next[c];
  }
  for (unsigned first = 1; first < spans; first += kThreads) {
    const unsigned count = min(kThreads, spans - first);
    if (threadIdx.x < count) {
      const float* const part = partial + (first + threadIdx.x) * (cols + 2);
      parts[threadIdx.x] = {part[0], part[1]};
    }
    __syncthreads();
    if (threadIdx.x < count) {
      Softmax before = {sum.m, 0};
      for (unsigned i = 0; i < threadIdx.x; ++i) {
        before.m = before.m < parts[i].m ? parts[i].m : before.m;
      }
      factors[threadIdx.x] = Combine(&before, parts[threadIdx.x]);
      if (threadIdx.x == count - 1) {
        shared_max = before.m;
      }
    }
    __syncthreads();
#pragma unroll 4
    for (unsigned i = 0; i < count; ++i) {
      const Factors by = factors[i];
      sum.l = fmaf(parts[i].l, by.b, sum.l * by.a);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        next[c] += cols + 2;
        o[c] = fmaf(*next[c], by.b, o[c] * by.a);
      }
    }
    sum.m = shared_max;
    __syncthreads();
  }
  Factors sink = {1, 0};
  if (launch.sinks != nullptr) {
    sink = Combine(&sum, {launch.sinks[head], 1.0f});
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const unsigned column = c * kThreads + threadIdx.x;
    if (column < cols) {
      const float whole = launch.sinks == nullptr ? o[c] : fmaf(0.0f, sink.b, o[c] * sink.a);
      launch.out[place.row * launch.out_stride + head * cols + column] = whole / sum.l;
    }
  }
}

template <typename S>
cudaError_t Enqueue(const AttentionLaunch& launch, const Widths& widths, Launcher& launcher) {
  const DeviceKv& kv = launch.kv;
  const unsigned group = launch.heads / kv.kv_heads;
  const unsigned tiles = (group + S::kHeads - 1) / S::kHeads;
  return launcher.Launch(AttentionKernel<S>, dim3(launch.rows, kv.kv_heads * tiles, launch.splits), kThreads,
                         SharedBytes<S>(kv.head_dim), launch, widths);
}

cudaError_t Combine(const AttentionLaunch& launch, Launcher& launcher) {
  const dim3 grid(launch.rows, launch.heads);
  return launch.kv.value_dim <= kThreads
             ? launcher.Launch(CombineSpansKernel<1>, grid, kThreads, 0, launch)
             : launcher.Launch(CombineSpansKernel<kMaxValues / kThreads>, grid, kThreads, 0, launch);
}

template <KvKind kKind>
cudaError_t EnqueueOf(const AttentionLaunch& launch, Launcher& launcher) {
  const DeviceKv& kv = launch.kv;
  constexpr uint64_t kBytes = kKind == KvKind::kF32 ? 4 : kKind == KvKind::kF16 ? 2 : 1;
  const Widths widths = {AlignmentOf(kv.k, kv.page_stride, kv.head_dim * kBytes),
                         AlignmentOf(kv.v, kv.v_page_stride, kv.v_dim * kBytes)};
  const bool aligned = reinterpret_cast<uintptr_t>(launch.q) % 16 == 0 && launch.q_stride % 4 == 0 &&
                       widths.k_aligned == 16 && widths.v_aligned == 16 && kv.value_dim == kv.head_dim;
  const bool one = launch.heads == kv.kv_heads;
  if (aligned && kv.head_dim == 128) {
    return one ? Enqueue<Shape<kKind, 1, 128>>(launch, widths, launcher)
               : Enqueue<Shape<kKind, 4, 128>>(launch, widths, launcher);
  }
  if (aligned && kv.head_dim == 64) {
    return one ? Enqueue<Shape<kKind, 1, 64>>(launch, widths, launcher)
               : Enqueue<Shape<kKind, 4, 64>>(launch, widths, launcher);
  }
  return one ? Enqueue<Shape<kKind, 1, 0>>(launch, widths, launcher)
             : Enqueue<Shape<kKind, 8, 0>>(launch, widths, launcher);
}

}  // namespace

cudaError_t EnqueueAttention(const AttentionLaunch& launch, Launcher& launcher) {
  if (launch.kv.value_dim > kMaxValues || launch.kv.value_dim % 2 != 0) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = launch.kv.kind == KvKind::kF32   ? EnqueueOf<KvKind::kF32>(launch, launcher)
                            : launch.kv.kind == KvKind::kF16 ? EnqueueOf<KvKind::kF16>(launch, launcher)
                                                             : EnqueueOf<KvKind::kQ8>(launch, launcher);
  return error != cudaSuccess || launch.splits == 1 ? error : Combine(launch, launcher);
}

cudaError_t EnqueueCombineSpans(const AttentionLaunch& launch, Launcher& launcher) {
  return Combine(launch, launcher);
}

}  // namespace sluice::cuda
