#include <algorithm>

#include "kernels/cuda/device/encoded.cuh"
#include "kernels/cuda/device/experts.cuh"
#include "kernels/cuda/device/scalar.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kWarps = 16;     // at most
constexpr unsigned kMaxTile = 64;   // columns of a tile
constexpr unsigned kMaxBlocks = 4;  // of neurons, that a warp takes at once
constexpr unsigned kFours = 4;      // and fours of neurons of each

// Quarters of a block of codes, 8 bytes of every row, that a tile has: rows of few bits make few tiles.
__device__ __host__ constexpr unsigned TileQuarters(Encoding encoding) {
  return UnitsABlock(encoding) == 8 ? 2 : 4;
}

// Blocks of neurons that a warp takes at once.
__device__ __host__ constexpr unsigned BlocksAWarp(Encoding encoding) {
  return encoding <= Encoding::kF32 ? 1 : kLanes / (TileQuarters(encoding) * kFours);
}

// Columns of a block's tile: some quarters of a block of codes, or 128 bytes of plain values.
__device__ __host__ constexpr unsigned TileColumns(Encoding encoding) {
  return encoding == Encoding::kF32 ? 32
         : encoding == Encoding::kBf16 || encoding == Encoding::kF16
             ? 64
             : 4 * TileQuarters(encoding) * UnitsABlock(encoding);
}

// Column i of a tile: four neighbouring ones of each quarter and unit.
__device__ inline unsigned ColumnOf(Encoding encoding, unsigned tile, unsigned i) {
  if (IsPlain(encoding)) {
    return tile * TileColumns(encoding) + i;
  }
  const unsigned columns = 4 * TileQuarters(encoding);  // of a unit
  const unsigned tiles = kUnit / columns;               // of a block
  return tile / tiles * (kUnit * UnitsABlock(encoding)) + i / columns * kUnit + tile % tiles * columns +
         i % columns;
}

// Eight bytes of codes of four rows: columns 4 q .. 4 q + 3 of each unit of a block, q the lane's quarter.
template <Encoding kEncoding>
struct FourRows {
  using Half = HalfBlock<kEncoding>;

  unsigned bytes[2][4];  // low and high bytes of a column's words, a byte a row
  unsigned third[4];     // q3: a byte a row, a bit a unit

  // 4 x 4 bytes, transposed.
  static __device__ void Turn(const unsigned (&from)[4], unsigned* a, unsigned* b, unsigned* c, unsigned* d) {
    const unsigned low01 = __byte_perm(from[0], from[1], 0x5140);
    const unsigned high01 = __byte_perm(from[0], from[1], 0x7362);
    const unsigned low23 = __byte_perm(from[2], from[3], 0x5140);
    const unsigned high23 = __byte_perm(from[2], from[3], 0x7362);
    *a = __byte_perm(low01, low23, 0x5410);
    *b = __byte_perm(low01, low23, 0x7632);
    *c = __byte_perm(high01, high23, 0x5410);
    *d = __byte_perm(high01, high23, 0x7632);
  }

