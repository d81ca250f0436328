// Terms that every layer of the system shares: row encodings, parts of an expert, and the numbers and codes
// of quantized rows.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice {

// Row encodings and the parts of an expert: the terms that every layer of the system shares.
//
// A row is one neuron's weights along `hidden` (or any matrix row). Values are frozen: they are stored in
// packs (pack/FORMAT.md) and in the session ABI (common/protocol/session_abi.h).

// Storage format of one row's weights. Numbers are frozen.
enum class Encoding : uint8_t {
  kInvalid = 0,
  kBf16 = 1,   // little-endian bfloat16
  kF16 = 2,    // little-endian IEEE half
  kF32 = 3,    // little-endian IEEE single (norm vectors)
  kQ8 = 8,     // 8-bit codes, groups with scale and zero
  kQ4 = 9,     // 4-bit codes
  kQ3 = 10,    // a 2-bit plane and a 1-bit plane
  kQ2 = 11,    // 2-bit codes
  kMxfp4 = 16  // OCP MXFP4 blocks of 32 with a shared exponent
};

// One of an expert's three matrices. A part set holds it as the bit `1 << part`.
enum class Part : uint8_t { kUp = 0, kGate = 1, kDown = 2 };
inline constexpr int kPartCount = 3;
using PartSet = uint8_t;  // bit mask of Part
inline constexpr PartSet kAllParts = 0x7;
inline constexpr PartSet PartBit(Part part) {
  return static_cast<PartSet>(1u << static_cast<unsigned>(part));
}

// Complete description of an encoded row. `group` values share a scale and a zero; 0 for unquantized
// encodings.
struct EncodingDescriptor {
  Encoding encoding = Encoding::kInvalid;
  uint8_t meta_bits = 0;     // 16: f16 scale and zero; 8: 8-bit in super-groups; 0 for unquantized
  uint16_t group = 0;        // 16..128, need not divide the row (the tail group is shorter)
  uint16_t super_group = 0;  // groups per super-group with meta_bits 8, else 0
  bool operator==(const EncodingDescriptor&) const = default;
};

// Building blocks of quantized row encodings: the bits of codes, and the numbers that groups of codes share.
// pack/row_layout.h defines their places, pack/FORMAT.md specifies them.
//
// Thread safety: pure constexpr functions.

// Encodings that hold the values of GGUF's blocks exactly, besides those of Encoding: 64 plus
// GGUF's number of the type. Frozen.
namespace blocks {
inline constexpr Encoding kQ4_0 = Encoding{66};
inline constexpr Encoding kQ4_1 = Encoding{67};
inline constexpr Encoding kQ5_0 = Encoding{70};
inline constexpr Encoding kQ5_1 = Encoding{71};
inline constexpr Encoding kQ8_0 = Encoding{72};
inline constexpr Encoding kQ2_K = Encoding{74};
inline constexpr Encoding kQ3_K = Encoding{75};
inline constexpr Encoding kQ4_K = Encoding{76};
inline constexpr Encoding kQ5_K = Encoding{77};
inline constexpr Encoding kQ6_K = Encoding{78};
inline constexpr Encoding kIq4Nl = Encoding{84};
inline constexpr Encoding kIq4Xs = Encoding{87};
// File blocks (common/base/file_blocks.h): the row is the file's own bytes.
inline constexpr Encoding kIq2Xxs = Encoding{80};
inline constexpr Encoding kIq2Xs = Encoding{81};
inline constexpr Encoding kIq3Xxs = Encoding{82};
inline constexpr Encoding kIq1S = Encoding{83};
inline constexpr Encoding kIq3S = Encoding{85};
inline constexpr Encoding kIq2S = Encoding{86};
inline constexpr Encoding kIq1M = Encoding{93};
inline constexpr Encoding kTq1_0 = Encoding{98};
inline constexpr Encoding kTq2_0 = Encoding{99};
inline constexpr Encoding kNvfp4 = Encoding{104};
inline constexpr Encoding kQ1_0 = Encoding{105};
inline constexpr Encoding kQ2_0 = Encoding{106};
}  // namespace blocks

