// Encodings as indices of the kernel table, and the layout of their rows.
//
// Thread safety: pure functions.
#pragma once

#include "kernels/host/simd/kernel_table.h"
#include "pack/row_layout.h"

namespace sluice::cpu {

// REQUIRES bf16, f16 or f32.
inline int RowKindOf(Encoding encoding) {
  switch (encoding) {
    case Encoding::kBf16:
      return static_cast<int>(RowKind::kBf16);
    case Encoding::kF16:
      return static_cast<int>(RowKind::kF16);
    default:
      return static_cast<int>(RowKind::kF32);
  }
}

// The kind by the bits of codes; the groups' layout is in RowShape. REQUIRES a quantized encoding.
inline int QuantKindOf(Encoding encoding) {
  const RowTraits traits = TraitsOf(encoding);
  QuantKind kind = QuantKind::kQ4;
  if (encoding == Encoding::kMxfp4) {
    kind = QuantKind::kMxfp4;
  } else if (IsIq4(encoding)) {
    kind = QuantKind::kIq4;
  } else if (traits.low_bits == 8) {
    kind = QuantKind::kQ8;
  } else if (traits.low_bits == 2) {
    kind = traits.high_bits == 1 ? QuantKind::kQ3 : QuantKind::kQ2;
  } else if (traits.high_bits != 0) {
    kind = traits.high_bits == 1 ? QuantKind::kQ5 : QuantKind::kQ6;
  }
  return static_cast<int>(kind);
}

// REQUIRES rows below 4 GiB. For rows that are not quantized only cols and bytes are set.
inline RowShape ShapeOf(const EncodingDescriptor& d, uint32_t cols) {
  RowShape shape;
  shape.cols = cols;
  shape.group = d.group;
  shape.groups = static_cast<uint32_t>(GroupsPerRow(d, cols));
  shape.meta = TraitsOf(d.encoding).meta;
  shape.zero = static_cast<float>(TraitsOf(d.encoding).zero);
  shape.super_group = d.super_group;
  // Rounded up; exact below 2^24 groups, as super-groups are at most 256.
  shape.super_inverse = d.super_group == 0 ? 0 : ((uint64_t{1} << 32) + d.super_group - 1) / d.super_group;
  shape.high_plane = static_cast<uint32_t>(HighPlaneOffset(d, cols));
  shape.scales = static_cast<uint32_t>(ScaleOffset(d, cols));
  shape.zeros = static_cast<uint32_t>(ZeroOffset(d, cols));
  shape.super_groups = static_cast<uint32_t>(SuperGroupOffset(d, cols));
  shape.bytes = static_cast<uint32_t>(RowBytes(d, cols));
  return shape;
}

}  // namespace sluice::cpu
