// A block of a row as files with block formats keep it (GGUF's Q4_K and so on): codes, and the numbers that
// its groups share. What common/row_traits.h says of the block's encoding makes values of it.
//
// Thread safety: plain values and a pure function.
#pragma once

#include <cstdint>

#include "common/encoding.h"

namespace sluice {

inline constexpr uint32_t kMostBlockValues = 256;

struct CodeBlock {
  // Not set from the start: blocks are made by the million.
  uint8_t codes[kMostBlockValues];  // of each value, as stored in rows: IQ4's index, Q8_0's number plus 128
  // Of each group: d times scales[g] is its scale, dmin times mins[g] its min. Blocks of one group have d and
  // dmin alone.
  uint8_t scales[kMostBlockValues / 16];  // RowMeta::kSuperScale: signed
  uint8_t mins[kMostBlockValues / 16];
  uint16_t d = 0;  // f16
  uint16_t dmin = 0;
};

// Values of a block of this encoding: those of a super-group, or of a group if there are none.
uint32_t BlockValuesOf(Encoding encoding);

// The block's values in float32. REQUIRES: IsBlockEncoding(encoding).
void DecodeCodeBlock(Encoding encoding, const CodeBlock& block, float* out);

}  // namespace sluice
