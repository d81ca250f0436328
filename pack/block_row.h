// Rows of block encodings (GGUF's q4_0 to iq4_xs): codes and group numbers are copied unchanged into planes
// and tables. row_layout.h defines the layout.
//
// Thread safety: pure functions on the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/encoding.h"
#include "common/model/code_block.h"

namespace sluice {

// Writes `columns` values, those of `blocks`, into RowBytes(descriptor, columns) bytes. REQUIRES:
// IsValidDescriptor(descriptor), IsBlockEncoding(descriptor.encoding), and as many blocks as the columns
// fill; the last one may extend beyond the row.
void EncodeBlockRow(const EncodingDescriptor& descriptor, absl::Span<const CodeBlock> blocks, size_t columns,
                    std::byte* out);

// Decodes the row's values, as pack/FORMAT.md defines them. REQUIRES as above; for a row of any length.
void DecodeBlockRow(const EncodingDescriptor& descriptor, const std::byte* row, absl::Span<float> values);

}  // namespace sluice
