// Products of activation rows with matrices: all parts of a MatMul, or a HeadMatMul, in one launch.
//
// Thread safety: pure but for the work it enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/matrix.h"

namespace sluice::cuda {

inline constexpr uint32_t kMaxParts = 8;

// y[t, h, r] = residual[t, r] + scale * (x[t, h] . weights[h * rows + r] + bias[r]).
struct MatMulLaunchPart {
  DeviceMatrix weights;
  const uint8_t* rounded =
      nullptr;  // [tokens * heads] rounded rows of the weights' group (matrix.h), aligned to 16
  float* y = nullptr;
  uint64_t y_stride = 0;  // floats
  uint64_t y_head_stride = 0;
  const float* bias = nullptr;
  float scale = 1;
  uint32_t rows = 0;         // of one head
  uint32_t first_block = 0;  // set by EnqueueMatMul
};

struct MatMulLaunch {
  const float* x = nullptr;  // for plain weights; aligned to 16, strides multiples of 4 floats
  uint64_t x_stride = 0;
  uint64_t x_head_stride = 0;
  uint32_t tokens = 0;
  uint32_t heads = 1;
  const float* residual = nullptr;
  uint64_t residual_stride = 0;
  MatMulLaunchPart parts[kMaxParts];
  uint32_t part_count = 0;
};

// cudaErrorInvalidValue where rows are so long that their rounded activations do not fit a block's shared
// memory (`shared_bytes` a block, at least 48 KiB); nothing is enqueued then.
cudaError_t EnqueueMatMul(MatMulLaunch launch, uint64_t shared_bytes, cudaStream_t stream);

}  // namespace sluice::cuda
