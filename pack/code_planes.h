// The codes of a quantized row in their planes (row_layout.h): all of a row at once, for writers and for the
// scalar reference.
//
// Thread safety: pure functions on the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/encoding.h"

namespace sluice {

// Stores the codes in the planes at the beginning of `row`, which must be zero. REQUIRES: a quantized
// encoding.
void StoreCodes(Encoding encoding, absl::Span<const uint8_t> codes, std::byte* row);

// Reads the codes of a row with this number of columns.
void LoadCodes(Encoding encoding, const std::byte* row, absl::Span<uint8_t> codes);

}  // namespace sluice
