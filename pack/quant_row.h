// Rows quantized by us: groups with scale and zero, and their codes in planes.
//
// Thread safety: pure functions on the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/base/encoding.h"

namespace sluice {

// The codes of a quantized row in their planes (row_layout.h): all of a row at once, for writers and for the
// scalar reference.

// Stores the codes in the planes at the beginning of `row`, whole planes with zeros behind the codes.
// REQUIRES: a quantized encoding.
void StoreCodes(Encoding encoding, absl::Span<const uint8_t> codes, std::byte* row);

// Stores codes [first, first + codes.size()) of a row of `columns`. REQUIRES: `first` is a multiple of 256,
// and so is the end unless it is the row's.
void StoreSomeCodes(Encoding encoding, absl::Span<const uint8_t> codes, size_t first, size_t columns,
                    std::byte* row);

// Reads the codes of a row with this number of columns.
void LoadCodes(Encoding encoding, const std::byte* row, absl::Span<uint8_t> codes);

// Quantized rows (q8, q4, q3, q2): groups through the quantizer of common/base/hqq.h, codes into planes,
// scales and zeros as f16 or as 8-bit codes in super-groups. row_layout.h defines the layout.
//
// Thread safety: pure functions on the caller's memory.

// Encodes finite `values` into RowBytes(descriptor, values.size()) bytes. Returns -1, or the index of the
// largest value of the first group whose scale would exceed f16. REQUIRES: IsValidDescriptor(descriptor), its
// encoding one of the above.
int64_t EncodeQuantizedRow(const EncodingDescriptor& descriptor, absl::Span<const float> values,
                           std::byte* out);

// Decodes the row's values, as pack/FORMAT.md defines them: (code - zero) * scale in float32.
void DecodeQuantizedRow(const EncodingDescriptor& descriptor, const std::byte* row, absl::Span<float> values);

}  // namespace sluice
