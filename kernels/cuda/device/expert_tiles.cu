#include <algorithm>

#include "kernels/cuda/device/experts.cuh"
#include "kernels/cuda/device/tiles.cuh"

namespace sluice::cuda {
namespace {

using namespace tiles;

constexpr unsigned kMaxOfAGroup = 128;
constexpr unsigned kSortThreads = 1024;
constexpr unsigned kMaxTileExperts =
    3072;  // counters of 12 bytes in 48 KiB of shared memory, with room to spare
constexpr unsigned kWarps = kThreads / kLanes;
static_assert(kRows == kNeurons && kTokens == kTilePairs);

// Blocks of ExpertTilesKernel whose registers a multiprocessor has at once. For two,
// ptxas would spill some on sm_75 and sm_80.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ <= 800
constexpr unsigned kBlocksAtOnce = 1;
#else
constexpr unsigned kBlocksAtOnce = 2;
#endif

// Counts to where each begins: an exclusive sum over of(e), e < experts, by one warp; returns the sum of all.
template <typename Of>
__device__ inline unsigned BeginsOf(unsigned experts, Of of, unsigned* begins) {
  unsigned before = 0;
  for (unsigned base = 0; base < experts; base += kLanes) {
    const unsigned e = base + threadIdx.x % kLanes;
    const unsigned own = e < experts ? of(e) : 0;
    unsigned sum = own;
#pragma unroll
    for (unsigned distance = 1; distance < kLanes; distance *= 2) {
      const unsigned other = __shfl_up_sync(kAllLanes, sum, distance);
      sum += threadIdx.x % kLanes >= distance ? other : 0;
    }
    if (e < experts) {
      begins[e] = before + sum - own;
    }
    before += __shfl_sync(kAllLanes, sum, kLanes - 1);
  }
  return before;
}

// One block: the pairs that a router chose, by expert, and tiles of up to 32 of an expert's pairs. The order
// of an expert's pairs is left open, because each pair is computed by itself. Pairs that are left out come
// last, as those of no expert. Bytes: 8 read and 16 written a pair. Bound: latency.
__global__ void __launch_bounds__(kSortThreads)
    SortPairsKernel(ExpertsLaunch launch, ExpertPair* pairs, ExpertTile* tiles, uint32_t* tile_count) {
  extern __shared__ unsigned counters[];
  __shared__ unsigned left_out;
  const unsigned experts = launch.expert_count;
  unsigned* const counts = counters;
  unsigned* const next = counters + experts;
  unsigned* const first_tile = counters + 2 * experts;
  const unsigned all = launch.routed.tokens * launch.routed.ranks;
  for (unsigned e = threadIdx.x; e < experts; e += kSortThreads) {
    counts[e] = 0;
  }
  __syncthreads();
  for (unsigned p = threadIdx.x; p < all; p += kSortThreads) {
    const unsigned expert = ExpertOf(launch.routed, experts, p);
    if (expert != kNoExpert) {
      atomicAdd(&counts[expert], 1);
    }
  }
  __syncthreads();
  if (threadIdx.x < kLanes) {
    const unsigned in = BeginsOf(
        experts, [=](unsigned e) { return counts[e]; }, next);
    const unsigned count = BeginsOf(
        experts, [=](unsigned e) { return (counts[e] + kTilePairs - 1) / kTilePairs; }, first_tile);
    if (threadIdx.x == 0) {
      left_out = in;
      *tile_count = count;
    }
  }
  __syncthreads();
  for (unsigned e = threadIdx.x; e < experts; e += kSortThreads) {
    for (unsigned i = 0; i * kTilePairs < counts[e]; ++i) {
      tiles[first_tile[e] + i] = {e, next[e] + i * kTilePairs, min(kTilePairs, counts[e] - i * kTilePairs)};
    }
  }
  __syncthreads();
  for (unsigned p = threadIdx.x; p < all; p += kSortThreads) {
    const unsigned expert = ExpertOf(launch.routed, experts, p);
    const unsigned at = atomicAdd(expert == kNoExpert ? &left_out : &next[expert], 1);
    pairs[at] = {expert, launch.routed.by_slot ? p : p / launch.routed.ranks, p, 0};
  }
}

// Sums and coefficients of a tile's neurons and pairs.
struct Coefficients {
  float values[kNeurons][kTilePairs + 1];
  uint8_t wanted[kNeurons][kTilePairs];
};

// Takes in what a part has come to: the first of the two parts' factors, the second times the first's.
__device__ inline void AddFactors(const ExpertsLaunch& launch, const DeviceExpert& e, unsigned first,
                                  unsigned first_pair, bool is_up, bool leads, bool is_first,
                                  const float (&dots)[2][4], Coefficients* c) {
  const DeviceActivation activation = {launch.activation.kind, launch.activation.alpha,
                                       launch.activation.limit};
  const float* const bias = is_up ? e.up_bias : e.gate_bias;
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned row = threadIdx.x / kLanes % kRowWarps * kWarpRows + lane / 4;
#pragma unroll
  for (unsigned n = 0; n < 2; ++n) {
#pragma unroll
    for (unsigned r = 0; r < 4; ++r) {
      const unsigned neuron = row + r / 2 * 8;
      const unsigned pair = first_pair + 8 * n + lane % 4 * 2 + r % 2;
      if (first + neuron < e.neuron_end) {
        const float dot = bias == nullptr ? dots[n][r] : dots[n][r] + bias[first + neuron];
        const float factor = is_up ? UpFactor(activation, dot) : GateFactor(activation, dot);
        float* const value = &c->values[neuron][pair];
        *value = is_first ? factor : *value * factor;
        if (is_first) {
          c->wanted[neuron][pair] = !(leads && fabsf(factor) < e.threshold);
        }
      }
    }
  }
}

// A warp a pair of the tile: its block of neurons.
__device__ inline void WriteTile(const ExpertsLaunch& launch, const DeviceExpert& e, const ExpertTile& tile,
                                 unsigned first, const Coefficients& c, int4* shared) {
  const unsigned warp = threadIdx.x / kLanes;
  const unsigned lane = threadIdx.x % kLanes;
  float* const kept = reinterpret_cast<float*>(shared) + warp * kNeurons;
  NeuronList* const list =
      reinterpret_cast<NeuronList*>(reinterpret_cast<float*>(shared) + kWarps * kNeurons) + warp;
  for (unsigned t = warp; t < tile.count; t += kWarps) {
    uint8_t* const pair = launch.blocks + uint64_t{tile.first + t} * launch.pair_bytes;
    bool counts[2];
    bool in[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned n = lane + half * kLanes;
      const bool inside = first + n < e.neuron_end;
      const float value = inside ? c.values[n][t] : 0.0f;
      counts[half] =
          inside && c.wanted[n][t] != 0 && !(e.lead == Lead::kProduct && fabsf(value) < e.threshold);
      in[half] = counts[half] && value != 0;
      if (launch.by_outputs) {
        reinterpret_cast<float*>(pair)[blockIdx.x * kNeurons + n] = in[half] ? value : 0.0f;
      }
    }
    const unsigned counted =
        __popc(__ballot_sync(kAllLanes, counts[0])) + __popc(__ballot_sync(kAllLanes, counts[1]));
    if (launch.by_outputs) {
      if (lane == 0) {
        CountsOf(launch, pair)[blockIdx.x] = counted;
      }
      continue;
    }
    __syncwarp();
    CompactByWarp(in[0], in[1], list);
    __syncwarp();
    WriteBlock<OneWarp>(e.down, first, counted, *list, kept, pair + blockIdx.x * launch.block_bytes,
                        [&](unsigned n) { return c.values[n][t]; });
  }
}

// A block: 64 neurons of one expert, whose up and gate rows are of kEncoding, for up to 32 of its pairs;
// tiles.cuh says how their dots are made, first of the part that leads. Every row is read: with so many pairs
// few are left out by all. Then a warp a pair writes its NeuronBlocks. Bytes: up and gate rows once for 32
// pairs, down's scales and zeros; x from the cache. Bound: instructions, half of them the rounding for the
// down rows.
// (nvcc writes no stub for a kernel of an enum's value without a name: it is named by number.)
template <unsigned kNumber>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    ExpertTilesKernel(const __grid_constant__ ExpertsLaunch launch) {
  extern __shared__ int4 shared[];
  __shared__ Coefficients coefficients;
  __shared__ uint32_t rows[kTilePairs];
  if (launch.tile_count != nullptr && blockIdx.y >= *launch.tile_count) {
    return;
  }
  const ExpertTile tile = launch.tiles[blockIdx.y];
  const DeviceExpert& e = launch.experts[tile.expert];
  if (e.up.encoding != Encoding{kNumber}) {
    return;  // another launch's
  }
  const unsigned first = e.neuron_begin + (launch.first_block + blockIdx.x) * kNeurons;
  if (first >= e.neuron_end) {
    return;
  }
  if (threadIdx.x < tile.count) {
    rows[threadIdx.x] = launch.pairs[tile.first + threadIdx.x].row;
  }
  const unsigned warp = threadIdx.x / kLanes;
  const unsigned row = first + warp % kRowWarps * kWarpRows + threadIdx.x % kLanes / 4;
  const bool gate_first = e.lead == Lead::kGate;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const bool is_up = (pass == 0) != gate_first;
    const DeviceMatrix m = is_up ? e.up : e.gate;
    WarpTile warp_tile;
    warp_tile.rows[0] = RowOf(m, min(row, e.neuron_end - 1));
    warp_tile.rows[1] = RowOf(m, min(row + 8, e.neuron_end - 1));
    warp_tile.first_token = warp / kRowWarps * kWarpTokens;
    const TokenRows x = {is_up ? e.up_rounded : e.gate_rounded, RoundedStride(m.cols, m.group), rows,
                         tile.count - 1};
    float dots[2][4];
    TileDots<Encoding{kNumber}>(m, warp_tile, x, shared, dots);
    AddFactors(launch, e, first, warp_tile.first_token, is_up, e.lead == Lead::kUp || gate_first, pass == 0,
               dots, &coefficients);
  }
  __syncthreads();
  WriteTile(launch, e, tile, first, coefficients, shared);
}

// The launch for the experts of an encoding, if there are any.
template <Encoding kEncoding>
cudaError_t EnqueueTilesOf(const ExpertsLaunch& launch, Launcher& launcher) {
  constexpr auto kNumber = static_cast<unsigned>(kEncoding);
  constexpr uint64_t kShared =
      std::max<uint64_t>(ChunkBytes(kMaxOfAGroup), kWarps * (kNeurons * sizeof(float) + sizeof(NeuronList)));
  const dim3 grid(launch.block_count, launch.max_expert_tiles);
  return launch.up_encodings.test(kNumber)
             ? launcher.Launch(ExpertTilesKernel<kNumber>, grid, kThreads, kShared, launch)
             : cudaSuccess;
}

bool IsTiled(const DeviceMatrix& m) {
  return m.encoding > Encoding::kF32 && m.positions == nullptr && m.group % 32 == 0;
}

}  // namespace

