#include "kernels/cuda/device/encoded.cuh"
#include "kernels/cuda/device/expert_rows.cuh"
#include "kernels/cuda/device/warp.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kWarps = 16;  // blocks of neurons at once
constexpr unsigned kThreads = kWarps * kLanes;
constexpr unsigned kTileBlocks = 2;  // quantized: 64 bytes of codes of every row
constexpr unsigned kMaxTile = 256;   // columns of a tile
constexpr unsigned kMaxGroups = kMaxTile / kUnit;

// Columns of a block's tile: 64 bytes of codes, or 128 bytes of plain values.
__device__ __host__ inline unsigned TileColumns(Encoding encoding) {
  switch (encoding) {
    case Encoding::kF32:
      return 32;
    case Encoding::kBf16:
    case Encoding::kF16:
    case Encoding::kQ8:
      return 64;
    case Encoding::kQ4:
    case Encoding::kMxfp4:
      return 128;
    default:
      return 256;
  }
}

// What a warp keeps while it has a block of neurons; the columns' sums take its place afterwards.
struct Scratch {
  union {
    short codes[kMaxGroups][kNeurons];  // coefficients times scales, rounded, by group of columns
    float sums[kMaxTile];               // of the block of neurons, by column
  };
  float scales[kMaxGroups];
  float zeros[kMaxGroups];
  float coefficients[kNeurons];
};

// A neuron's coefficients in the lanes of a warp: lane l has neurons l and l + 32 of the block.
struct Neurons {
  float low = 0;
  float high = 0;
  unsigned low_mask = 0;  // neurons whose rows are read
  unsigned high_mask = 0;
  unsigned counted = 0;
};

__device__ inline Neurons LoadNeurons(const DeviceExpert& e, const float* coefficients, unsigned first) {
  const float* const from = coefficients + first;
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned count = min(kNeurons, e.neuron_end - first);
  float low = lane < count ? from[lane] : __uint_as_float(kLeftOut);
  float high = lane + kLanes < count ? from[lane + kLanes] : __uint_as_float(kLeftOut);
  const bool low_in = __float_as_uint(low) != kLeftOut;
  const bool high_in = __float_as_uint(high) != kLeftOut;
  Neurons n;
  n.counted = __popc(__ballot_sync(kAllLanes, low_in)) + __popc(__ballot_sync(kAllLanes, high_in));
  n.low = low_in ? low : 0.0f;
  n.high = high_in ? high : 0.0f;
  // A coefficient of 0 adds nothing (section 0, closing).
  n.low_mask = __ballot_sync(kAllLanes, low_in && low != 0);
  n.high_mask = __ballot_sync(kAllLanes, high_in && high != 0);
  return n;
}

__device__ inline float DownScale(const DeviceMatrix& m, unsigned neuron, unsigned group) {
  return ScaleOf(m, RowOf(m, neuron), group);
}

// The coefficients times the scales of a group of columns, rounded over the block's neurons (section 3).
__device__ inline void RoundNeurons(const DeviceMatrix& m, const Neurons& n, unsigned first, unsigned group,
                                    unsigned index, Scratch* scratch) {
  const unsigned lane = threadIdx.x % kLanes;
  const float low = (n.low_mask >> lane & 1) != 0 ? n.low * DownScale(m, first + lane, group) : 0.0f;
  const float high =
      (n.high_mask >> lane & 1) != 0 ? n.high * DownScale(m, first + lane + kLanes, group) : 0.0f;
  const float largest = WarpMax(fmaxf(fabsf(low), fabsf(high)));
  const bool tiny = largest < 1e-30f;
  const float inverse = 127.0f / largest;
  scratch->codes[index][lane] = static_cast<short>(tiny ? 0 : RoundCode(low * inverse));
  scratch->codes[index][lane + kLanes] = static_cast<short>(tiny ? 0 : RoundCode(high * inverse));
  if (lane == 0) {
    scratch->scales[index] = tiny ? 0.0f : largest / 127.0f;
  }
}

// Zeros of a group of columns, a lane a group, neurons ascending.
__device__ inline void SumZeros(const DeviceMatrix& m, const Neurons& n, unsigned first, unsigned group,
                                unsigned index, Scratch* scratch) {
  float sum = 0;
  if (m.encoding != Encoding::kMxfp4) {
    for (unsigned half = 0; half < 2; ++half) {
      for (unsigned left = half == 0 ? n.low_mask : n.high_mask; left != 0; left &= left - 1) {
        const unsigned j = half * kLanes + __ffs(left) - 1;
        sum = fmaf(static_cast<float>(scratch->codes[index][j]), ZeroOf(m, RowOf(m, first + j), group), sum);
      }
    }
  }
  scratch->zeros[index] = sum + 0.0f;
}

