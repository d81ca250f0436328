// Attention over the keys of a list. Everything but the places of keys and values is attention.cuh's: spans
// and running sums count the entries of the list.

#include <algorithm>

#include "kernels/cuda/device/attention.cuh"
#include "kernels/cuda/device/sparse.h"

namespace sluice::cuda {
namespace {

using namespace attention;

// The place of a key: a page, and a row of it, among the entries' rows where kEntry is set.
struct alignas(8) ListedKey {
  static constexpr unsigned kEntry = 0x80000000u;
  unsigned page;
  unsigned row;
};

// A block's list: its keys' number i is at PositionAt(i), or an entry.
struct KeyList {
  const int32_t* blocks;  // nullptr: all
  unsigned first;         // of the window's positions
  unsigned positions;     // before the entries
};

__device__ inline KeyList ListOf(const ListedAttentionLaunch& launch, const Tile& tile) {
  const unsigned position = tile.place.position;
  const unsigned list = tile.first_head * launch.chosen.lists / launch.heads;
  KeyList keys = {launch.chosen.Of(tile.place.row, list, position), 0, 0xffffffffu};
  if (launch.window > 0) {
    keys.first = position + 1 > launch.window ? position + 1 - launch.window : 0;
    keys.positions = position - keys.first + 1;
  }
  return keys;
}

// Finds key `i` of the list.
__device__ inline ListedKey KeyAt(const ListedAttentionLaunch& launch, const Tile& tile, const KeyList& keys,
                                  unsigned i) {
  if (i >= keys.positions) {
    const unsigned place = i - keys.positions;
    const unsigned e = keys.blocks == nullptr ? place : static_cast<unsigned>(keys.blocks[place]);
    return {tile.place.pages[launch.entries.PageOf(e)], launch.entries.RowOf(e) | ListedKey::kEntry};
  }
  unsigned p = keys.first + i;
  if (launch.window == 0 && keys.blocks != nullptr) {
    const unsigned block = launch.chosen.block;
    p = static_cast<unsigned>(keys.blocks[i / block]) * block + i % block;
  }
  return {tile.place.pages[p / kPagePositions], p % kPagePositions};
}

// A row of values in its cache, and its scale (q8).
struct CachedRow {
  const uint8_t* values;
  float scale;
};
template <typename S>
__device__ inline CachedRow EntryAt(const DeviceEntries& entries, const ListedKey& key) {
  const unsigned row = key.row & ~ListedKey::kEntry;
  const uint8_t* const page = entries.base + key.page * entries.page_stride;
  float scale = 1;
  if constexpr (S::kKind == KvKind::kQ8) {
    scale = *reinterpret_cast<const float*>(page + entries.ScaleOffset(row));
  }
  return {page + uint64_t{row} * entries.head_dim * S::kValueBytes, scale};
}
template <typename S>
__device__ inline CachedRow RowAt(const DeviceKv& kv, const uint8_t* base, uint64_t stride, unsigned dim,
                                  const Tile& tile, const ListedKey& key) {
  const uint8_t* const page = base + key.page * stride;
  float scale = 1;
  if constexpr (S::kKind == KvKind::kQ8) {
    scale = ScaleAt(kv, dim, page, tile.kv_head, key.row);
  }
  return {page + RowOffset<S>(dim, tile.kv_head, key.row), scale};
}
template <typename S>
__device__ inline CachedRow KeyRow(const ListedAttentionLaunch& launch, const Tile& tile,
                                   const ListedKey& key) {
  const DeviceKv& kv = launch.kv;
  return (key.row & ListedKey::kEntry) != 0 ? EntryAt<S>(launch.entries, key)
                                            : RowAt<S>(kv, kv.k, kv.page_stride, kv.head_dim, tile, key);
}
template <typename S>
__device__ inline CachedRow ValueRow(const ListedAttentionLaunch& launch, const Tile& tile,
                                     const ListedKey& key) {
  const DeviceKv& kv = launch.kv;
  return (key.row & ListedKey::kEntry) != 0 ? EntryAt<S>(launch.entries, key)
                                            : RowAt<S>(kv, kv.v, kv.v_page_stride, kv.v_dim, tile, key);
}

// Copies tile `n` of the span's values into its stage: one group of asynchronous copies, which may be empty.
template <typename S>
__device__ inline void FetchListed(const ListedAttentionLaunch& launch, const Tile& tile,
                                   const ListedKey* keys, unsigned v_aligned, unsigned n) {
  const unsigned first = tile.first + n * S::kTile;
  const unsigned rows = first > tile.last ? 0 : min(S::kTile, tile.last + 1 - first);
  const unsigned pieces = (launch.kv.value_dim * S::kValueBytes + v_aligned - 1) / v_aligned;
  uint8_t* const to = tile.values + n % kStages * S::kTileBytes;
  for (unsigned i = threadIdx.x; i < rows * pieces; i += kThreads) {
    const unsigned row = i / pieces;
    const unsigned at = i % pieces * v_aligned;
    const CachedRow from = ValueRow<S>(launch, tile, keys[first % kSpanPositions + row]);
    CopyPiece(from.values + at, v_aligned, to + row * S::kRowBytes + at);
  }
  __pipeline_commit();
}

// The scores of the tile's keys: four lanes a key, eight keys a warp.
template <typename S>
__device__ inline void ScoreListed(const ListedAttentionLaunch& launch, const Tile& tile,
                                   const LaneQueries<S>& q, const ListedKey* keys, unsigned k_aligned) {
  constexpr bool kScaled = S::kKind == KvKind::kQ8;
  const unsigned lane = threadIdx.x % kLanes;
  for (unsigned base = tile.first + threadIdx.x / kLanes * kRowsAWarp; base <= tile.last;
       base += kWarps * kRowsAWarp) {
    const unsigned i = base + lane / 4;
    const ListedKey key = keys[min(i, tile.last) % kSpanPositions];
    const CachedRow row = KeyRow<S>(launch, tile, key);
#pragma unroll
    for (unsigned head = 0; head < S::kHeads; head += S::kAtOnce) {
      const float dot = Dots<S>(row.values, k_aligned, q, tile, head, launch.kv.head_dim);
      if (i <= tile.last) {
        tile.scores[(head + lane % 4) * kScoreStride + i % kSpanPositions] =
            (kScaled ? dot * row.scale : dot) * launch.scale;
      }
    }
    if (kScaled && i <= tile.last && lane % 4 == 0) {
      tile.v_scales[i % kSpanPositions] = ValueRow<S>(launch, tile, key).scale;
    }
  }
}

// Query heads that share K and V and a list.
__device__ __host__ inline unsigned UnitOf(const ListedAttentionLaunch& launch) {
  return launch.heads / (launch.chosen.lists < launch.kv.kv_heads ? launch.kv.kv_heads : launch.chosen.lists);
}

// A block: up to eight heads of a unit for one row, over one span of its list (splits above 1) or all in
// turn. The places of a span's keys are found first, a thread two of them; then as AttentionKernel, with
// values that are copied row by row. Bytes: K and V of the listed keys once for eight heads, the rest from
// the cache. Bound: memory for decode steps of few heads, instructions for more and for prompts.
template <typename S>
__global__ void __launch_bounds__(kThreads, 2)
    ListedAttentionKernel(ListedAttentionLaunch launch, Widths widths) {
  extern __shared__ float4 shared4[];
  __shared__ Softmax spans[S::kHeads];
  __shared__ ListedKey places[kSpanPositions];
  const unsigned unit = UnitOf(launch);
  const unsigned tiles = (unit + S::kHeads - 1) / S::kHeads;
  Tile tile;
  tile.place = launch.places[blockIdx.x];
  tile.first_head = blockIdx.y / tiles * unit + blockIdx.y % tiles * S::kHeads;
  tile.kv_head = tile.first_head / (launch.heads / launch.kv.kv_heads);
  tile.heads = min(static_cast<unsigned>(S::kHeads), unit - blockIdx.y % tiles * S::kHeads);
  PlaceTile<S>(launch, reinterpret_cast<uint8_t*>(shared4), spans, &tile);
  const unsigned last_span = tile.place.last_visible / kSpanPositions;
  const unsigned begin = launch.splits == 1 ? 0 : blockIdx.z;
  const unsigned end = launch.splits == 1 ? last_span : begin;
  if (begin > last_span) {
    return;
  }
  const KeyList keys = ListOf(launch, tile);
  LaneQueries<S> q;
  q.Load(launch, tile);
  Sums<S> sums;
  for (unsigned s = begin; s <= end; ++s) {
    tile.first = s * kSpanPositions;
    tile.last = min(tile.place.last_visible, tile.first + kSpanPositions - 1);
    __syncthreads();
    for (unsigned i = tile.first + threadIdx.x; i <= tile.last; i += kThreads) {
      places[i % kSpanPositions] = KeyAt(launch, tile, keys, i);
    }
    __syncthreads();
    const auto fetch = [&](unsigned n) { FetchListed<S>(launch, tile, places, widths.v_aligned, n); };
    for (unsigned n = 0; n + 1 < kStages; ++n) {
      fetch(n);
    }
    ScoreListed<S>(launch, tile, q, places, widths.k_aligned);
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

template <KvKind kKind>
cudaError_t EnqueueOf(const ListedAttentionLaunch& launch, Launcher& launcher) {
  using S = Shape<kKind, 8, 0>;
  const DeviceKv& kv = launch.kv;
  const DeviceEntries& entries = launch.entries;
  constexpr uint64_t kBytes = S::kValueBytes;
  const unsigned of_entries =
      entries.rate == 0 ? 16 : AlignmentOf(entries.base, entries.page_stride, entries.head_dim * kBytes);
  const Widths widths = {std::min(AlignmentOf(kv.k, kv.page_stride, kv.head_dim * kBytes), of_entries),
                         std::min(AlignmentOf(kv.v, kv.v_page_stride, kv.v_dim * kBytes), of_entries)};
  const unsigned unit = UnitOf(launch);
  const unsigned tiles = (unit + S::kHeads - 1) / S::kHeads;
  return launcher.Launch(ListedAttentionKernel<S>,
                         dim3(launch.rows, launch.heads / unit * tiles, launch.splits), kThreads,
                         SharedBytes<S>(kv.head_dim), launch, widths);
}

}  // namespace

cudaError_t EnqueueListedAttention(const ListedAttentionLaunch& launch, Launcher& launcher) {
  if (launch.kv.value_dim > kMaxValues || launch.kv.value_dim % 2 != 0) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = launch.kv.kind == KvKind::kF32   ? EnqueueOf<KvKind::kF32>(launch, launcher)
                            : launch.kv.kind == KvKind::kF16 ? EnqueueOf<KvKind::kF16>(launch, launcher)
                                                             : EnqueueOf<KvKind::kQ8>(launch, launcher);
  return error != cudaSuccess || launch.splits == 1 ? error : EnqueueCombineSpans(launch, launcher);
}

}  // namespace sluice::cuda