  __device__ void Load(const DeviceMatrix& m, const uint8_t* const (&rows)[4], unsigned block,
                       unsigned quarter) {
    uint32_t words[4][2];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      LoadWords(rows[r] + 32 * block + 8 * quarter, m.aligned, words[r]);
    }
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const unsigned of_rows[4] = {words[0][w], words[1][w], words[2][w], words[3][w]};
      Turn(of_rows, &bytes[0][2 * w], &bytes[1][2 * w], &bytes[0][2 * w + 1], &bytes[1][2 * w + 1]);
    }
    if (kEncoding == Encoding::kQ3) {
      unsigned of_rows[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        uint32_t bits[2];
        LoadWords(rows[r] + m.third_bits + 32 * (block / 2) + 8 * quarter, m.aligned, bits);
        of_rows[r] = __byte_perm(bits[0], bits[1], block % 2 == 0 ? 0x6420 : 0x7531);
      }
      Turn(of_rows, &third[0], &third[1], &third[2], &third[3]);
    }
  }

  // Bits by which Add shifts a column's sum up, since its codes stand that many bits up.
  static __device__ unsigned ShiftOf(unsigned unit) {
    return kEncoding == Encoding::kQ3 || kEncoding == Encoding::kMxfp4
               ? 0
               : unit % Half::kUnitsAByte * Half::kBits;
  }

  // Adds the products of a unit's codes in a column with the rows' coefficients.
  __device__ int Add(int unit, int column, unsigned coefficients, int sum) const {
    const int shift = unit % Half::kUnitsAByte * Half::kBits;
    const unsigned codes = bytes[unit / Half::kUnitsAByte][column];
    constexpr unsigned kEveryCode = ((1u << Half::kBits) - 1) * Half::kEveryByte;
    if (kEncoding == Encoding::kMxfp4) {
      return __dp4a(static_cast<int>(Mxfp4Bytes(codes >> shift & kEveryCode)), static_cast<int>(coefficients),
                    sum);
    }
    if (kEncoding == Encoding::kQ3) {
      const unsigned high = (third[column] >> unit & Half::kEveryByte) << 2;
      return DotOfBytes((codes >> shift & kEveryCode) | high, coefficients, sum);
    }
    return DotOfBytes(codes & (kEveryCode << shift), coefficients, sum);
  }
};

// A lane's share of a tile: a quarter of a block's columns, of every fourth four of neurons of one of the
// warp's blocks of neurons. kGroup: columns of a group; 0: the matrix has the number.
template <Encoding kEncoding, unsigned kGroup>
struct LaneColumns {
  static constexpr int kUnits = HalfBlock<kEncoding>::kUnits;
  static constexpr unsigned kColumns = kUnits * kUnit;  // of a block
  static constexpr unsigned kQuarters = TileQuarters(kEncoding);
  unsigned block;
  unsigned quarter;
  unsigned four;
  unsigned of_blocks;
  unsigned groups[kUnits];  // of columns, by unit

  __device__ LaneColumns(const DeviceMatrix& m, unsigned column) {
    const unsigned lane = threadIdx.x % kLanes;
    block = column / kColumns;
    quarter = column % kUnit / 4 + lane % kQuarters;
    four = lane / kQuarters % kFours;
    of_blocks = lane / kQuarters / kFours;
#pragma unroll
    for (unsigned unit = 0; unit < kUnits; ++unit) {
      groups[unit] = MayBegin(unit) ? GroupOf(m, block * kColumns + unit * kUnit) : groups[unit - 1];
    }
  }

  static __device__ unsigned GroupOf(const DeviceMatrix& m, unsigned column) {
    return min(column, m.cols - 1) / (kGroup == 0 ? m.group : kGroup);
  }
  // True if a group may begin with unit `unit` of whole groups or of a part of one.
  static constexpr __device__ bool MayBegin(unsigned unit) {
    return unit * kUnit % (kGroup == 0 ? kUnit : kGroup) == 0;
  }
};

// Halves what every lane has of `count` sums: adds those of the lane `distance` away to the half that this
// lane keeps, the upper one where `upper`.
template <int kCount>
__device__ inline void KeepHalf(int* sums, unsigned distance, bool upper) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const int kept = upper ? sums[i + kCount / 2] : sums[i];
    const int given = upper ? sums[i] : sums[i + kCount / 2];
    sums[i] = kept + __shfl_xor_sync(kAllLanes, given, distance);
  }
}

