// Encoded rows read by kernels (pack/row_layout.h): scales, zeros, blocks of codes, values of plain rows.
#pragma once

#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/device/scalar.cuh"

namespace sluice::cuda {

// Row i of those that there are. (A row is shorter than 4 GiB: one wide product.)
__device__ inline const uint8_t* RowAt(const DeviceMatrix& m, unsigned i) {
  return m.base + uint64_t{i} * static_cast<unsigned>(m.stride);
}

// Row i, nullptr for an absent one.
__device__ inline const uint8_t* RowOf(const DeviceMatrix& m, unsigned i) {
  if (m.positions == nullptr) {
    return RowAt(m, i);
  }
  const int place = m.positions[i];
  return place < 0 ? nullptr : RowAt(m, static_cast<unsigned>(place));
}

__device__ inline bool HasRow(const DeviceMatrix& m, unsigned i) {
  return m.positions == nullptr || m.positions[i] >= 0;
}

// Rows first + n for the four bytes n of a word, none of them absent.
__device__ inline void RowsOfFour(const DeviceMatrix& m, unsigned first, unsigned four,
                                  const uint8_t* (&rows)[4]) {
  if (m.positions == nullptr) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      rows[r] = RowAt(m, first + (four >> (8 * r) & 0xffu));
    }
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      rows[r] = RowAt(m, static_cast<unsigned>(m.positions[first + (four >> (8 * r) & 0xffu)]));
    }
  }
}

__device__ inline bool IsPlain(Encoding encoding) { return encoding <= Encoding::kF32; }

// The value of an 8-bit scale (first 0) or zero (first 4).
__device__ inline float SuperValue(const DeviceMatrix& m, const uint8_t* row, unsigned group, unsigned code,
                                   unsigned first) {
  const uint8_t* const quadruple = row + m.supers + 8 * (group / m.super_group) + first;
  return (static_cast<float>(code) - HalfAt(quadruple + 2)) * HalfAt(quadruple);
}

__device__ inline float ScaleOf(const DeviceMatrix& m, const uint8_t* row, unsigned group) {
  if (m.encoding == Encoding::kMxfp4) {  // 2^(e - 128), below e = 2 a denormal
    const unsigned e = row[m.scales + group];
    return __uint_as_float(e == 255 ? 0x7fc00000u : e >= 2 ? (e - 1) << 23 : 0x00200000u << e);
  }
  return m.numbers == Numbers::kSupers ? SuperValue(m, row, group, row[m.scales + group], 0)
                                       : HalfAt(row + m.scales + 2 * group);
}

__device__ inline float ZeroOf(const DeviceMatrix& m, const uint8_t* row, unsigned group) {
  if (m.encoding == Encoding::kMxfp4) {
    return 0.0f;
  }
  return m.numbers == Numbers::kSupers ? SuperValue(m, row, group, row[m.zeros + group], 4)
                                       : HalfAt(row + m.zeros + 2 * group);
}

// Traits of an encoding's code layout: if only block encodings use it, and if any of them has mins. kInvalid:
// any encoding.
template <Encoding kEncoding>
constexpr bool kOfBlocks = CodesOf(kEncoding) > Encoding::kMxfp4;
template <Encoding kEncoding>
constexpr bool kMayHaveMins = kEncoding == Encoding::kInvalid || kEncoding == Encoding::kQ4 ||
                              kEncoding == Encoding::kQ2 || kEncoding == blocks::kQ5_0;

template <Encoding kEncoding>
__device__ inline bool IsOfBlocks(const DeviceMatrix& m) {
  return kOfBlocks<kEncoding> || (kEncoding != Encoding::kMxfp4 && m.numbers >= Numbers::kScales);
}
template <Encoding kEncoding>
__device__ inline bool HasMins(const DeviceMatrix& m) {
  return kMayHaveMins<kEncoding> &&
         (m.numbers == Numbers::kScalesMins || m.numbers == Numbers::kSuperScalesMins);
}

