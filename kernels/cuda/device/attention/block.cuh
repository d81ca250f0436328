// A thread block's share of an attention (heads, positions, shared memory), reads of cached values, and the
// combination of the spans' softmaxes.
#pragma once

#include "kernels/cuda/device/attention/attention.h"
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

__device__ inline unsigned ValueBytes(KvKind kind) {
  return kind == KvKind::kF32 ? 4 : kind == KvKind::kF16 ? 2 : 1;
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

// Where a position's K or V stands in its page; a page is smaller than 4 GiB.
template <typename S>
__device__ inline unsigned RowOffset(const DeviceKv& kv, unsigned kv_head, unsigned token) {
  const unsigned dim = S::kDim > 0 ? S::kDim : kv.head_dim;
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

}  // namespace sluice::cuda::attention
