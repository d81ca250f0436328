// File blocks: the blocks of GGUF's low-bit types as their files hold them (IQ1, IQ2, IQ3, TQ, NVFP4, Q1_0,
// Q2_0), and their values as int8 codes with a scale for each group. Rows of these encodings are the file's
// blocks, byte for byte (pack/FORMAT.md), so every reader of such rows unpacks them here.
//
// Source: the block layouts of ggml, as pack/FORMAT.md states them.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "common/base/encoding.h"

namespace sluice {

// Unpacks the block at `block`, TraitsOf(encoding).block_bytes bytes: value i is codes[i] * scales[i /
// group], with the encoding's group and group * super_group codes of -62..62. The products are exact in
// float32. A scale is infinite or NaN if the block's f16 number is; any bytes unpack. REQUIRES:
// IsFileBlock(encoding).
void UnpackFileBlock(Encoding encoding, const uint8_t* block, int8_t* codes, float* scales);

}  // namespace sluice