// Code of a word pair's unit k: its low or high half's.
template <Encoding kEncoding>
__device__ inline int CodeOf(unsigned pair, unsigned third, unsigned third_shift, int unit, int half) {
  constexpr int kBits = kPlaneBits<kEncoding>;
  unsigned code = pair >> (unit * kBits + 16 * half) & ((1u << kBits) - 1);
  if (kEncoding == Encoding::kQ3) {
    code |= (third >> (third_shift + unit + 16 * half) & 1) << 2;
  }
  if (kEncoding == Encoding::kMxfp4) {
    return static_cast<signed char>(Mxfp4Bytes(code) & 0xffu);
  }
  return static_cast<int>(code);
}

// A block of neurons' sums for a tile of columns, by one warp. Lanes 0..15 take the neurons 0..31, lanes
// 16..31 the others; a lane has a pair of words of each row (4 bytes; 64 neighbouring bytes a row).
template <Encoding kEncoding>
__device__ inline void QuantizedBlock(const DeviceMatrix& m, const Neurons& n, unsigned first,
                                      unsigned column, Scratch* scratch) {
  constexpr int kUnits = 16 / kPlaneBits<kEncoding>;
  constexpr unsigned kBlockColumns = kUnits * kUnit;
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned end = min(m.cols, column + kTileBlocks * kBlockColumns);
  const unsigned first_group = column / m.group;
  const unsigned groups = (end - 1) / m.group - first_group + 1;
  for (unsigned g = 0; g < groups; ++g) {
    RoundNeurons(m, n, first, first_group + g, g, scratch);
  }
  __syncwarp();
  if (lane < groups) {
    SumZeros(m, n, first, first_group + lane, lane, scratch);
  }
  const unsigned block = lane % 16 / 8;
  const unsigned block_column = column + block * kBlockColumns;
  const bool inside = block_column < end;
  const unsigned offset = (column / kBlockColumns + block) * 32 + lane % 8 * 4;
  const unsigned third_block = column / kBlockColumns + block;
  unsigned index[kUnits];
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    const unsigned unit_column = min(block_column + k * kUnit, end - 1);
    index[k] = unit_column / m.group - first_group;
  }
  int sums[kUnits][2] = {};
  const unsigned half_first = lane / 16 * kLanes;
  for (unsigned left = lane < 16 ? n.low_mask : n.high_mask; left != 0; left &= left - 1) {
    const unsigned j = half_first + __ffs(left) - 1;
    if (inside) {
      const uint8_t* const row = RowOf(m, first + j);
      uint32_t pair[1];
      uint32_t third[1] = {};
      LoadWords(row + offset, m.aligned, pair);
      if (kEncoding == Encoding::kQ3) {
        LoadWords(row + m.third_bits + third_block / 2 * 32 + lane % 8 * 4, m.aligned, third);
      }
#pragma unroll
      for (int k = 0; k < kUnits; ++k) {
        const int coefficient = scratch->codes[index[k]][j];
        sums[k][0] += coefficient * CodeOf<kEncoding>(pair[0], third[0], third_block % 2 * 8, k, 0);
        sums[k][1] += coefficient * CodeOf<kEncoding>(pair[0], third[0], third_block % 2 * 8, k, 1);
      }
    }
  }
  __syncwarp();
  float results[kUnits][2];
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int sum = sums[k][half] + __shfl_xor_sync(kAllLanes, sums[k][half], 16);
      results[k][half] =
          scratch->scales[index[k]] * (static_cast<float>(sum) - scratch->zeros[index[k]]) + 0.0f;
    }
  }
  __syncwarp();
  if (lane < 16 && inside) {
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      float* const to = &scratch->sums[block * kBlockColumns + k * kUnit + lane % 8 * 2];
      to[0] = results[k][0];
      to[1] = results[k][1];
    }
  }
}

// The same of plain rows: a lane has 4 bytes of each, neurons ascending.
template <Encoding kEncoding>
__device__ inline void PlainBlock(const DeviceMatrix& m, const Neurons& n, unsigned first, unsigned column,
                                  Scratch* scratch) {
  constexpr unsigned kColumns = kEncoding == Encoding::kF32 ? 1 : 2;
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned c = column + lane * kColumns;
  scratch->coefficients[lane] = n.low;
  scratch->coefficients[lane + kLanes] = n.high;
  __syncwarp();
  float sums[2] = {};
  if (c < m.cols) {
    for (unsigned half = 0; half < 2; ++half) {
      for (unsigned left = half == 0 ? n.low_mask : n.high_mask; left != 0; left &= left - 1) {
        const unsigned j = half * kLanes + __ffs(left) - 1;
        const float coefficient = scratch->coefficients[j];
        const uint8_t* const row = RowOf(m, first + j);
        if (kColumns == 2 && c + 1 < m.cols && m.aligned >= 4) {
          const uint32_t pair = *reinterpret_cast<const uint32_t*>(row + 2 * c);
          const unsigned short low = static_cast<unsigned short>(pair);
          const unsigned short high = static_cast<unsigned short>(pair >> 16);
          const bool bf16 = kEncoding == Encoding::kBf16;
          sums[0] = fmaf(coefficient,
                         bf16 ? __uint_as_float(pair << 16) : __half2float(__ushort_as_half(low)), sums[0]);
          sums[1] = fmaf(coefficient,
                         bf16 ? __uint_as_float(pair & 0xffff0000u) : __half2float(__ushort_as_half(high)),
                         sums[1]);
        } else {
          sums[0] = fmaf(coefficient, LoadOne<kEncoding>(row, m.aligned, c), sums[0]);
          if (kColumns == 2 && c + 1 < m.cols) {
            sums[1] = fmaf(coefficient, LoadOne<kEncoding>(row, m.aligned, c + 1), sums[1]);
          }
        }
      }
    }
  }
  scratch->sums[lane * kColumns] = sums[0] + 0.0f;
  if (kColumns == 2) {
    scratch->sums[lane * kColumns + 1] = sums[1] + 0.0f;
  }
}

