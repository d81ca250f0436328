// RMS norm of rows (ARITHMETIC.md section 5), to the bit.
//
// Thread safety: pure but for the work it enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sluice::cuda {

struct RmsNormLaunch {
  const float* x = nullptr;       // [rows, cols], device
  const float* weight = nullptr;  // [cols], device, or none
  float* y = nullptr;             // [rows, cols], device; may be x
  uint32_t rows = 0;
  uint32_t cols = 0;  // a multiple of 4, up to 12256: a row lies in shared memory
  float epsilon = 0;
};

// cudaErrorInvalidValue for a shape it does not take; nothing is enqueued then.
cudaError_t EnqueueRmsNorm(const RmsNormLaunch& launch, cudaStream_t stream);

}  // namespace sluice::cuda
