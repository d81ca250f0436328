// Products of activation rows with matrices: all parts of a MatMul, or a HeadMatMul, in one launch.
//
// Thread safety: pure but for the work it enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/device/row_kernels.h"

namespace sluice::cuda {

inline constexpr uint32_t kMaxParts = 8;

// y[t, h, r] = residual[t, r] + scale * (x[t, h] . weights[h * rows + r] + bias[r]).
struct MatMulLaunchPart {
  DeviceMatrix weights;
  // [tokens * heads] rounded rows of the weights' group (matrix.h), aligned to 16; none for a plain part, and
  // where blocks round x themselves.
  const uint8_t* rounded = nullptr;
  float* y = nullptr;
  uint64_t y_stride = 0;  // floats
  uint64_t y_head_stride = 0;
  const float* bias = nullptr;
  float scale = 1;
  uint32_t rows = 0;         // of one head
  uint32_t first_block = 0;  // set by EnqueueMatMul
  bool operator==(const MatMulLaunchPart& other) const = default;
};

struct MatMulLaunch {
  // For plain weights: aligned to 16, strides multiples of 4 floats. For a single token that blocks round
  // themselves, behind `norm`: of any alignment.
  const float* x = nullptr;
  uint64_t x_stride = 0;
  uint64_t x_head_stride = 0;
  uint32_t tokens = 0;
  uint32_t heads = 1;
  DeviceNorm norm;
  const float* residual = nullptr;
  uint64_t residual_stride = 0;
  MatMulLaunchPart parts[kMaxParts];
  uint32_t part_count = 0;
  uint32_t warp_sums = 0;  // int32 of shared memory for a warp's dots, set by EnqueueMatMul
  bool operator==(const MatMulLaunch& other) const = default;
};

// Rounded rows given, or one token of up to kStagedColumns columns in all quantized parts.
// cudaErrorInvalidValue where rows are so long that their rounded activations do not fit a block's shared
// memory (`shared_bytes` a block, at least 48 KiB); nothing is enqueued then.
cudaError_t EnqueueMatMul(MatMulLaunch launch, uint64_t shared_bytes, Launcher& launcher);

// The same of one quantized part for many tokens, by tensor cores. TakesTiles: whether it is worth it, and
// the part's groups are of whole 32 columns.
bool TakesTiles(const MatMulLaunch& launch, const MatMulLaunchPart& part);
cudaError_t EnqueueMatMulTiles(const MatMulLaunch& launch, const MatMulLaunchPart& part, Launcher& launcher);

}  // namespace sluice::cuda