// The numbers of a group, and the formula of a weight from them and its code.
enum class RowMeta : uint8_t {
  kNone,           // unquantized
  kScaleZero,      // (code - zero) * scale, both f16 or both 8-bit in super-groups
  kExponent,       // code * 2^(e - 128): mxfp4
  kScale,          // (code - zero) * scale: f16 scales, the zero is the encoding's
  kScaleMin,       // scale * code - min: f16 scales and mins
  kSuperScale,     // (code - zero) * scale, scale = d * i8 with an f16 d for each super-group
  kSuperScaleMin,  // scale * code - min, scale = d * u8, min = dmin * u8 with f16 d and dmin
  kFileBlock       // code * scale, both unpacked from the file's block (common/base/file_blocks.h)
};

// Components of an encoding. Every product d * i8 is exact in float32.
struct RowTraits {
  uint8_t low_bits = 0;   // bits of a code in the row's first plane; of an unquantized value
  uint8_t high_bits = 0;  // bits in the second plane
  RowMeta meta = RowMeta::kNone;
  uint8_t zero = 0;  // kScale, kSuperScale
  // Fixed by the encoding, else 0.
  uint8_t group = 0;
  uint8_t super_group = 0;
  uint8_t block_bytes = 0;  // kFileBlock: of the super_group groups of a block
};

inline constexpr size_t kEncodingNumbers = 107;  // encodings are numbered below this

namespace internal {

inline constexpr std::array<RowTraits, kEncodingNumbers> MakeTraits() {
  std::array<RowTraits, kEncodingNumbers> all = {};
  const auto set = [&all](Encoding encoding, const RowTraits& traits) {
    all[static_cast<size_t>(encoding)] = traits;
  };
  set(Encoding::kBf16, {16});
  set(Encoding::kF16, {16});
  set(Encoding::kF32, {32});
  set(Encoding::kQ8, {8, 0, RowMeta::kScaleZero});
  set(Encoding::kQ4, {4, 0, RowMeta::kScaleZero});
  set(Encoding::kQ3, {2, 1, RowMeta::kScaleZero});
  set(Encoding::kQ2, {2, 0, RowMeta::kScaleZero});
  set(Encoding::kMxfp4, {4, 0, RowMeta::kExponent, 0, 32});
  set(blocks::kQ4_0, {4, 0, RowMeta::kScale, 8, 32});
  set(blocks::kQ4_1, {4, 0, RowMeta::kScaleMin, 0, 32});
  set(blocks::kQ5_0, {4, 1, RowMeta::kScale, 16, 32});
  set(blocks::kQ5_1, {4, 1, RowMeta::kScaleMin, 0, 32});
  set(blocks::kQ8_0, {8, 0, RowMeta::kScale, 128, 32});
  set(blocks::kQ2_K, {2, 0, RowMeta::kSuperScaleMin, 0, 16, 16});
  set(blocks::kQ3_K, {2, 1, RowMeta::kSuperScale, 4, 16, 16});
  set(blocks::kQ4_K, {4, 0, RowMeta::kSuperScaleMin, 0, 32, 8});
  set(blocks::kQ5_K, {4, 1, RowMeta::kSuperScaleMin, 0, 32, 8});
  set(blocks::kQ6_K, {4, 2, RowMeta::kSuperScale, 32, 16, 16});
  set(blocks::kIq4Nl, {4, 0, RowMeta::kScale, 128, 32});
  set(blocks::kIq4Xs, {4, 0, RowMeta::kSuperScale, 128, 32, 8});
  // Bits are rounded up; a group of 32 has one scale, though it may have the same one as its neighbours.
  set(blocks::kIq2Xxs, {3, 0, RowMeta::kFileBlock, 0, 32, 8, 66});
  set(blocks::kIq2Xs, {3, 0, RowMeta::kFileBlock, 0, 16, 16, 74});
  set(blocks::kIq2S, {3, 0, RowMeta::kFileBlock, 0, 16, 16, 82});
  set(blocks::kIq3Xxs, {4, 0, RowMeta::kFileBlock, 0, 32, 8, 98});
  set(blocks::kIq3S, {4, 0, RowMeta::kFileBlock, 0, 32, 8, 110});
  set(blocks::kIq1S, {2, 0, RowMeta::kFileBlock, 0, 32, 8, 50});
  set(blocks::kIq1M, {2, 0, RowMeta::kFileBlock, 0, 16, 16, 56});
  set(blocks::kTq1_0, {2, 0, RowMeta::kFileBlock, 0, 32, 8, 54});
  set(blocks::kTq2_0, {3, 0, RowMeta::kFileBlock, 0, 32, 8, 66});
  set(blocks::kNvfp4, {5, 0, RowMeta::kFileBlock, 0, 16, 4, 36});
  set(blocks::kQ1_0, {2, 0, RowMeta::kFileBlock, 0, 32, 4, 18});
  set(blocks::kQ2_0, {3, 0, RowMeta::kFileBlock, 0, 32, 2, 18});
  return all;
}

inline constexpr std::array<RowTraits, kEncodingNumbers> kTraits = MakeTraits();

}  // namespace internal

