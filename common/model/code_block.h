// CodeBlock: one block of a row as block formats store it (GGUF's Q4_K and so on): codes and the numbers that
// its groups share. The traits of the block's encoding (common/row_traits.h) turn it into values.
//
// Thread safety: plain values and a pure function.
#pragma once

#include <cstdint>

#include "common/encoding.h"

namespace sluice {

inline constexpr uint32_t kMaxBlockValues = 256;

struct CodeBlock {
  // Left uninitialized on purpose: blocks are made by the million.
  uint8_t codes[kMaxBlockValues];  // per value, as stored in rows: IQ4's index, Q8_0's number plus 128
  // Group g has scale d * scales[g] and minimum dmin * mins[g]. Blocks of a single group use only d and dmin.
  uint8_t scales[kMaxBlockValues / 16];  // RowMeta::kSuperScale: signed
  uint8_t mins[kMaxBlockValues / 16];
  uint16_t d = 0;  // f16
  uint16_t dmin = 0;
};

// Returns the number of values in a block of this encoding: a super-group, or a group if there are none.
uint32_t ValuesPerBlock(Encoding encoding);

// Decodes the block's values to float32. REQUIRES: IsBlockEncoding(encoding).
void DecodeCodeBlock(Encoding encoding, const CodeBlock& block, float* out);

}  // namespace sluice