// A block of neurons' sums for a tile of columns, by a part of a warp: a lane has 8 bytes of codes of four
// rows, and four lanes have four fours at once. Four rows' codes of a column are turned into one word, times
// the four coefficients (dp4a). inside: whether the part has a block.
template <Encoding kEncoding, unsigned kGroup>
__device__ inline void QuantizedBlock(const DeviceMatrix& m, const LaneColumns<kEncoding, kGroup>& lane,
                                      bool inside, const uint8_t* place, unsigned first, float* out) {
  using Lane = LaneColumns<kEncoding, kGroup>;
  constexpr int kUnits = Lane::kUnits;
  constexpr int kSums = 4 * kUnits;
  const NeuronBlock* const block = reinterpret_cast<const NeuronBlock*>(place);
  const unsigned count = inside ? block->kept : 0;
  const unsigned groups = Lane::GroupOf(m, m.cols - 1) + 1;
  const unsigned* const codes = reinterpret_cast<const unsigned*>(place + BlockCodes(groups));
  int sums[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    asm volatile("mov.b32 %0, 0;" : "=r"(sums[i]));  // nvcc would set each twice: around the loop, and for it
  }
  for (unsigned four = lane.four; 4 * four < count; four += kFours) {
    const unsigned neurons = reinterpret_cast<const unsigned*>(block->neurons)[four];
    const uint8_t* rows[4];
    RowsOfFour(m, first, neurons, rows);
    FourRows<kEncoding> four_rows;
    four_rows.Load(m, rows, lane.block, lane.quarter);
    unsigned coefficients = 0;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if (Lane::MayBegin(unit) && (unit == 0 || kGroup != 0 || lane.groups[unit] != lane.groups[unit - 1])) {
        coefficients = codes[four * groups + lane.groups[unit]];
      }
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        sums[4 * unit + column] = four_rows.Add(unit, column, coefficients, sums[4 * unit + column]);
      }
    }
  }
  __syncwarp();
  constexpr unsigned kQuarters = Lane::kQuarters;
  KeepHalf<kSums>(sums, 2 * kQuarters, lane.four / 2 != 0);
  KeepHalf<kSums / 2>(sums, kQuarters, lane.four % 2 != 0);
  if (!inside) {
    return;
  }
  constexpr int kOwn = kSums / kFours;  // sums, of whole units or of half a one
  constexpr int kOwnUnits = kOwn < 4 ? 1 : kOwn / 4;
  constexpr int kOwnColumns = kOwn / kOwnUnits;
  out += (lane.quarter % kQuarters) * 4 + lane.four * kOwn % 4;
  float scale = 0;
  float zeros = 0;
#pragma unroll
  for (int i = 0; i < kOwnUnits; ++i) {
    const unsigned unit = lane.four * kOwn / 4 + i;
    if (Lane::MayBegin(i)) {
      const unsigned group = Lane::GroupOf(m, lane.block * Lane::kColumns + unit * kUnit);
      scale = reinterpret_cast<const float*>(place + BlockScales())[group];
      zeros = reinterpret_cast<const float*>(place + BlockZeros(groups))[group];
    }
    float own[kOwnColumns];
#pragma unroll
    for (int c = 0; c < kOwnColumns; ++c) {
      const int sum = sums[kOwnColumns * i + c] >> FourRows<kEncoding>::ShiftOf(unit);
      own[c] = scale * (static_cast<float>(sum) - zeros) + 0.0f;
    }
    float* const at = out + unit * 4 * kQuarters;
    if constexpr (kOwnColumns == 4) {
      *reinterpret_cast<float4*>(at) = make_float4(own[0], own[1], own[2], own[3]);
    } else {
#pragma unroll
      for (int c = 0; c < kOwnColumns; ++c) {
        at[c] = own[c];
      }
    }
  }
}