// A group's scale and its zero or min, of the rows of dots, which may be of a block encoding. A product of an
// f16 and a byte is exact.
struct GroupNumbers {
  float scale;
  float second;
};
template <Encoding kEncoding>
__device__ inline GroupNumbers NumbersOf(const DeviceMatrix& m, const uint8_t* row, unsigned group) {
  if (!IsOfBlocks<kEncoding>(m)) {
    return {ScaleOf(m, row, group), ZeroOf(m, row, group)};
  }
  const bool mins = HasMins<kEncoding>(m);
  const float zero = static_cast<float>(m.zero);
  if (m.numbers < Numbers::kSuperScales) {
    return {HalfAt(row + m.scales + 2 * group), mins ? HalfAt(row + m.zeros + 2 * group) : zero};
  }
  const unsigned super = m.group == kUnit ? group / (kBlockColumns / kUnit) : group / (kBlockColumns / 32);
  const uint8_t* const d = row + m.supers + (mins ? 4 : 2) * super;
  const unsigned scale = row[m.scales + group];
  return {
      HalfAt(d) * (mins ? static_cast<float>(scale) : static_cast<float>(static_cast<signed char>(scale))),
      mins ? HalfAt(d + 2) * static_cast<float>(row[m.zeros + group]) : zero};
}

// Adds a group to a running sum (section 2 b): `sum` of the products of codes, scale and sum of x's.
template <bool kMins>
__device__ inline float AddGroup(const GroupNumbers& of, float x_scale, float x_sum, float sum,
                                 float running) {
  return kMins ? fmaf(x_scale, fmaf(-of.second, x_sum, of.scale * sum), running)
               : fmaf(of.scale * x_scale, fmaf(-of.second, x_sum, sum), running);
}

// kWords words of 4 bytes by the widest loads that the rows' alignment allows.
template <int kWords>
__device__ inline void LoadWords(const uint8_t* from, unsigned aligned, uint32_t (&words)[kWords]) {
  if (kWords % 4 == 0 && aligned >= 16) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(from + 4 * i);
      words[i] = four.x;
      words[i + 1] = four.y;
      words[i + 2] = four.z;
      words[i + 3] = four.w;
    }
  } else if (kWords % 2 == 0 && aligned >= 16) {
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(from + 4 * i);
      words[i] = two.x;
      words[i + 1] = two.y;
    }
  } else if (aligned >= 4) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = *reinterpret_cast<const uint32_t*>(from + 4 * i);
    }
  } else {
    const uint16_t* const halves = reinterpret_cast<const uint16_t*>(from);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = halves[2 * i] | static_cast<uint32_t>(halves[2 * i + 1]) << 16;
    }
  }
}

// Four unsigned codes times four signed ones, added to `sum`.
__device__ inline int DotOfBytes(unsigned codes, unsigned x, int sum) {
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(codes), "r"(x), "r"(sum));
  return sum;
}

// Template key of the code: rows of an encoding in groups of kColumns columns; 0: the group size is in the
// matrix.
template <Encoding kOf, unsigned kColumns>
struct RowKind {
  static constexpr Encoding kEncoding = kOf;
  static constexpr unsigned kGroup = kColumns;
};

// Calls `use` with the kind of a quantized matrix. Groups of most packs' size have code of their own, without
// its divisions, where kMost says so. kBlocks: rows may be of a block encoding.
template <bool kMost, bool kBlocks, typename Use>
__device__ inline auto WithKind(const DeviceMatrix& m, Use use) {
  constexpr unsigned columns = 64;
  const bool most = kMost && m.group == columns;
  switch (m.encoding) {
    case Encoding::kQ8:
      return use(RowKind<Encoding::kQ8, 0>());
    case Encoding::kQ4:
      return most ? use(RowKind<Encoding::kQ4, columns>()) : use(RowKind<Encoding::kQ4, 0>());
    case Encoding::kQ3:
      return most ? use(RowKind<Encoding::kQ3, columns>()) : use(RowKind<Encoding::kQ3, 0>());
    case Encoding::kQ2:
      return most ? use(RowKind<Encoding::kQ2, columns>()) : use(RowKind<Encoding::kQ2, 0>());
    default:
      break;
  }
  if constexpr (kBlocks) {
    switch (m.encoding) {
      case blocks::kQ5_0:
        return use(RowKind<blocks::kQ5_0, 0>());
      case blocks::kQ6_K:
        return use(RowKind<blocks::kQ6_K, 0>());
      case blocks::kIq4Nl:
        return use(RowKind<blocks::kIq4Nl, 0>());
      default:
        break;
    }
  }
  return use(RowKind < Encoding::kMxfp4, kMost ? 32 : 0 > ());
}

template <Encoding kEncoding>
constexpr int kPlaneBits = 16 / UnitsABlock(kEncoding);

// Bits of a code in a second plane behind one of four bits (pack/row_layout.h: LocateHighCode).
template <Encoding kEncoding>
constexpr int kHighBits = kEncoding == blocks::kQ5_0   ? 1
                          : kEncoding == blocks::kQ6_K ? 2
                                                       : 0;

