// Memory layout of one encoded row: the byte arithmetic of pack/FORMAT.md "Rows", for the writer, for kernels
// and for tests. One source of truth; nothing here reads or writes bytes.
//
// A quantized row is: codes (whole 32-byte blocks of sixteen 16-bit little-endian words), then per group a
// scale, then per group a zero or a min if the encoding has them (f16 each with meta_bits 16), then the
// numbers of super-groups. common/base/encoding.h defines the value of a weight.
//
// Codes are planar: with B bits a word holds 16/B codes, and code c of a row lies in block c / (256/B), in
// word c % 16 of the block, at bit B * ((c % (256/B)) / 16). So a 32-byte load, a shift and a mask give 16
// consecutive codes in 16-bit lanes. q8: word i of a block holds code i in its low and code i + 16 in its
// high byte. Codes of 3, 5 and 6 bits have two planes: a whole one of their low 2 or 4 bits, then one of the
// others (of 5 and 6 bits by LocateHighCode). mxfp4: the 4-bit plane of E2M1 values, then one E8M0 byte per
// 32 values. Codes beyond the row are 0.
//
// A row of file blocks is neither: it is the file's own blocks one after the other, then a float32 factor if
// the encoding has one. common/base/file_blocks.h unpacks them.
//
// Thread safety: pure constexpr functions.
#pragma once

#include <cstdint>

#include "common/base/encoding.h"