// The same of plain rows: a lane has 4 bytes of each, neurons ascending.
template <Encoding kEncoding>
__device__ inline void PlainBlock(const DeviceMatrix& m, const uint8_t* place, unsigned first,
                                  unsigned column, float* out) {
  constexpr unsigned kColumns = kEncoding == Encoding::kF32 ? 1 : 2;
  const NeuronBlock* const block = reinterpret_cast<const NeuronBlock*>(place);
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned c = column + lane * kColumns;
  const unsigned count = c < m.cols ? block->kept : 0;
  float sums[2] = {};
#pragma unroll 4
  for (unsigned i = 0; i < count; ++i) {
    const float coefficient = block->coefficients[i];
    const uint8_t* const row = RowOf(m, first + block->neurons[i]);
    if (kColumns == 2 && c + 1 < m.cols && m.aligned >= 4) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(row + 2 * c);
      const unsigned short low = static_cast<unsigned short>(pair);
      const unsigned short high = static_cast<unsigned short>(pair >> 16);
      const bool bf16 = kEncoding == Encoding::kBf16;
      sums[0] = fmaf(coefficient, bf16 ? __uint_as_float(pair << 16) : __half2float(__ushort_as_half(low)),
                     sums[0]);
      sums[1] =
          fmaf(coefficient, bf16 ? __uint_as_float(pair & 0xffff0000u) : __half2float(__ushort_as_half(high)),
               sums[1]);
    } else {
      sums[0] = fmaf(coefficient, LoadOne<kEncoding>(row, m.aligned, c), sums[0]);
      if (kColumns == 2 && c + 1 < m.cols) {
        sums[1] = fmaf(coefficient, LoadOne<kEncoding>(row, m.aligned, c + 1), sums[1]);
      }
    }
  }
  out[lane * kColumns] = sums[0] + 0.0f;
  if (kColumns == 2) {
    out[lane * kColumns + 1] = sums[1] + 0.0f;
  }
}

// Column sums over all blocks of neurons in their order, kAWarp of them a warp at once: `sum_blocks(block,
// out)` makes those of a warp's from `block` on, and `y` is the thread's column so far.
using TileSums = float[2][kMaxBlocks * kWarps][kMaxTile];
template <unsigned kAWarp, typename SumBlock>
__device__ inline float SumBlocks(unsigned blocks, bool has_column, float y, TileSums& sums,
                                  SumBlock sum_blocks) {
  const unsigned of_warp = threadIdx.x / kLanes * kAWarp;
  const unsigned at_once = blockDim.x / kLanes * kAWarp;
  unsigned buffer = 0;
  for (unsigned first = 0; first < blocks; first += at_once) {
    if (first + of_warp < blocks) {
      sum_blocks(first + of_warp, sums[buffer][of_warp]);
    }
    __syncthreads();
    if (has_column) {
      const unsigned count = min(at_once, blocks - first);
#pragma unroll 4
      for (unsigned w = 0; w < count; ++w) {
        y = y + sums[buffer][w][threadIdx.x];
      }
    }
    buffer ^= 1;  // the other half is free: all have been at the barrier behind its last reader
  }
  return y;
}

// The terms that a block of DownKernel adds: the blocks of neurons of a pair, for the columns from `column`
// on.
struct TileOfPair {
  DeviceMatrix m;
  const uint8_t* blocks;
  uint64_t block_bytes;
  unsigned count;
  unsigned neuron;  // the first one
  unsigned column;
  bool has_column;
};

template <Encoding kEncoding, unsigned kGroup>
__device__ inline float SumTile(const TileOfPair& tile, float y, TileSums& sums) {
  if constexpr (kEncoding <= Encoding::kF32) {
    return SumBlocks<1>(tile.count, tile.has_column, y, sums, [&](unsigned block, float* out) {
      PlainBlock<kEncoding>(tile.m, tile.blocks + block * tile.block_bytes, tile.neuron + block * kNeurons,
                            tile.column, out);
    });
  } else {
    const LaneColumns<kEncoding, kGroup> lane(tile.m, tile.column);
    return SumBlocks<BlocksAWarp(kEncoding)>(
        tile.count, tile.has_column, y, sums, [&](unsigned block, float* out) {
          const unsigned own = block + lane.of_blocks;
          QuantizedBlock<kEncoding>(tile.m, lane, own < tile.count, tile.blocks + own * tile.block_bytes,
                                    tile.neuron + own * kNeurons, out + lane.of_blocks * kMaxTile);
        });
  }
}

