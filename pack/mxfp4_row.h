// MXFP4 rows (row_layout.h): E2M1 codes with one power of two per 32 values, copied from models that store
// them. No value is rounded to them.
//
// Thread safety: pure functions on the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace sluice {

inline constexpr int kMxfp4NanScale = 255;  // the one E8M0 byte that is not a power of two

// The value of an E2M1 code (0 to 15) at scale byte `scale`: NaN for kMxfp4NanScale, infinite beyond float32.
float Mxfp4Value(uint32_t code, int scale);

// Writes the RowBytes of `values` at `out`. Returns -1, or the index of the first value that no code of its
// group's scale holds exactly. Values that Mxfp4Value made from codes under one scale always fit.
int64_t EncodeMxfp4Row(absl::Span<const float> values, std::byte* out);

void DecodeMxfp4Row(const std::byte* row, absl::Span<float> values);

}  // namespace sluice