bool TakesTiles(const DeviceExpert& e) {
  return IsTiled(e.up) && IsTiled(e.gate) && e.up.encoding == e.gate.encoding &&
         e.down.positions == nullptr && e.lead_values == nullptr && e.up_rounded != nullptr &&
         e.gate_rounded != nullptr;
}

cudaError_t EnqueueSortPairs(const ExpertsLaunch& launch, ExpertPair* pairs, ExpertTile* tiles,
                             uint32_t* tile_count, Launcher& launcher) {
  if (launch.expert_count > kMaxTileExperts) {
    return cudaErrorInvalidValue;
  }
  return launcher.Launch(SortPairsKernel, 1, kSortThreads, 12 * launch.expert_count, launch, pairs, tiles,
                         tile_count);
}

cudaError_t EnqueueExpertTiles(const ExpertsLaunch& launch, Launcher& launcher) {
  for (const auto enqueue :
       {EnqueueTilesOf<Encoding::kQ8>, EnqueueTilesOf<Encoding::kQ4>, EnqueueTilesOf<Encoding::kQ3>,
        EnqueueTilesOf<Encoding::kQ2>, EnqueueTilesOf<Encoding::kMxfp4>, EnqueueTilesOf<blocks::kQ5_0>,
        EnqueueTilesOf<blocks::kIq4Nl>}) {
    if (const cudaError_t error = enqueue(launch, launcher); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

}  // namespace sluice::cuda