// A number that is not an encoding has no bits.
inline constexpr RowTraits TraitsOf(Encoding encoding) {
  const auto number = static_cast<size_t>(encoding);
  return number < kEncodingNumbers ? internal::kTraits[number] : RowTraits{};
}

inline constexpr bool IsQuantized(Encoding encoding) { return TraitsOf(encoding).meta != RowMeta::kNone; }

// Encodings with the codes and numbers of blocks in planes and tables.
inline constexpr Encoding kBlockEncodings[] = {blocks::kQ4_0, blocks::kQ4_1, blocks::kQ5_0,  blocks::kQ5_1,
                                               blocks::kQ8_0, blocks::kQ2_K, blocks::kQ3_K,  blocks::kQ4_K,
                                               blocks::kQ5_K, blocks::kQ6_K, blocks::kIq4Nl, blocks::kIq4Xs};

// True if rows hold the values of GGUF's blocks: such rows are copied, never rounded to, and their weighted
// sums (down) are not defined.
inline constexpr bool IsBlockEncoding(Encoding encoding) {
  return TraitsOf(encoding).meta >= RowMeta::kScale;
}

// Encodings whose rows are file blocks.
inline constexpr Encoding kFileBlockEncodings[] = {
    blocks::kIq2Xxs, blocks::kIq2Xs, blocks::kIq2S,  blocks::kIq3Xxs, blocks::kIq3S, blocks::kIq1S,
    blocks::kIq1M,   blocks::kTq1_0, blocks::kTq2_0, blocks::kNvfp4,  blocks::kQ1_0, blocks::kQ2_0};

inline constexpr bool IsFileBlock(Encoding encoding) {
  return TraitsOf(encoding).meta == RowMeta::kFileBlock;
}

// True if a float32 factor of all its values follows the row's file blocks.
inline constexpr bool HasRowFactor(Encoding encoding) { return encoding == blocks::kNvfp4; }

// True if each group has a second number beside its scale.
inline constexpr bool HasSecondMeta(RowMeta meta) {
  return meta == RowMeta::kScaleZero || meta == RowMeta::kScaleMin || meta == RowMeta::kSuperScaleMin;
}

// True if that second number is a min.
inline constexpr bool HasMins(RowMeta meta) {
  return meta == RowMeta::kScaleMin || meta == RowMeta::kSuperScaleMin;
}

// True if four-bit codes index the table of these values plus 128 (IQ4's table).
inline constexpr bool IsIq4(Encoding encoding) {
  return encoding == blocks::kIq4Nl || encoding == blocks::kIq4Xs;
}
inline constexpr uint8_t kIq4Codes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241};

// Bits of one code, or of one value of an unquantized encoding; 0 for kInvalid.
inline constexpr uint32_t BitsOf(Encoding encoding) {
  const RowTraits traits = TraitsOf(encoding);
  return traits.low_bits + traits.high_bits;
}

}  // namespace sluice
