// Dots of many tokens with quantized rows (ARITHMETIC.md section 2 b) by tensor cores: a block has 64 rows
// and 32 tokens, a warp 16 and 16 of them. x comes into shared memory by 16-byte copies, a chunk of eight
// groups at a time; a lane loads 8 bytes of each of two rows' codes, 32 neighbouring bytes a row and warp,
// once for the warp's tokens. Behind each group a lane adds its terms to the eight running sums of its
// products.
#pragma once

#include "kernels/cuda/device/encoded.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/rounding.cuh"

namespace sluice::cuda {

namespace tiles {

constexpr unsigned kRowWarps = 4;
constexpr unsigned kTokenWarps = 2;
constexpr unsigned kThreads = kRowWarps * kTokenWarps * kLanes;
constexpr unsigned kWarpRows = 16;
constexpr unsigned kWarpTokens = 16;  // two products of eight
constexpr unsigned kRows = kRowWarps * kWarpRows;
constexpr unsigned kTokens = kTokenWarps * kWarpTokens;
constexpr unsigned kGroupsAtOnce = 8;  // of a chunk of columns: one for each running sum of section 2 (b)

// The rounded rows of a tile's tokens: neighbours, or listed; those beyond the last one are the last one
// again.
struct TokenRows {
  const uint8_t* rounded;
  uint64_t stride;       // bytes
  const uint32_t* list;  // shared, or none
  unsigned last;
  __device__ const uint8_t* Of(unsigned token) const {
    const unsigned i = min(token, last);
    return rounded + (list == nullptr ? i : list[i]) * stride;
  }
};

// A chunk of the tokens' rounded x in shared memory, eight groups of columns. A token's codes are 16 bytes
// apart from those of the next beyond the chunk's columns, so that eight tokens' words meet no bank twice.
struct ChunkOfX {
  uint8_t* codes;  // [kTokens][stride]
  float* scales;   // [kGroupsAtOnce][kTokens]
  float* sums;     // [kGroupsAtOnce][kTokens]
  unsigned group;
  __device__ ChunkOfX(int4* shared, unsigned group)
      : codes(reinterpret_cast<uint8_t*>(shared)),
        scales(reinterpret_cast<float*>(codes + kTokens * (kGroupsAtOnce * group + 16))),
        sums(scales + kGroupsAtOnce * kTokens),
        group(group) {}
  __device__ unsigned columns() const { return kGroupsAtOnce * group; }
  __device__ unsigned stride() const { return columns() + 16; }
};
constexpr unsigned ChunkBytes(unsigned group) {
  return kTokens * (kGroupsAtOnce * group + 16) + 2 * 4 * kGroupsAtOnce * kTokens;
}

// The chunk's columns from `first` on of kTokens rounded rows: 16-byte copies. The block waits, before and
// behind.
__device__ inline void FetchChunk(const TokenRows& rows, unsigned cols, unsigned first,
                                  const ChunkOfX& chunk) {
  __syncthreads();
  const unsigned pieces = min(chunk.columns(), RoundedCodes(cols) - first) / 16;
  for (unsigned token = threadIdx.x / kLanes; token < kTokens; token += kThreads / kLanes) {
    const uint8_t* const from = rows.Of(token) + first;
    uint8_t* const to = chunk.codes + token * chunk.stride();
    for (unsigned i = threadIdx.x % kLanes; i < pieces; i += kLanes) {
      __pipeline_memcpy_async(to + 16 * i, from + 16 * i, 16);
    }
  }
  __pipeline_commit();
  static_assert(kGroupsAtOnce * kTokens == kThreads);
  const unsigned token = threadIdx.x % kTokens;
  const unsigned i = threadIdx.x / kTokens;
  const unsigned g = first / chunk.group + i;
  if (g < GroupsOf(cols, chunk.group)) {
    const uint8_t* const row = rows.Of(token);
    chunk.scales[threadIdx.x] = reinterpret_cast<const float*>(row + RoundedScales(cols))[g];
    chunk.sums[threadIdx.x] =
        static_cast<float>(reinterpret_cast<const int*>(row + RoundedSums(cols, chunk.group))[g]);
  }
  __pipeline_wait_prior(0);
  __syncthreads();
}

// Eight bytes of a row's block: columns 4 q .. 4 q + 3 of each of its units.
template <Encoding kEncoding>
struct QuarterBlock {
  using Half = HalfBlock<kEncoding>;
  unsigned bytes[2];  // low and high bytes of the four columns' words
  unsigned third;     // as HalfBlock's