__device__ inline void NeuronBlock(const DeviceMatrix& m, const Neurons& n, unsigned first, unsigned column,
                                   Scratch* scratch) {
  switch (m.encoding) {
    case Encoding::kBf16:
      return PlainBlock<Encoding::kBf16>(m, n, first, column, scratch);
    case Encoding::kF16:
      return PlainBlock<Encoding::kF16>(m, n, first, column, scratch);
    case Encoding::kF32:
      return PlainBlock<Encoding::kF32>(m, n, first, column, scratch);
    case Encoding::kQ8:
      return QuantizedBlock<Encoding::kQ8>(m, n, first, column, scratch);
    case Encoding::kQ4:
      return QuantizedBlock<Encoding::kQ4>(m, n, first, column, scratch);
    case Encoding::kQ3:
      return QuantizedBlock<Encoding::kQ3>(m, n, first, column, scratch);
    case Encoding::kQ2:
      return QuantizedBlock<Encoding::kQ2>(m, n, first, column, scratch);
    default:
      return QuantizedBlock<Encoding::kMxfp4>(m, n, first, column, scratch);
  }
}

// A block: a tile of columns of one slot of one expert. A warp a block of 64 neurons, sixteen of them at
// once; their sums meet in shared memory and are added in their order, a thread a column. Rows of neurons
// that do not count are not read. Bytes: 64 bytes of codes (128 of plain values) a row and tile, with the
// groups' scales and zeros, once for each slot. Bound: memory.
__global__ void __launch_bounds__(kThreads) DownKernel(ExpertsLaunch launch) {
  __shared__ Scratch scratch[kWarps];
  __shared__ unsigned counted[kWarps];
  const ExpertRow block = RowOfBlock(launch);
  if (block.expert == nullptr) {
    return;
  }
  const DeviceExpert& e = *block.expert;
  const DeviceMatrix m = e.down;
  const unsigned tile = TileColumns(m.encoding);
  const unsigned column = blockIdx.x * tile;
  if (column >= m.cols) {
    return;
  }
  const unsigned slot = block.slot;
  const unsigned warp = threadIdx.x / kLanes;
  const unsigned c = column + threadIdx.x;
  const bool has_column = threadIdx.x < tile && c < m.cols;
  float* const y_at = launch.y + slot * launch.y_stride + c;
  float y = 0;
  if (has_column) {
    y = e.neuron_begin != 0 ? *y_at : e.down_bias == nullptr ? 0.0f : e.down_bias[c];
  }
  unsigned active = 0;
  for (unsigned first = e.neuron_begin; first < e.neuron_end; first += kWarps * kNeurons) {
    const unsigned mine = first + warp * kNeurons;
    if (mine < e.neuron_end) {
      const Neurons n = LoadNeurons(e, block.coefficients, mine);
      active += n.counted;
      NeuronBlock(m, n, mine, column, &scratch[warp]);
    }
    __syncthreads();
    if (has_column) {
      const unsigned blocks = min(kWarps, (e.neuron_end - first + kNeurons - 1) / kNeurons);
      for (unsigned w = 0; w < blocks; ++w) {
        y = y + scratch[w].sums[threadIdx.x];
      }
    }
    __syncthreads();
  }
  if (has_column) {
    *y_at = y;
  }
  if (launch.active != nullptr && blockIdx.x == 0) {
    if (threadIdx.x % kLanes == 0) {
      counted[warp] = active;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned sum = e.neuron_begin == 0 ? 0 : launch.active[slot];
      for (unsigned w = 0; w < kWarps; ++w) {
        sum += counted[w];
      }
      launch.active[slot] = sum;
    }
  }
}

}  // namespace

uint32_t DownTiles(const DeviceMatrix& down) {
  const uint32_t tile = TileColumns(down.encoding);
  return (down.cols + tile - 1) / tile;
}

cudaError_t EnqueueDown(const ExpertsLaunch& launch, cudaStream_t stream) {
  const dim3 grid = ExpertGrid(launch.max_tiles, launch.routed, launch.expert_count, launch.max_rows);
  DownKernel<<<grid, kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace sluice::cuda
