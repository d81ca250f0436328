// Encoding and decoding of one row: float32 <-> the bytes that row_layout.h lays out. The scalar reference
// for every kernel that reads packs.
//
// Thread safety: pure functions on the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/encoding.h"

namespace sluice {

// True if any values can be written as `encoding`: all but mxfp4, whose rows are only copied from models that
// store them.
bool CanEncode(Encoding encoding);

// Encodes `values` (finite) into the RowBytes(descriptor, values.size()) bytes at `out`. Returns -1, or the
// index of the first value that does not fit the encoding (f16: above 65504; quantized: the largest of the
// first group whose scale would exceed f16; mxfp4: any value that it does not hold exactly). REQUIRES:
// IsValidDescriptor(descriptor).
int64_t EncodeRow(const EncodingDescriptor& descriptor, absl::Span<const float> values, std::byte* out);

// Decodes RowBytes bytes at `row` into `values`. Unimplemented for kInvalid.
absl::Status DecodeRow(const EncodingDescriptor& descriptor, const std::byte* row, absl::Span<float> values);

}  // namespace sluice
