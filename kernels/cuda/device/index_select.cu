// The choice of an indexer: scores of all keys, then the best of them.

#include <cmath>

#include "kernels/cuda/device/attention.cuh"
#include "kernels/cuda/device/choice.cuh"
#include "kernels/cuda/device/sparse.h"

namespace sluice::cuda {
namespace {

constexpr unsigned kScoreThreads = 256;
constexpr unsigned kKeysABlock = 256;
constexpr unsigned kChoiceThreads = 512;
constexpr unsigned kChoiceWarps = kChoiceThreads / kLanes;
constexpr unsigned kBins = 256;
constexpr unsigned kHeadsAtOnce = 4;

__device__ __host__ inline unsigned PaddedHeads(const IndexLaunch& launch) {
  return (launch.heads + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
}
__device__ __host__ inline unsigned PaddedDim(const IndexLaunch& launch) {
  return (launch.Dim() + kLanes - 1) / kLanes * kLanes;
}

// Key `i` of a row's sequence, and its scale (q8).
template <KvKind kKind>
__device__ inline const uint8_t* KeyAt(const IndexLaunch& launch, const RowPlace& place, unsigned i,
                                       float* scale) {
  const DeviceEntries& entries = launch.entries;
  if (entries.rate > 0) {
    const uint8_t* const page = entries.base + place.pages[entries.PageOf(i)] * entries.page_stride;
    const unsigned row = entries.RowOf(i);
    if (kKind == KvKind::kQ8) {
      *scale = *reinterpret_cast<const float*>(page + entries.ScaleOffset(row));
    }
    return page + uint64_t{row} * entries.head_dim * ValueBytes(kKind);
  }
  const DeviceKv& keys = launch.keys;
  const uint8_t* const page = keys.k + place.pages[i / kPagePositions] * keys.page_stride;
  const unsigned token = i % kPagePositions;
  if (kKind == KvKind::kQ8) {
    *scale = attention::ScaleAt(keys, keys.head_dim, page, 0, token);
  }
  return page + uint64_t{token} * keys.head_dim * ValueBytes(kKind);
}

// The row's q and weights into shared memory, zeros where there is none.
__device__ inline void LoadQueries(const IndexLaunch& launch, const RowPlace& place, float* q,
                                   float* weights) {
  const unsigned dim = launch.Dim();
  const unsigned padded = PaddedDim(launch);
  const float* const from = launch.q + place.row * launch.q_stride;
  for (unsigned i = threadIdx.x; i < PaddedHeads(launch) * padded; i += kScoreThreads) {
    const unsigned h = i / padded;
    const unsigned d = i % padded;
    q[i] = h < launch.heads && d < dim ? from[h * dim + d] : 0.0f;
  }
  for (unsigned h = threadIdx.x; h < PaddedHeads(launch); h += kScoreThreads) {
    weights[h] = h >= launch.heads           ? 0.0f
                 : launch.weights == nullptr ? 1.0f
                                             : launch.weights[place.row * launch.weights_stride + h];
  }
}

// A block: 256 keys of a row, four lanes a key (16-byte loads, 64 neighbouring bytes a key), four heads at
// once from shared memory; with weights the four lanes of a key make its sum over the heads, ascending.
// Bytes: the keys once from memory, for each four heads again from the cache. Bound: instructions.
template <KvKind kKind>
__global__ void __launch_bounds__(kScoreThreads, 2) IndexScoresKernel(IndexLaunch launch, unsigned aligned) {
  using S = attention::Shape<kKind, 8, 0>;
  static_assert(S::kAtOnce == kHeadsAtOnce);
  extern __shared__ float shared[];
  const RowPlace place = launch.places[blockIdx.y];
  const unsigned first = blockIdx.x * kKeysABlock;
  const unsigned last = min(place.last_visible, first + kKeysABlock - 1);
  if (first > last) {
    return;
  }
  attention::Tile tile;
  tile.padded = PaddedDim(launch);
  tile.q = shared;
  float* const weights = shared + PaddedHeads(launch) * tile.padded;
  LoadQueries(launch, place, tile.q, weights);
  __syncthreads();
  const bool sums = launch.weights != nullptr || launch.summed;
  float* const scores = launch.scores + blockIdx.y * launch.chosen.lists * launch.ScoreFloats();
  const unsigned lane = threadIdx.x % kLanes;
  attention::LaneQueries<S> none;  // q lies in shared memory
  for (unsigned base = first + threadIdx.x / kLanes * attention::kRowsAWarp; base <= last;
       base += kScoreThreads / kLanes * attention::kRowsAWarp) {
    const unsigned i = base + lane / 4;
    float key_scale = 1;
    const uint8_t* const row = KeyAt<kKind>(launch, place, min(i, last), &key_scale);
    float sum = 0;
#pragma unroll 1
    for (unsigned head = 0; head < launch.heads; head += kHeadsAtOnce) {
      const float dot = attention::Dots<S>(row, aligned, none, tile, head, launch.Dim());
      const float x = (kKind == KvKind::kQ8 ? dot * key_scale : dot) * launch.scale;
      if (!sums) {
        if (i <= last && head + lane % 4 < launch.heads) {
          scores[(head + lane % 4) * launch.ScoreFloats() + i] = x;
        }
        continue;
      }
      const float counted = x < 0.0f ? 0.0f : x;
#pragma unroll
      for (unsigned j = 0; j < kHeadsAtOnce; ++j) {
        // A head that is not there has weight 0 and x = 0, which changes no bit but a zero's sign.
        sum = fmaf(weights[head + j], __shfl_sync(kAllLanes, counted, lane / 4 * 4 + j), sum);
      }
    }
    if (sums && i <= last && lane % 4 == 0) {
      scores[i] = sum;
    }
  }
}

// The order of a choice: NaN below all others.
__device__ inline unsigned OrderOf(float score) { return score != score ? 0 : OrderedBits(score); }

// Maxima of blocks of positions, a warp a block; a NaN counts only if all are.
__device__ inline void MakeMaxima(const float* scores, unsigned keys, unsigned block, float* maxima) {
  const unsigned lane = threadIdx.x % kLanes;
  for (unsigned b = threadIdx.x / kLanes; b * block < keys; b += kChoiceWarps) {
    float m = NAN;
    for (unsigned p = b * block + lane; p < min(keys, b * block + block); p += kLanes) {
      m = fmaxf(m, scores[p]);
    }
    m = WarpMax(m);
    if (lane == 0) {
      maxima[b] = m;
    }
  }
}

// The order that the worst chosen of the first `count` scores has, and how many of that order are chosen.
struct Threshold {
  unsigned order;
  unsigned equals;
};

// Counts orders by the byte at `shift` that agree with `order` above it, then finds the wanted one's bin:
// each lane of warp 0 has eight bins, from the highest.
__device__ inline void NarrowThreshold(const float* scores, unsigned count, int shift, unsigned* bins,
                                       Threshold* found) {
  const Threshold before = *found;
  for (unsigned i = threadIdx.x; i < kBins; i += kChoiceThreads) {
    bins[i] = 0;
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < count; i += kChoiceThreads) {
    const unsigned order = OrderOf(scores[i]);
    if (shift == 24 || order >> (shift + 8) == before.order >> (shift + 8)) {
      atomicAdd(&bins[order >> shift & 0xff], 1u);
    }
  }
  __syncthreads();
  if (threadIdx.x < kLanes) {
    const unsigned highest = kBins - 1 - 8 * threadIdx.x;
    unsigned own = 0;
    for (unsigned i = 0; i < 8; ++i) {
      own += bins[highest - i];
    }
    unsigned upto = own;
    for (unsigned distance = 1; distance < kLanes; distance *= 2) {
      const unsigned other = __shfl_up_sync(kAllLanes, upto, distance);
      upto += threadIdx.x >= distance ? other : 0;
    }
    unsigned left = before.equals - (upto - own);  // wraps where lanes before have enough
    if (upto - own < before.equals && before.equals <= upto) {
      unsigned bin = highest;
      while (bins[bin] < left) {
        left -= bins[bin];
        --bin;
      }
      *found = {before.order | bin << shift, left};
    }
  }
  __syncthreads();
}

// Writes the chosen of the first `count` scores, ascending: those above the threshold, and of its equals the
// lowest. In steps of the block's threads; `counts`: of each warp, for two steps in turn.
__device__ inline void WriteChosen(const float* scores, unsigned count, const Threshold& threshold,
                                   uint2 (*counts)[kChoiceWarps], int32_t* out) {
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned warp = threadIdx.x / kLanes;
  const unsigned below = (1u << lane) - 1;
  uint2 before = {0, 0};  // above the threshold, and equal to it
  for (unsigned first = 0, step = 0; first < count; first += kChoiceThreads, step ^= 1) {
    const unsigned i = first + threadIdx.x;
    const unsigned order = i < count ? OrderOf(scores[i]) : 0;
    const bool above = i < count && order > threshold.order;
    const bool equal = i < count && order == threshold.order;
    const unsigned all_above = __ballot_sync(kAllLanes, above);
    const unsigned all_equal = __ballot_sync(kAllLanes, equal);
    if (lane == 0) {
      counts[step][warp] = make_uint2(__popc(all_above), __popc(all_equal));
    }
    __syncthreads();
    uint2 own = {before.x + __popc(all_above & below), before.y + __popc(all_equal & below)};
    for (unsigned w = 0; w < kChoiceWarps; ++w) {
      const uint2 of_warp = counts[step][w];
      own.x += w < warp ? of_warp.x : 0;
      own.y += w < warp ? of_warp.y : 0;
      before.x += of_warp.x;
      before.y += of_warp.y;
    }
    if (above || (equal && own.y < threshold.equals)) {
      out[own.x + min(own.y, threshold.equals)] = static_cast<int32_t>(i);
    }
  }
}

// A block a list of a row: four passes over the candidates' scores find the order of the worst one chosen,
// one more writes the chosen. 128 neighbouring bytes a warp a load. Bytes: the scores, from the cache. Bound:
// latency of the passes.
__global__ void __launch_bounds__(kChoiceThreads) IndexChoiceKernel(IndexLaunch launch) {
  __shared__ unsigned bins[kBins];
  __shared__ Threshold threshold;
  __shared__ uint2 counts[2][kChoiceWarps];
  const RowPlace place = launch.places[blockIdx.y];
  const unsigned list = blockIdx.x;
  const DeviceLists& chosen = launch.chosen;
  const unsigned keys = place.last_visible + 1;
  float* const of_keys = launch.scores + (uint64_t{blockIdx.y} * chosen.lists + list) * launch.ScoreFloats();
  const float* scores = of_keys;
  unsigned candidates = keys;
  if (launch.HasMaxima()) {
    float* const maxima = of_keys + launch.most_keys;
    MakeMaxima(of_keys, keys, chosen.block, maxima);
    scores = maxima;
    candidates = (keys - 1) / chosen.block + 1;
  }
  const unsigned best = chosen.whole ? chosen.top - 1 : chosen.top;
  const unsigned local = min(launch.local, candidates);
  const unsigned others = candidates - local;
  int32_t* const out = chosen.blocks + (place.row * chosen.lists + list) * uint64_t{chosen.top};
  if (threadIdx.x == 0) {
    threshold = {0, best - local};
  }
  __syncthreads();
  if (best > local) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      NarrowThreshold(scores, others, shift, bins, &threshold);
    }
    WriteChosen(scores, others, threshold, counts, out);
  }
  for (unsigned i = threadIdx.x; i < local; i += kChoiceThreads) {
    out[best - local + i] = static_cast<int32_t>(others + i);
  }
  if (chosen.whole && threadIdx.x == 0) {
    out[best] = static_cast<int32_t>(candidates);  // the block behind the last whole one
  }
}

template <KvKind kKind>
cudaError_t EnqueueScores(const IndexLaunch& launch, Launcher& launcher) {
  const DeviceEntries& entries = launch.entries;
  const uint64_t row = uint64_t{launch.Dim()} * ValueBytes(kKind);
  const unsigned aligned = entries.rate > 0
                               ? attention::AlignmentOf(entries.base, entries.page_stride, row)
                               : attention::AlignmentOf(launch.keys.k, launch.keys.page_stride, row);
  const dim3 grid((launch.most_keys + kKeysABlock - 1) / kKeysABlock, launch.rows);
  return launcher.Launch(IndexScoresKernel<kKind>, grid, kScoreThreads, IndexShared(launch), launch, aligned);
}

}  // namespace

uint64_t IndexShared(const IndexLaunch& launch) {
  return uint64_t{4} * PaddedHeads(launch) * (PaddedDim(launch) + 1);
}

cudaError_t EnqueueIndexSelect(const IndexLaunch& launch, Launcher& launcher) {
  const cudaError_t error = launch.Kind() == KvKind::kF32   ? EnqueueScores<KvKind::kF32>(launch, launcher)
                            : launch.Kind() == KvKind::kF16 ? EnqueueScores<KvKind::kF16>(launch, launcher)
                                                            : EnqueueScores<KvKind::kQ8>(launch, launcher);
  return error != cudaSuccess ? error
                              : launcher.Launch(IndexChoiceKernel, dim3(launch.chosen.lists, launch.rows),
                                                kChoiceThreads, 0, launch);
}

}  // namespace sluice::cuda
