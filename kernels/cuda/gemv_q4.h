// One activation row times rows of 4-bit codes with f16 scales and zeros of groups of 64 (pack/row_layout.h),
// by ARITHMETIC.md section 2 (b), to the bit.
//
// Thread safety: pure but for the work it enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sluice::cuda {

struct GemvQ4Launch {
  const unsigned char* weights = nullptr;  // [rows][stride], device, aligned to 16
  uint64_t stride = 0;                     // bytes from row to row, a multiple of 16
  const unsigned char* x = nullptr;        // one row of EnqueueRoundRows(), device, aligned to 16
  float* y = nullptr;                      // [rows], device
  uint32_t rows = 0;
  uint32_t cols = 0;  // up to 23104: the rounded row lies in shared memory
};

// cudaErrorInvalidValue for a shape it does not take; nothing is enqueued then.
cudaError_t EnqueueGemvQ4(const GemvQ4Launch& launch, cudaStream_t stream);

}  // namespace sluice::cuda
