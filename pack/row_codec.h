// The scalar reference codec of every row encoding: float32 to bytes and back; block rows and MXFP4 rows
// below it.
//
// Thread safety: pure functions on the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/encoding.h"
#include "common/model/checkpoint.h"

namespace sluice {

// Encoding and decoding of one row: float32 <-> the bytes that row_layout.h lays out. The scalar reference
// for every kernel that reads packs.

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

// Rows of block encodings (GGUF's q4_0 to iq4_xs): codes and group numbers are copied unchanged into planes
// and tables; file blocks (iq1_s to nvfp4) as they are. row_layout.h defines the layout.
//
// Thread safety: pure functions on the caller's memory.

// Writes `columns` values, those of `blocks`, into RowBytes(descriptor, columns) bytes. REQUIRES:
// IsValidDescriptor(descriptor), IsBlockEncoding(descriptor.encoding), and as many blocks as the columns
// fill; the last one may extend beyond the row.
void EncodeBlockRow(const EncodingDescriptor& descriptor, absl::Span<const CodeBlock> blocks, size_t columns,
                    std::byte* out);

// Decodes the row's values, as pack/FORMAT.md defines them. REQUIRES as above; for a row of any length.
void DecodeBlockRow(const EncodingDescriptor& descriptor, const std::byte* row, absl::Span<float> values);

// MXFP4 rows (row_layout.h): E2M1 codes with one power of two per 32 values, copied from models that store
// them. No value is rounded to them.
//
// Thread safety: pure functions on the caller's memory.

inline constexpr int kMxfp4NanScale = 255;  // the one E8M0 byte that is not a power of two

// The value of an E2M1 code (0 to 15) at scale byte `scale`: NaN for kMxfp4NanScale, infinite beyond float32.
float Mxfp4Value(uint32_t code, int scale);

// Writes the RowBytes of `values` at `out`. Returns -1, or the index of the first value that no code of its
// group's scale holds exactly. Values that Mxfp4Value made from codes under one scale always fit.
int64_t EncodeMxfp4Row(absl::Span<const float> values, std::byte* out);

void DecodeMxfp4Row(const std::byte* row, absl::Span<float> values);

}  // namespace sluice
