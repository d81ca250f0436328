// Rows of block encodings (GGUF's q4_0 to iq4_xs): codes and numbers of groups taken over as they are into
// planes and tables. row_layout.h says where everything lies.
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
// IsValidDescriptor(descriptor), IsBlockEncoding(descriptor.encoding), as many blocks as the columns fill, of
// which the last one may reach beyond the row.
void EncodeBlockRow(const EncodingDescriptor& descriptor, absl::Span<const CodeBlock> blocks, size_t columns,
                    std::byte* out);

// The row's values, as pack/FORMAT.md defines them. REQUIRES as above; of a row of any length.
void DecodeBlockRow(const EncodingDescriptor& descriptor, const std::byte* row, absl::Span<float> values);

}  // namespace sluice
