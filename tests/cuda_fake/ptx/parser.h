// Reads the PTX that nvcc emits.
//
// Thread safety: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/cuda_fake/ptx/module.h"

namespace sluice::cuda_fake {

// INVALID_ARGUMENT naming the line for what it cannot read.
absl::StatusOr<Module> ParsePtx(absl::string_view source);

// The literal of an immediate as 64 bits: integers as they are, 0f and 0d as the bits of a float or a double.
absl::StatusOr<uint64_t> ParseLiteral(absl::string_view text);

}  // namespace sluice::cuda_fake
