// Block formats of GGUF files: values and bytes per block, and decoding to float32. A row is a whole number
// of blocks.
//
// Thread safety: pure functions and constants.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/encoding.h"
#include "common/model/checkpoint.h"

namespace sluice {

struct GgufBlockFormat {
  uint32_t id = 0;        // id in tensor infos; frozen by the file format
  const char* name = "";  // "Q4_K"
  uint32_t values = 0;    // per block
  uint32_t bytes = 0;     // per block
  // Decodes the block at `block` into `out`, including NaN and Inf values that the format's arithmetic gives.
  void (*decode)(const uint8_t* block, float* out) = nullptr;
  // Encoding of rows that hold the block's values exactly; kInvalid: F32, F16, BF16, I32.
  Encoding rows = Encoding::kInvalid;
  // Unpacks codes and numbers in the form of such rows; null for F32, F16, BF16, I32 and MXFP4.
  void (*unpack)(const uint8_t* block, CodeBlock* out) = nullptr;
};

// Returns the format of this id, or null if its blocks cannot be decoded here.
const GgufBlockFormat* FindGgufFormat(uint32_t id);

// Describes an id that FindGgufFormat does not know, for messages: the name that its writers give it and, if
// it belongs to a fork of llama.cpp, the fork ("IQ4_KS, made for ik_llama.cpp,").
std::string DescribeGgufFormat(uint32_t id);

inline constexpr uint32_t kGgufF32 = 0;
inline constexpr uint32_t kGgufF16 = 1;
inline constexpr uint32_t kGgufI32 = 26;
inline constexpr uint32_t kGgufBf16 = 30;
inline constexpr uint32_t kGgufMxfp4 = 39;
inline constexpr uint32_t kGgufNvfp4 = 40;
inline constexpr uint32_t kGgufQ2_0 = 42;

}  // namespace sluice
