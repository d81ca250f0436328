// Quantized rows (q8, q4, q3, q2): groups through the quantizer of common/quant, codes into planes, scales
// and zeros as f16 or as 8-bit codes in super-groups. row_layout.h defines the layout.
//
// Thread safety: pure functions on the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/encoding.h"

namespace sluice {

// Encodes finite `values` into RowBytes(descriptor, values.size()) bytes. Returns -1, or the index of the
// largest value of the first group whose scale would exceed f16. REQUIRES: IsValidDescriptor(descriptor), its
// encoding one of the above.
int64_t EncodeQuantizedRow(const EncodingDescriptor& descriptor, absl::Span<const float> values,
                           std::byte* out);

// Decodes the row's values, as pack/FORMAT.md defines them: (code - zero) * scale in float32.
void DecodeQuantizedRow(const EncodingDescriptor& descriptor, const std::byte* row, absl::Span<float> values);

}  // namespace sluice