// The bits of two words of the second plane for four columns of a block: a byte a column, the bits of units 0
// and 1 from bit 0, those of 2 and 3 from bit 4.
template <Encoding kEncoding>
__device__ inline unsigned HighBits(uint32_t first, uint32_t second, unsigned block) {
  constexpr unsigned kBits = 2 * kHighBits<kEncoding>;
  constexpr unsigned kMask = ((1u << kBits) - 1) * 0x01010101u;
  const unsigned shift = kBits * (block % (8 / kBits));
  return (__byte_perm(first, second, 0x6420) >> shift & kMask) |
         (__byte_perm(first, second, 0x7531) >> shift & kMask) << 4;
}
// Where block `block` has them.
template <Encoding kEncoding>
__device__ inline unsigned HighBlock(unsigned block) {
  return 32 * (block / (4 / kHighBits<kEncoding>));
}
// A unit's, above the four bits of codes.
template <Encoding kEncoding>
__device__ inline unsigned HighOf(unsigned high, unsigned unit) {
  constexpr unsigned kMask = ((1u << kHighBits<kEncoding>)-1) * 0x01010101u;
  return (high >> (unit / 2 * 4 + unit % 2 * kHighBits<kEncoding>)&kMask) << 4;
}

// Four nibbles, one a byte, to IQ4's codes (common/base/encoding.h).
__device__ inline unsigned Iq4Bytes(unsigned nibbles) {
  constexpr auto kFour = [](int i) constexpr {
    return unsigned{kIq4Codes[i]} | unsigned{kIq4Codes[i + 1]} << 8 | unsigned{kIq4Codes[i + 2]} << 16 |
           unsigned{kIq4Codes[i + 3]} << 24;
  };
  constexpr unsigned kTable[4] = {kFour(0), kFour(4), kFour(8), kFour(12)};
  const unsigned places = nibbles & 0x07070707u;
  const unsigned pairs = places | places >> 4;
  const unsigned select = (pairs & 0xffu) | (pairs >> 8 & 0xff00u);
  const unsigned upper = (nibbles >> 3 & 0x01010101u) * 0xffu;
  return (__byte_perm(kTable[0], kTable[1], select) & ~upper) |
         (__byte_perm(kTable[2], kTable[3], select) & upper);
}

// Four nibbles of E2M1, one a byte, to twice their values, signed.
__device__ inline unsigned Mxfp4Bytes(unsigned codes) {
  const unsigned size = codes & 0x07070707u;
  const unsigned pairs = size | size >> 4;
  const unsigned select = (pairs & 0xffu) | (pairs >> 8 & 0xff00u);
  const unsigned magnitude = __byte_perm(0x03020100u, 0x0c080604u, select);
  // A negative zero is zero, so that no byte carries into the next.
  const unsigned negative = codes & (size + 0x07070707u) & 0x08080808u;
  const unsigned ones = negative >> 3;
  return (magnitude ^ ones * 0xffu) + ones;
}

// Four codes of a unit, a byte a column, of an encoding that only blocks have: from their lower bits in
// `nibbles`, beside others', and HighBits().
template <Encoding kEncoding>
__device__ inline unsigned WholeCodes(unsigned nibbles, unsigned high, unsigned unit) {
  nibbles &= 0x0f0f0f0fu;
  if constexpr (kHighBits<kEncoding> != 0) {
    return nibbles | HighOf<kEncoding>(high, unit);
  } else {
    return Iq4Bytes(nibbles);
  }
}

// Sixteen bytes of a block of codes, half of it: columns 8 half .. 8 half + 7 of each of its units. A new
// encoding says here what its units' codes are, and nothing else of the products changes.
template <Encoding kEncoding>
struct HalfBlock {
  static constexpr int kBits = kPlaneBits<kEncoding>;
  static constexpr int kUnits = 16 / kBits;
  static constexpr int kUnitsAByte = 8 / kBits;
  static constexpr unsigned kEveryByte = 0x01010101u;

  unsigned bytes[2][2];  // low and high bytes of the words, those of four columns and of the next four
  unsigned third[2];     // q3: a byte a column, a bit a unit; of five and six bits: HighBits()

