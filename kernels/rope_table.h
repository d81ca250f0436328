// Tables of cos and sin for rotary positions, computed once in double on the CPU and uploaded: every backend
// then rotates by the same numbers.
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

// `long_text`, here and below: kLongRope's values for texts beyond original_max_position; no other kind has
// values of its own for them.
//
// The frequency of each pair, rope.dimensions / 2 of them; empty for kNone. UNIMPLEMENTED by name: kDynamic,
// whose frequencies change with the text's length. INVALID_ARGUMENT naming the field and its value: what the
// kind needs and cannot be (odd or zero dimensions, theta <= 0, factors <= 0, counts that do not match).
absl::StatusOr<std::vector<double>> RopeFrequencies(const RopeConfig& rope, bool long_text = false);

// What the kind scales cos and sin by. INVALID_ARGUMENT unless it is positive.
absl::StatusOr<double> RopeFactor(const RopeConfig& rope, bool long_text = false);

// The rows of a table from position `first` on, as many as `rows` holds: float32 [2][size(frequencies)] each.
void FillRopeRows(absl::Span<const double> frequencies, double factor, uint32_t first,
                  absl::Span<float> rows);

// float32 [positions][2][dims / 2] with dims = rope.dimensions: for position p and pair i
// a * cos(p * f_i), then a * sin(p * f_i); f_i: RopeFrequencies, a: the kind's attention factor. Errors as
// RopeFrequencies.
absl::StatusOr<std::vector<float>> ComputeRopeTable(const RopeConfig& rope, uint32_t positions,
                                                    bool long_text = false);

}  // namespace sluice
