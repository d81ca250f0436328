// Kernels over rows of activations: norms with rounding behind them, embedding, and element by element.
//
// Every Enqueue function launches one kernel and says what the launch said: it allocates nothing on the
// device and waits for nothing. Addresses are the device's; strides are in floats unless said otherwise.
// Shapes are the caller's to check. Rows need the alignment that is said, or none beyond their type's.
//
// Thread safety: pure but for the work they enqueue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/model/model_config.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/matrix.h"
#include "kernels/operands.h"

namespace sluice::cuda {

struct DeviceNorm {
  bool on = false;
  NormKind kind = NormKind::kRms;
  const float* weight = nullptr;  // [cols], or none: 1
  const float* bias = nullptr;    // [cols], or none
  float epsilon = 0;
  bool operator==(const DeviceNorm& other) const = default;
};

// Row i of `rows` = tokens * heads: x + token * x_stride + head * x_head_stride with token = ids[i / heads].
struct PrepareLaunch {
  const float* x = nullptr;
  uint64_t x_stride = 0;
  uint64_t x_head_stride = 0;
  uint32_t heads = 1;
  const uint32_t* ids = nullptr;  // or none: in order
  uint32_t rows = 0;
  uint32_t cols = 0;
  DeviceNorm norm;
  float* y = nullptr;  // [rows, cols]: the normed values, or none; may be x
  uint64_t y_stride = 0;
  uint8_t* rounded = nullptr;  // [rows] rounded rows of groups of `group` (matrix.h), or none
  uint32_t group = 0;
  bool operator==(const PrepareLaunch& other) const = default;
};
cudaError_t EnqueuePrepare(const PrepareLaunch& launch, Launcher& launcher);

// y[i] = scale * table[ids[i]].
struct EmbedLaunch {
  DeviceMatrix table;
  const int32_t* ids = nullptr;
  uint32_t tokens = 0;
  float scale = 1;
  OutRows y;
  bool operator==(const EmbedLaunch& other) const = default;
};
cudaError_t EnqueueEmbed(const EmbedLaunch& launch, Launcher& launcher);

// x *= sigmoid or softplus of the gate of its `width` values.
cudaError_t EnqueueOutputGate(const OutputGateCall& call, Launcher& launcher);

// x = cap * tanh(x / cap).
cudaError_t EnqueueSoftCap(const SoftCapCall& call, Launcher& launcher);

// y[i] = weights[i] * x[i / ranks].
cudaError_t EnqueueScaleRows(const ScaleRowsCall& call, Launcher& launcher);

// out[t] = gain * (residual[t] + scale * sum over ranks of weights[t, r] * y[t * ranks + r]).
cudaError_t EnqueueCombine(const CombineCall& call, Launcher& launcher);

}  // namespace sluice::cuda
