// Reads of parts of the tensors that make up a quantized layer.
//
// Private to common/model. Thread safety: free functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/model/safetensors.h"

namespace sluice {

// Reads bytes [first, first + count) of each of `lines` lines of `line_bytes` from line `line` on, without
// gaps.
absl::Status ReadLineBytes(const TensorFolder& folder, const TensorInfo& tensor, uint64_t line_bytes,
                           uint64_t line, uint64_t lines, uint64_t first, uint64_t count,
                           std::vector<uint8_t>* out);

// Reads values [first, first + count) of a tensor of scales: BF16, F16, F32, F8_E4M3, or U8 for powers of
// two.
absl::Status ReadScales(const TensorFolder& folder, const TensorInfo& tensor, uint64_t first, uint64_t count,
                        std::vector<float>* out);

// True if ReadScales supports the type.
bool IsScaleType(ElementType type);

}  // namespace sluice