  __device__ void Load(const DeviceMatrix& m, unsigned aligned, const uint8_t* row, unsigned block,
                       unsigned half) {
    uint32_t words[4];
    LoadWords(row + 32 * block + 16 * half, aligned, words);
#pragma unroll
    for (int quad = 0; quad < 2; ++quad) {
      bytes[0][quad] = __byte_perm(words[2 * quad], words[2 * quad + 1], 0x6420);
      bytes[1][quad] = __byte_perm(words[2 * quad], words[2 * quad + 1], 0x7531);
    }
    if (kEncoding == Encoding::kQ3) {
      LoadWords(row + m.third_bits + 32 * (block / 2) + 16 * half, aligned, words);
      const unsigned select = block % 2 == 0 ? 0x6420 : 0x7531;
      third[0] = __byte_perm(words[0], words[1], select);
      third[1] = __byte_perm(words[2], words[3], select);
    }
    if constexpr (kHighBits<kEncoding> != 0) {
      LoadWords(row + m.third_bits + HighBlock<kEncoding>(block) + 16 * half, aligned, words);
      third[0] = HighBits<kEncoding>(words[0], words[1], block);
      third[1] = HighBits<kEncoding>(words[2], words[3], block);
    }
  }

  // Codes are masked where they stand, so many bits up in their bytes, and sums are multiples of that place.
  static constexpr bool kInPlace =
      kEncoding != Encoding::kMxfp4 && kEncoding != Encoding::kQ3 && !kOfBlocks<kEncoding>;
  static constexpr int PlaceOf(int unit) { return kInPlace ? unit % kUnitsAByte * kBits : 0; }

  // Adds the products of a unit's eight codes with the codes of x to a sum at the unit's place.
  __device__ int AddProducts(int unit, const uint2& x, int sum) const {
    const int shift = unit % kUnitsAByte * kBits;
    const unsigned(&codes)[2] = bytes[unit / kUnitsAByte];
    if (kEncoding == Encoding::kMxfp4) {
      const unsigned nibbles = 0x0f * kEveryByte;
      const int first =
          __dp4a(static_cast<int>(Mxfp4Bytes(codes[0] >> shift & nibbles)), static_cast<int>(x.x), sum);
      return __dp4a(static_cast<int>(Mxfp4Bytes(codes[1] >> shift & nibbles)), static_cast<int>(x.y), first);
    }
    if constexpr (kOfBlocks<kEncoding>) {
      return DotOfBytes(WholeCodes<kEncoding>(codes[1] >> shift, third[1], unit), x.y,
                        DotOfBytes(WholeCodes<kEncoding>(codes[0] >> shift, third[0], unit), x.x, sum));
    }
    const unsigned mask = (((1u << kBits) - 1) << shift) * kEveryByte;
    if (kInPlace) {
      return DotOfBytes(codes[1] & mask, x.y, DotOfBytes(codes[0] & mask, x.x, sum));
    }
    const int low = DotOfBytes(codes[1] & mask, x.y, DotOfBytes(codes[0] & mask, x.x, 0)) >> shift;
    const unsigned bit = kEveryByte << unit;
    const int high = DotOfBytes(third[1] & bit, x.y, DotOfBytes(third[0] & bit, x.x, 0));
    return sum + low + (high >> unit) * 4;
  }
};

// A word's two f16 values, unpacked once for both.
__device__ inline void TwoHalves(uint32_t word, float* low, float* high) {
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(*low), "=f"(*high)
      : "r"(word));
}

// Eight values of a plain row from column `first`, a multiple of 8.
template <Encoding kEncoding>
__device__ inline void LoadEight(const uint8_t* row, unsigned aligned, unsigned first, float (&values)[8]) {
  if (kEncoding == Encoding::kF32) {
    uint32_t words[8];
    LoadWords(row + 4 * first, aligned, words);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = __uint_as_float(words[i]);
    }
    return;
  }
  uint32_t words[4];
  LoadWords(row + 2 * first, aligned, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (kEncoding == Encoding::kBf16) {
      values[2 * i] = __uint_as_float(words[i] << 16);
      values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    } else {
      TwoHalves(words[i], &values[2 * i], &values[2 * i + 1]);
    }
  }
}

// One value of a plain row.
template <Encoding kEncoding>
__device__ inline float LoadOne(const uint8_t* row, unsigned aligned, unsigned column) {
  if (kEncoding == Encoding::kF32) {
    uint32_t word[1];
    LoadWords(row + 4 * column, aligned, word);
    return __uint_as_float(word[0]);
  }
  const uint16_t bits = *reinterpret_cast<const uint16_t*>(row + 2 * column);
  return kEncoding == Encoding::kBf16 ? __uint_as_float(static_cast<uint32_t>(bits) << 16)
                                      : __half2float(__ushort_as_half(bits));
}

}  // namespace sluice::cuda