  __device__ void Load(const DeviceMatrix& m, const uint8_t* row, unsigned block, unsigned quarter) {
    uint32_t words[2];
    LoadWords(row + 32 * block + 8 * quarter, m.aligned, words);
    bytes[0] = __byte_perm(words[0], words[1], 0x6420);
    bytes[1] = __byte_perm(words[0], words[1], 0x7531);
    if (kEncoding == Encoding::kQ3) {
      LoadWords(row + m.third_bits + 32 * (block / 2) + 8 * quarter, m.aligned, words);
      third = __byte_perm(words[0], words[1], block % 2 == 0 ? 0x6420 : 0x7531);
    }
    if constexpr (kHighBits<kEncoding> != 0) {
      LoadWords(row + m.third_bits + HighBlock<kEncoding>(block) + 8 * quarter, m.aligned, words);
      third = HighBits<kEncoding>(words[0], words[1], block);
    }
  }
  // A unit's codes, a byte a column.
  __device__ unsigned Codes(unsigned unit) const {
    const unsigned mask = ((1u << Half::kBits) - 1) * Half::kEveryByte;
    const unsigned word = unit / Half::kUnitsAByte == 0 ? bytes[0] : bytes[1];
    const unsigned in_place = word >> (unit % Half::kUnitsAByte * Half::kBits);
    if constexpr (kOfBlocks<kEncoding>) {
      return WholeCodes<kEncoding>(in_place, third, unit);
    }
    unsigned codes = in_place & mask;
    if (kEncoding == Encoding::kQ3) {
      codes |= (third >> unit & Half::kEveryByte) << 2;
    }
    return kEncoding == Encoding::kMxfp4 ? Mxfp4Bytes(codes) : codes;
  }
};

// The running sums of a lane: of 2 x 4 products of a row and a token, eight each.
struct RunningSums {
  float values[2][4][kGroupsAtOnce];
};

// A warp's product: 16 rows, two of them the lane's, with 16 tokens of the chunk.
struct WarpTile {
  const uint8_t* rows[2];
  unsigned first_token;
};

// The integer products of a group's columns, 32 an instruction.
template <Encoding kEncoding>
__device__ inline void GroupProducts(const DeviceMatrix& m, const WarpTile& tile, unsigned first,
                                     const uint8_t* x, unsigned stride, QuarterBlock<kEncoding> (&codes)[2],
                                     int (&sums)[2][4]) {
  constexpr unsigned kBlockColumns = HalfBlock<kEncoding>::kUnits * kUnit;
  const unsigned quarter = threadIdx.x % 4;
  const unsigned blocks = (m.cols + kBlockColumns - 1) / kBlockColumns;
  for (unsigned column = 0; column < m.group; column += 2 * kUnit) {
    const unsigned block = (first + column) / kBlockColumns;
    if (block >= blocks) {
      break;
    }
    const unsigned unit = (first + column) % kBlockColumns / kUnit;
    if (unit == 0) {
      codes[0].Load(m, tile.rows[0], block, quarter);
      codes[1].Load(m, tile.rows[1], block, quarter);
    }
    const unsigned a[4] = {codes[0].Codes(unit), codes[1].Codes(unit), codes[0].Codes(unit + 1),
                           codes[1].Codes(unit + 1)};
#pragma unroll
    for (unsigned n = 0; n < 2; ++n) {
      const uint8_t* const from = x + 8 * n * stride + column;
      const unsigned b[2] = {*reinterpret_cast<const unsigned*>(from),
                             *reinterpret_cast<const unsigned*>(from + kUnit)};
      MultiplyBytes<kEncoding == Encoding::kMxfp4>(a, b, sums[n]);
    }
  }
}

// A group's terms of the lane's products, for their sums number `i`; `at`: of the lane's first token.
template <bool kMins>
__device__ inline void AddTerms(const GroupNumbers (&numbers)[2], const ChunkOfX& chunk, unsigned at,
                                const int (&sums)[2][4], unsigned i, RunningSums* running) {
#pragma unroll
  for (unsigned n = 0; n < 2; ++n) {
#pragma unroll
    for (unsigned r = 0; r < 4; ++r) {
      const unsigned token = at + 8 * n + r % 2;
      float* const sum = &running->values[n][r][i];
      *sum = AddGroup<kMins>(numbers[r / 2], chunk.scales[token], chunk.sums[token],
                             static_cast<float>(sums[n][r]), *sum);
    }
  }
}

// The chunk's groups: behind each group's products its term for the lane's eight sums (section 2 b).
template <Encoding kEncoding>
__device__ inline void AddChunk(const DeviceMatrix& m, const WarpTile& tile, unsigned first,
                                const ChunkOfX& chunk, RunningSums* running) {
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned groups = GroupsOf(m.cols, m.group);
  QuarterBlock<kEncoding> codes[2] = {};
#pragma unroll
  for (unsigned i = 0; i < kGroupsAtOnce; ++i) {
    const unsigned g = first / m.group + i;
    if (g < groups) {
      int sums[2][4] = {};
      const uint8_t* const x =
          chunk.codes + (tile.first_token + lane / 4) * chunk.stride() + i * m.group + lane % 4 * 4;
      GroupProducts<kEncoding>(m, tile, first + i * m.group, x, chunk.stride(), codes, sums);
      const GroupNumbers numbers[2] = {NumbersOf<kEncoding>(m, tile.rows[0], g),
                                       NumbersOf<kEncoding>(m, tile.rows[1], g)};
      const unsigned at = i * kTokens + tile.first_token + lane % 4 * 2;
      if (HasMins<kEncoding>(m)) {
        AddTerms<true>(numbers, chunk, at, sums, i, running);
      } else {
        AddTerms<false>(numbers, chunk, at, sums, i, running);
      }
    }
  }
}

// The dots of the lane's rows and tokens: 2 x 4 of them, n and r as MultiplyBytes has them. `shared`:
// ChunkBytes().
template <Encoding kEncoding>
__device__ inline void TileDots(const DeviceMatrix& m, const WarpTile& tile, const TokenRows& x, int4* shared,
                                float (&dots)[2][4]) {
  const ChunkOfX chunk(shared, m.group);
  RunningSums running = {};
  for (unsigned first = 0; first < m.cols; first += chunk.columns()) {
    FetchChunk(x, m.cols, first, chunk);
    AddChunk<kEncoding>(m, tile, first, chunk, &running);
  }
#pragma unroll
  for (unsigned n = 0; n < 2; ++n) {
#pragma unroll
    for (unsigned r = 0; r < 4; ++r) {
      const float(&a)[kGroupsAtOnce] = running.values[n][r];
      dots[n][r] = ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])) + 0.0f;
    }
  }
}

}  // namespace tiles

}  // namespace sluice::cuda