// The body of a block of DownKernel for rows of one encoding.
template <Encoding kEncoding, unsigned kGroup>
__device__ inline void SumPair(const ExpertsLaunch& launch, const PairOfBlock& block, TileSums& sums) {
  const DeviceExpert& e = *block.expert;
  TileOfPair tile;
  tile.m = e.down;
  constexpr unsigned columns = TileColumns(kEncoding);
  tile.column = ColumnOf(kEncoding, blockIdx.x, 0);
  if (tile.column >= tile.m.cols) {
    return;
  }
  tile.blocks = block.blocks;
  tile.block_bytes = launch.block_bytes;
  const unsigned blocks = BlocksOf(e.neuron_end - e.neuron_begin);
  if (launch.first_block >= blocks) {
    return;
  }
  tile.count = min(launch.block_count, blocks - launch.first_block);
  tile.neuron = e.neuron_begin + launch.first_block * kNeurons;
  const unsigned slot = block.pair.slot;
  const unsigned c = ColumnOf(kEncoding, blockIdx.x, threadIdx.x);
  const bool has_column = threadIdx.x < columns && c < tile.m.cols;
  tile.has_column = has_column;
  float* const y_at = launch.y + slot * launch.y_stride + c;
  float y = 0;
  if (has_column) {
    y = tile.neuron != 0 ? *y_at : e.down_bias == nullptr ? 0.0f : e.down_bias[c];
  }
  y = SumTile<kEncoding, kGroup>(tile, y, sums);
  if (has_column) {
    *y_at = y;
  }
  if (launch.active != nullptr && blockIdx.x == 0 && threadIdx.x < kLanes) {
    int counted = 0;
    for (unsigned b = threadIdx.x; b < tile.count; b += kLanes) {
      counted += static_cast<int>(
          reinterpret_cast<const NeuronBlock*>(block.blocks + b * launch.block_bytes)->counted);
    }
    counted = WarpSum(counted);
    if (threadIdx.x == 0) {
      launch.active[slot] = static_cast<unsigned>(counted) + (tile.neuron == 0 ? 0 : launch.active[slot]);
    }
  }
}

// A block: a tile of columns of one pair. A warp some blocks of 64 neurons (BlocksAWarp()), all warps
// together as many as DownWarps() allows; their sums meet in shared memory and are added in their order, a
// thread a column. Only rows that are kept are read. Bytes: 32 bytes of codes (16 of rows of few bits, 128 of
// plain values) a row and tile, 8 bytes a lane, once for each pair; the rounded coefficients from the cache.
// Bound: memory; instructions where few neurons are kept.
__global__ void __launch_bounds__(kWarps* kLanes) DownKernel(ExpertsLaunch launch) {
  __shared__ __align__(16) TileSums sums;
  const PairOfBlock block = PairOf(launch);
  if (block.expert == nullptr) {
    return;
  }
  switch (block.expert->down.encoding) {
    case Encoding::kBf16:
      return SumPair<Encoding::kBf16, 0>(launch, block, sums);
    case Encoding::kF16:
      return SumPair<Encoding::kF16, 0>(launch, block, sums);
    case Encoding::kF32:
      return SumPair<Encoding::kF32, 0>(launch, block, sums);
    default:
      WithKind<true, false>(block.expert->down, [&](auto kind) {
        SumPair<decltype(kind)::kEncoding, decltype(kind)::kGroup>(launch, block, sums);
      });
  }
}

}  // namespace

uint32_t DownTiles(const DeviceMatrix& down) {
  if (down.encoding <= Encoding::kF32) {
    const uint32_t tile = TileColumns(down.encoding);
    return (down.cols + tile - 1) / tile;
  }
  const uint32_t block = kUnit * UnitsABlock(down.encoding);
  return (down.cols + block - 1) / block * (4 / TileQuarters(down.encoding));
}

uint32_t DownWarps(const DeviceMatrix& down, uint32_t neurons) {
  const uint32_t a_warp = BlocksAWarp(down.encoding);
  return std::clamp((BlocksOf(neurons) + a_warp - 1) / a_warp, kMaxTile / kLanes, kWarps);
}

cudaError_t EnqueueDown(const ExpertsLaunch& launch, Launcher& launcher) {
  const dim3 grid(launch.max_tiles, launch.pair_count);
  return launcher.Launch(DownKernel, grid, launch.down_warps * kLanes, 0, launch);
}

}  // namespace sluice::cuda
