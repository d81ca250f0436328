// How one encoded row lies in memory: the byte arithmetic of pack/FORMAT.md "Rows", for the writer,
// for kernels and for tests. One source of truth; nothing here reads or writes bytes.
//
// A quantized row is: codes (whole 32-byte blocks of sixteen 16-bit little-endian words), then per group a
// scale, then per group a zero (f16 each with meta_bits 16). A weight is (code - zero) * scale.
//
// Codes are planar: with B bits a word holds 16/B codes, and code c of a row lies in block c / (256/B), in
// word c % 16 of the block, at bit B * ((c % (256/B)) / 16). So a 32-byte load, a shift and a mask give 16
// consecutive codes in 16-bit lanes. q8: word i of a block holds code i in its low and code i + 16 in its
// high byte. q3: a whole 2-bit plane of the row (bits 0 and 1 of the codes), then a whole 1-bit plane (bit
// 2). mxfp4: the 4-bit plane of E2M1 values, then one E8M0 byte per 32 values. Codes beyond the row are 0.
//
// Thread safety: pure constexpr functions.
#pragma once

#include <cstdint>

#include "common/encoding.h"

namespace sluice {

inline constexpr uint32_t kPlaneBlockBytes = 32;  // one AVX2 register; half an AVX-512 one
inline constexpr uint32_t kPlaneLanes = 16;       // 16-bit words in a block

inline constexpr bool IsQuantized(Encoding encoding) {
  return encoding == Encoding::kQ8 || encoding == Encoding::kQ4 || encoding == Encoding::kQ3 ||
         encoding == Encoding::kQ2 || encoding == Encoding::kMxfp4;
}

// Bits of one code, or of one value of an unquantized encoding; 0 for kInvalid.
inline constexpr uint32_t BitsOf(Encoding encoding) {
  switch (encoding) {
    case Encoding::kBf16:
    case Encoding::kF16:
      return 16;
    case Encoding::kF32:
      return 32;
    case Encoding::kQ8:
      return 8;
    case Encoding::kQ4:
    case Encoding::kMxfp4:
      return 4;
    case Encoding::kQ3:
      return 3;
    case Encoding::kQ2:
      return 2;
    case Encoding::kInvalid:
      break;
  }
  return 0;
}

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

// Bytes of the codes (or plain values) at the row's start.
inline constexpr uint64_t CodeBytes(const EncodingDescriptor& d, uint64_t columns) {
  switch (d.encoding) {
    case Encoding::kQ3:
      return PlaneBytes(2, columns) + PlaneBytes(1, columns);
    case Encoding::kQ8:
    case Encoding::kQ4:
    case Encoding::kQ2:
    case Encoding::kMxfp4:
      return PlaneBytes(BitsOf(d.encoding), columns);
    default:
      return columns * (BitsOf(d.encoding) / 8);
  }
}

// Where the row's scales begin: f16 [groups] with meta_bits 16, u8 [groups] with 8 (mxfp4: E8M0 [groups]).
inline constexpr uint64_t ScaleOffset(const EncodingDescriptor& d, uint64_t columns) {
  return CodeBytes(d, columns);
}

// Bytes of the scales; the zeros take as many (mxfp4 has none). Even, so that what follows is aligned.
inline constexpr uint64_t ScaleBytes(const EncodingDescriptor& d, uint64_t columns) {
  return d.meta_bits == 16 ? 2 * GroupsPerRow(d, columns) : AlignUp(GroupsPerRow(d, columns), 2);
}

// Where the row's zeros begin, in the same type as the scales.
inline constexpr uint64_t ZeroOffset(const EncodingDescriptor& d, uint64_t columns) {
  return ScaleOffset(d, columns) + ScaleBytes(d, columns);
}

// meta_bits 8: where the super-groups' f16 quadruples begin {scale of scales, zero of scales, scale of zeros,
// zero of zeros}; a group's scale is (code - zero) * scale of its super-group, and so is its zero.
inline constexpr uint64_t SuperGroupOffset(const EncodingDescriptor& d, uint64_t columns) {
  return ZeroOffset(d, columns) + ScaleBytes(d, columns);
}

// Bytes of one encoded row, padding of the stride not counted.
inline constexpr uint64_t RowBytes(const EncodingDescriptor& d, uint64_t columns) {
  if (!IsQuantized(d.encoding)) {
    return CodeBytes(d, columns);
  }
  if (d.encoding == Encoding::kMxfp4) {
    return ZeroOffset(d, columns);
  }
  return SuperGroupOffset(d, columns) + 8 * SuperGroupsPerRow(d, columns);
}

// A row's or record's size rounded up to where the next one may begin: 64 bytes above 512 (a cache line is a
// small share then), else 16 (one SSE register).
inline constexpr uint64_t RoundStride(uint64_t bytes) { return AlignUp(bytes, bytes > 512 ? 64 : 16); }

// A code's place in a plane of `bits` bits: the word is at byte_offset (little-endian u16), the code at
// `shift`.
struct CodePlace {
  uint64_t byte_offset = 0;
  uint32_t shift = 0;
};
inline constexpr CodePlace PlaceOfCode(uint32_t bits, uint64_t column) {
  const uint64_t codes_per_block = kPlaneBlockBytes * 8 / bits;
  const uint64_t within = column % codes_per_block;
  return {column / codes_per_block * kPlaneBlockBytes + within % kPlaneLanes * 2,
          static_cast<uint32_t>(within / kPlaneLanes) * bits};
}

// The descriptor of `encoding` with groups of `group` and f16 scales and zeros; `group` is ignored for
// unquantized encodings. mxfp4 has groups of 32 and 8-bit exponents.
inline constexpr EncodingDescriptor MakeDescriptor(Encoding encoding, uint16_t group = 64) {
  if (!IsQuantized(encoding)) {
    return {encoding, 0, 0, 0};
  }
  if (encoding == Encoding::kMxfp4) {
    return {encoding, 8, 32, 0};
  }
  return {encoding, 16, group, 0};
}

// Whether a descriptor is one that this format defines: known encoding, group and meta_bits in range.
inline constexpr bool IsValidDescriptor(const EncodingDescriptor& d) {
  switch (d.encoding) {
    case Encoding::kBf16:
    case Encoding::kF16:
    case Encoding::kF32:
      return d.meta_bits == 0 && d.group == 0 && d.super_group == 0;
    case Encoding::kQ8:
    case Encoding::kQ4:
    case Encoding::kQ3:
    case Encoding::kQ2:
      return d.group >= 16 && d.group <= 128 && d.group % 16 == 0 &&
             ((d.meta_bits == 16 && d.super_group == 0) ||
              (d.meta_bits == 8 && d.super_group >= 1 && d.super_group <= 256));
    case Encoding::kMxfp4:
      return d.meta_bits == 8 && d.group == 32 && d.super_group == 0;
    case Encoding::kInvalid:
      break;
  }
  return false;
}

}  // namespace sluice
