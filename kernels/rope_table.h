// Tables of cos and sin for rotary positions, computed once in double on the CPU and uploaded, so that every
// backend rotates by the same numbers.
//
// Source of the kinds: Hugging Face transformers, modeling_rope_utils.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_config.h"

namespace sluice {

// `long_sequence`, here and below: kLongRope's values for sequences beyond original_max_position; no other
// kind has separate values for them.
//
// Returns the frequency of each pair, rope.dimensions / 2 of them; empty for kNone. UNIMPLEMENTED by name:
// kDynamic, whose frequencies change with the sequence's length. INVALID_ARGUMENT naming an invalid field and
// its value (odd or zero dimensions, theta <= 0, factors <= 0, counts that do not match).
absl::StatusOr<std::vector<double>> RopeFrequencies(const RopeConfig& rope, bool long_sequence = false);

// Returns the kind's factor of cos and sin. INVALID_ARGUMENT unless it is positive.
absl::StatusOr<double> RopeFactor(const RopeConfig& rope, bool long_sequence = false);

// Fills the rows of a table from position `first` on, as many as `rows` holds: float32 [2][size(frequencies)]
// each.
void FillRopeRows(absl::Span<const double> frequencies, double factor, uint32_t first,
                  absl::Span<float> rows);

// float32 [positions][2][dims / 2] with dims = rope.dimensions: for position p and pair i
// a * cos(p * f_i), then a * sin(p * f_i); f_i: RopeFrequencies, a: the kind's attention factor. Errors as
// RopeFrequencies.
absl::StatusOr<std::vector<float>> ComputeRopeTable(const RopeConfig& rope, uint32_t positions,
                                                    bool long_sequence = false);

}  // namespace sluice
