// What a block of threads has of an attention: its heads, positions and shared memory; cached values read;
// softmaxes of spans combined.
#pragma once

#include "kernels/cuda/device/attention/attention.h"
#include "kernels/cuda/device/dots.cuh"

namespace sluice::cuda::attention {

constexpr unsigned kThreads = 128;
constexpr unsigned kWarps = kThreads / kLanes;
constexpr unsigned kRowsAWarp = 8;     // positions, four lanes each
constexpr unsigned kStages = 4;        // tiles of V on their way
constexpr unsigned kMostOfATile = 32;  // positions, of one page
constexpr unsigned kStageBytes = 10 * 1024;
constexpr unsigned kMostValues = 512;
constexpr uint64_t kDefaultShared = 48 * 1024;

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

// Two cached values, columns 2 i and 2 i + 1, of a row in shared memory.
template <KvKind kKind>
__device__ inline float2 LoadPair(const uint8_t* row, unsigned i) {
  if (kKind == KvKind::kF32) {
    return reinterpret_cast<const float2*>(row)[i];
  }
  if (kKind == KvKind::kF16) {
    return __half22float2(reinterpret_cast<const __half2*>(row)[i]);
  }
  const char2 codes = reinterpret_cast<const char2*>(row)[i];
  return make_float2(static_cast<float>(static_cast<signed char>(codes.x)),
                     static_cast<float>(static_cast<signed char>(codes.y)));
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

// How a block is made. kHeads query heads share what is read of K and V; with kSteps above 0 their values are
// kept in registers, for heads of up to 32 kSteps values, else in shared memory.
template <KvKind kKind_, int kHeads_, int kSteps_>
struct Shape {
  static constexpr KvKind kKind = kKind_;
  static constexpr int kHeads = kHeads_;
  static constexpr int kSteps = kSteps_;
  static constexpr int kAtOnce = kHeads == 1 ? 1 : 4;  // heads whose dots a lane makes side by side
  static constexpr int kParts = kHeads == 1 ? 1 : 2;   // of the heads, for values
  static constexpr int kPartHeads = kHeads / kParts;
  static constexpr unsigned kPairThreads = kThreads / kParts;
  // Pairs of columns that a thread has at most.
  static constexpr int kPairs = kSteps > 0 ? 1 : kMostValues / 2 / kPairThreads;
};

// Alignment of K's and V's rows, a power of two up to 16, and positions in a tile of V.
struct Widths {
  bool q_aligned;  // heads of q begin at multiples of 16 bytes, and have whole eights
  unsigned k_aligned;
  unsigned v_aligned;
  unsigned tile;
  unsigned row_bytes;  // of V in shared memory, a multiple of 16
};

// What a block has: heads [first_head, first_head + heads) of one KV head for one row, positions
// [first, last] of a span, and shared memory.
struct Tile {
  RowPlace place;
  unsigned kv_head;
  unsigned first_head;
  unsigned heads;
  unsigned padded;  // of a head of q in shared memory: whole 32
  unsigned first;
  unsigned last;
  float* q;         // [kHeads][padded], unless registers have it
  float* scores;    // [256][kHeads]: scores, then what values are multiplied with
  float* v_scales;  // [256], q8
  Softmax* spans;   // [kHeads]
  uint8_t* values;  // [kStages][tile][row_bytes]
};

}  // namespace sluice::cuda::attention
