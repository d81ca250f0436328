// The block formats of GGUF files: how many values and bytes a block has, and the float32 values it stands
// for. A row is a whole number of blocks.
//
// Thread safety: pure functions and constants.
#pragma once

#include <cstdint>
#include <string>

#include "common/encoding.h"
#include "common/model/code_block.h"

namespace sluice {

struct GgufBlockFormat {
  uint32_t id = 0;        // as tensor infos say it; frozen by the file format
  const char* name = "";  // "Q4_K"
  uint32_t values = 0;    // of a block
  uint32_t bytes = 0;     // of a block
  // The values of the block at `block` into `out`; every value, NaN and Inf too, that the format's arithmetic
  // gives.
  void (*decode)(const uint8_t* block, float* out) = nullptr;
  // The encoding of rows that hold the block's values exactly; kInvalid: F32, F16, BF16.
  Encoding rows = Encoding::kInvalid;
  // The block's codes and numbers as such rows have them; null for those and MXFP4.
  void (*unpack)(const uint8_t* block, CodeBlock* out) = nullptr;
};

// The format of this id, or null if its blocks cannot be decoded here.
const GgufBlockFormat* FindGgufFormat(uint32_t id);

// The name that the writers of GGUF files give to an id that FindGgufFormat does not know, for messages.
std::string GgufFormatName(uint32_t id);

inline constexpr uint32_t kGgufF32 = 0;
inline constexpr uint32_t kGgufF16 = 1;
inline constexpr uint32_t kGgufBf16 = 30;
inline constexpr uint32_t kGgufMxfp4 = 39;

}  // namespace sluice
