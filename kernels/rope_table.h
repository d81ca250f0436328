// Tables of cos and sin for rotary positions, computed once in double on the CPU and uploaded: every backend
// then rotates by the same numbers.
//
// Thread safety: a pure function.
#ifndef SLUICE_KERNELS_ROPE_TABLE_H_
#define SLUICE_KERNELS_ROPE_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace sluice {

// float32 [positions][2][dims / 2] with dims = rope.dimensions: for position p and pair i
// cos(p * f_i), then sin(p * f_i), f_i = theta^(-2 i / dims) / factor of the kind. Kinds kDefault and
// kLinear; kNone gives an empty table; others are UNIMPLEMENTED by name. INVALID_ARGUMENT: odd or zero
// dimensions, theta <= 0, factor <= 0.
// `long_text`: kLongRope's table for texts beyond original_max_position; no other kind has one of its own.
absl::StatusOr<std::vector<float>> ComputeRopeTable(const RopeConfig& rope, uint32_t positions,
                                                    bool long_text = false);

}  // namespace sluice

#endif  // SLUICE_KERNELS_ROPE_TABLE_H_
