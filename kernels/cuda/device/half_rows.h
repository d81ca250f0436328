// Rows for a library's products in 16-bit floats (../fast_products.h): activations and weights made so, and
// results made of the library's sums.
//
// A row of f16 has a scale, a power of two that takes its largest value to [2^14, 2^15): what is rounded away
// is at most 2^-11 of a value, or 2^-39 of the row's largest, whatever the row's size. A row of bf16 has
// none.
//
// Every Enqueue function launches one kernel; as in row_kernels.h. Thread safety: pure but for that work.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/matrix.h"

namespace sluice::cuda {

// Activations: rows of floats, or rounded rows (matrix.h) as the values that they stand for.
struct HalfRowsLaunch {
  const float* x = nullptr;
  uint64_t x_stride = 0;
  const uint8_t* rounded = nullptr;  // or none: x
  uint32_t group = 0;                // of the rounded rows
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint32_t padded_rows = 0;  // zeros behind the last row
  uint32_t padded_cols = 0;  // and behind a row's last column
  bool bf16 = false;         // else f16
  uint16_t* y = nullptr;     // [padded_rows, padded_cols]
  float* scales = nullptr;   // [padded_rows]: a value is scales[row] * y
  bool operator==(const HalfRowsLaunch& other) const = default;
};
cudaError_t EnqueueHalfRows(const HalfRowsLaunch& launch, Launcher& launcher);

// Weights first..first + rows - 1 as rows of f16.
struct ExpandLaunch {
  DeviceMatrix weights;
  uint32_t first = 0;
  uint32_t rows = 0;
  uint32_t padded_cols = 0;  // zeros behind a row's last column
  uint16_t* y = nullptr;     // [rows, padded_cols]
  float* scales = nullptr;   // [rows]: a weight is scales[row] * y
  bool operator==(const ExpandLaunch& other) const = default;
};
cudaError_t EnqueueExpand(const ExpandLaunch& launch, Launcher& launcher);

// y[t, r] = residual[t, r] + scale * (row_scales[r] * x_scales[t] * sums[t, r] + bias[r]).
struct FinishLaunch {
  const float* sums = nullptr;
  uint64_t sums_stride = 0;
  const float* x_scales = nullptr;
  const float* row_scales = nullptr;  // or none: 1
  const float* bias = nullptr;        // or none
  const float* residual = nullptr;    // or none
  uint64_t residual_stride = 0;
  float scale = 1;
  float* y = nullptr;
  uint64_t y_stride = 0;
  uint32_t tokens = 0;
  uint32_t rows = 0;
  bool operator==(const FinishLaunch& other) const = default;
};
cudaError_t EnqueueFinish(const FinishLaunch& launch, Launcher& launcher);

}  // namespace sluice::cuda
