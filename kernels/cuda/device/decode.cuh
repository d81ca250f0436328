// Single values of encoded rows, of any encoding: for kernels that decode rows, not for products.
#pragma once

#include "kernels/cuda/device/encoded.cuh"

namespace sluice::cuda {

// Code `column` of a plane of kBits bits.
template <int kBits>
__device__ inline unsigned PlaneCode(const uint8_t* plane, unsigned column) {
  constexpr unsigned kColumns = 256 / kBits;
  const unsigned within = column % kColumns;
  const uint16_t word = *reinterpret_cast<const uint16_t*>(plane + column / kColumns * 32 + within % 16 * 2);
  return word >> (within / 16 * kBits) & ((1u << kBits) - 1);
}

// The upper bits of a code in the second plane of one of five or six bits.
template <Encoding kEncoding>
__device__ inline unsigned HighCode(const uint8_t* plane, unsigned column) {
  const unsigned block = column / 64;
  const uint16_t word =
      *reinterpret_cast<const uint16_t*>(plane + HighBlock<kEncoding>(block) + column % 16 * 2);
  return HighOf<kEncoding>(HighBits<kEncoding>(word, 0, block), column % 64 / 16) & 0xffu;
}

__device__ inline float CodeAt(const DeviceMatrix& m, const uint8_t* row, unsigned column) {
  switch (m.encoding) {
    case Encoding::kQ8:
      return static_cast<float>(PlaneCode<8>(row, column));
    case Encoding::kQ4:
      return static_cast<float>(PlaneCode<4>(row, column));
    case Encoding::kQ3:
      return static_cast<float>(PlaneCode<2>(row, column) + 4 * PlaneCode<1>(row + m.third_bits, column));
    case Encoding::kQ2:
      return static_cast<float>(PlaneCode<2>(row, column));
    case blocks::kQ5_0:
      return static_cast<float>(PlaneCode<4>(row, column) +
                                HighCode<blocks::kQ5_0>(row + m.third_bits, column));
    case blocks::kQ6_K:
      return static_cast<float>(PlaneCode<4>(row, column) +
                                HighCode<blocks::kQ6_K>(row + m.third_bits, column));
    case blocks::kIq4Nl:
      return static_cast<float>(Iq4Bytes(PlaneCode<4>(row, column)) & 0xffu);
    default:
      return static_cast<float>(static_cast<signed char>(Mxfp4Bytes(PlaneCode<4>(row, column)) & 0xffu));
  }
}

// Value `k` of a row of the matrix.
__device__ inline float ValueAt(const DeviceMatrix& m, const uint8_t* row, unsigned k) {
  switch (m.encoding) {
    case Encoding::kBf16:
      return LoadOne<Encoding::kBf16>(row, m.aligned, k);
    case Encoding::kF16:
      return LoadOne<Encoding::kF16>(row, m.aligned, k);
    case Encoding::kF32:
      return LoadOne<Encoding::kF32>(row, m.aligned, k);
    default: {
      const GroupNumbers numbers = NumbersOf<Encoding::kInvalid>(m, row, k / m.group);
      const float code = CodeAt(m, row, k);
      return HasMins<Encoding::kInvalid>(m) ? numbers.scale * code - numbers.second
                                            : (code - numbers.second) * numbers.scale;
    }
  }
}

}  // namespace sluice::cuda