namespace sluice {

inline constexpr uint32_t kPlaneBlockBytes = 32;  // one AVX2 register; half an AVX-512 one
inline constexpr uint32_t kPlaneLanes = 16;       // 16-bit words in a block

// Feature bits of packs (pack_format.h), incompatible: the pack has rows of block encodings; of file blocks.
inline constexpr uint64_t kFeatureBlocks = 1u << 6;
inline constexpr uint64_t kFeatureFileBlocks = 1u << 8;

inline constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Bytes of one plane of `bits` bits per code over `columns` codes: whole blocks.
inline constexpr uint64_t PlaneBytes(uint32_t bits, uint64_t columns) {
  const uint64_t codes_per_block = kPlaneBlockBytes * 8 / bits;
  return (columns + codes_per_block - 1) / codes_per_block * kPlaneBlockBytes;
}

// Groups in a row; the last one may be short. 0 for unquantized encodings.
inline constexpr uint64_t GroupsPerRow(const EncodingDescriptor& d, uint64_t columns) {
  return d.group == 0 ? 0 : (columns + d.group - 1) / d.group;
}

// Super-groups in a row with meta_bits 8, else 0.
inline constexpr uint64_t SuperGroupsPerRow(const EncodingDescriptor& d, uint64_t columns) {
  return d.super_group == 0 ? 0 : (GroupsPerRow(d, columns) + d.super_group - 1) / d.super_group;
}

// Bytes of a row of file blocks, whole ones, without the factor behind them.
inline constexpr uint64_t FileBlockBytes(Encoding encoding, uint64_t columns) {
  const RowTraits traits = TraitsOf(encoding);
  const uint64_t values = uint64_t{traits.group} * traits.super_group;
  return (columns + values - 1) / values * traits.block_bytes;
}

// Bytes of the codes (or plain values, or file blocks) at the row's start.
inline constexpr uint64_t CodeBytes(const EncodingDescriptor& d, uint64_t columns) {
  const RowTraits traits = TraitsOf(d.encoding);
  if (traits.meta == RowMeta::kFileBlock) {
    return FileBlockBytes(d.encoding, columns);
  }
  if (traits.meta == RowMeta::kNone) {
    return columns * (traits.low_bits / 8);
  }
  return PlaneBytes(traits.low_bits, columns) +
         (traits.high_bits == 0 ? 0 : PlaneBytes(traits.high_bits, columns));
}

// Offset of the second plane.
inline constexpr uint64_t HighPlaneOffset(const EncodingDescriptor& d, uint64_t columns) {
  return PlaneBytes(TraitsOf(d.encoding).low_bits, columns);
}

// Offset of the row's scales: f16 [groups] with meta_bits 16, u8 [groups] with 8 (mxfp4: E8M0 [groups]).
inline constexpr uint64_t ScaleOffset(const EncodingDescriptor& d, uint64_t columns) {
  return CodeBytes(d, columns);
}

// Bytes of the scales; the zeros or mins, if there are any, have the same size. Even, so that the data behind
// them is aligned.
inline constexpr uint64_t ScaleBytes(const EncodingDescriptor& d, uint64_t columns) {
  return d.meta_bits == 16 ? 2 * GroupsPerRow(d, columns) : AlignUp(GroupsPerRow(d, columns), 2);
}

// Offset of the row's zeros or mins, in the same type as the scales.
inline constexpr uint64_t ZeroOffset(const EncodingDescriptor& d, uint64_t columns) {
  return ScaleOffset(d, columns) + ScaleBytes(d, columns);
}

// meta_bits 8: offset of the super-groups' f16 numbers: kScaleZero {scale of scales, zero of scales, scale of
// zeros, zero of zeros}, where a group's scale is (code - zero) * scale of its super-group, and so is its
// zero; kSuperScale {d}; kSuperScaleMin {d, dmin}.
inline constexpr uint64_t SuperGroupOffset(const EncodingDescriptor& d, uint64_t columns) {
  return ZeroOffset(d, columns) + (HasSecondMeta(TraitsOf(d.encoding).meta) ? ScaleBytes(d, columns) : 0);
}

// Bytes of a super-group's numbers.
inline constexpr uint32_t SuperGroupBytes(Encoding encoding) {
  const RowMeta meta = TraitsOf(encoding).meta;
  return meta == RowMeta::kSuperScale ? 2 : meta == RowMeta::kSuperScaleMin ? 4 : 8;
}

// Bytes of one encoded row, padding of the stride not counted.
inline constexpr uint64_t RowBytes(const EncodingDescriptor& d, uint64_t columns) {
  if (!IsQuantized(d.encoding)) {
    return CodeBytes(d, columns);
  }
  if (IsFileBlock(d.encoding)) {
    return CodeBytes(d, columns) + (HasRowFactor(d.encoding) ? sizeof(float) : 0);
  }
  return SuperGroupOffset(d, columns) + SuperGroupBytes(d.encoding) * SuperGroupsPerRow(d, columns);
}

// Size of a row or record rounded up to the start of the next: 64 bytes above 512 (a cache line is a small
// share then), else 16 (one SSE register).
inline constexpr uint64_t RoundStride(uint64_t bytes) { return AlignUp(bytes, bytes > 512 ? 64 : 16); }

// Position of a code in a plane of `bits` bits: the word is at byte_offset (little-endian u16), the code at
// `shift`.
struct CodeLocation {
  uint64_t byte_offset = 0;
  uint32_t shift = 0;
};
inline constexpr CodeLocation LocateCode(uint32_t bits, uint64_t column) {
  const uint64_t codes_per_block = kPlaneBlockBytes * 8 / bits;
  const uint64_t within = column % codes_per_block;
  return {column / codes_per_block * kPlaneBlockBytes + within % kPlaneLanes * 2,
          static_cast<uint32_t>(within / kPlaneLanes) * bits};
}

// The same in the second plane of a row whose first plane has 4 bits a code: a block of 32 bytes holds the
// upper bits of the codes in four (1 bit) or two (2 bits) blocks of the first plane. The upper bits of a
// byte's two codes are in the same byte, ordered by the block's index.
inline constexpr CodeLocation LocateHighCode(uint32_t bits, uint64_t column) {
  const uint64_t block = column / 64;
  const uint64_t blocks = 4 / bits;  // blocks of the first plane that share one of this plane
  const uint64_t nibble = column % 64 / kPlaneLanes;
  return {block / blocks * kPlaneBlockBytes + column % kPlaneLanes * 2,
          static_cast<uint32_t>(8 * (nibble / 2) + bits * (2 * (block % blocks) + nibble % 2))};
}

// The descriptor of `encoding` with groups of `group` and f16 scales and zeros; `group` is ignored for
// encodings with a fixed group, or none.
inline constexpr EncodingDescriptor MakeDescriptor(Encoding encoding, uint16_t group = 64) {
  const RowTraits traits = TraitsOf(encoding);
  switch (traits.meta) {
    case RowMeta::kNone:
      return {encoding, 0, 0, 0};
    case RowMeta::kScaleZero:
      return {encoding, 16, group, 0};
    case RowMeta::kScale:
    case RowMeta::kScaleMin:
      return {encoding, 16, traits.group, 0};
    default:
      return {encoding, 8, traits.group, traits.super_group};
  }
}

// True if this format defines the descriptor: known encoding, group and meta_bits in range.
inline constexpr bool IsValidDescriptor(const EncodingDescriptor& d) {
  if (d.encoding == Encoding::kInvalid || TraitsOf(d.encoding).low_bits == 0) {
    return false;
  }
  if (TraitsOf(d.encoding).meta != RowMeta::kScaleZero) {
    return d == MakeDescriptor(d.encoding);
  }
  return d.group >= 16 && d.group <= 128 && d.group % 16 == 0 &&
         ((d.meta_bits == 16 && d.super_group == 0) ||
          (d.meta_bits == 8 && d.super_group >= 1 && d.super_group <= 256));
}

}  // namespace sluice
