// Layers that carry a state from step to step: the gated delta rule (ARITHMETIC.md section 9), Mamba-2 and
// the short convolution (section 10).
//
// Thread safety: pure but for the work they enqueue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"

namespace sluice::cuda {

struct StateSequence {
  uint32_t first_row = 0;
  uint32_t rows = 0;
  const float* from = nullptr;  // the state before the first row, none: zeros
  float* to = nullptr;          // the state after the last; both begin with the rows that a convolution keeps
  bool operator==(const StateSequence& other) const = default;
};

struct StateSequences {
  const StateSequence* sequences = nullptr;  // device
  uint32_t count = 0;
  uint32_t max_rows = 0;  // of a sequence
  bool operator==(const StateSequences& other) const = default;
};

struct DeltaLaunch {
  StateSequences sequences;  // states: [conv_kernel - 1][conv_cols], [value_heads][key_dim][value_dim]
  const float* qkv = nullptr;
  uint64_t qkv_stride = 0;
  const float* z = nullptr;
  uint64_t z_stride = 0;
  const float* beta = nullptr;
  uint64_t beta_stride = 0;
  const float* decay = nullptr;
  uint64_t decay_stride = 0;
  const float* conv = nullptr;  // [conv_cols] rows
  uint64_t conv_stride = 0;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  const float* norm_weight = nullptr;
  float epsilon = 0;
  float q_scale = 0;  // 1 / sqrt(key_dim)
  uint32_t key_heads = 0;
  uint32_t value_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  uint32_t conv_kernel = 0;
  uint32_t head_decays = 1;    // or key_dim
  float decay_floor = 0;       // < 0: log decays are this * sigmoid(..)
  bool sigmoid_gate = false;   // else silu
  float* convolved = nullptr;  // workspace [tokens, conv_cols]
  float* out = nullptr;
  uint64_t out_stride = 0;
  bool operator==(const DeltaLaunch& other) const = default;
};

// Two launches. cudaErrorInvalidValue for a value_dim above 1024.
cudaError_t EnqueueDelta(const DeltaLaunch& launch, Launcher& launcher);

struct MambaLaunch {
  StateSequences sequences;  // states: [conv_kernel - 1][conv_cols], [heads][state][head_dim]
  const float* z = nullptr;
  uint64_t z_stride = 0;
  const float* xbc = nullptr;  // x by head, B by group, C by group: conv_cols
  uint64_t xbc_stride = 0;
  const float* dt = nullptr;
  uint64_t dt_stride = 0;
  const float* conv = nullptr;  // [conv_kernel] rows
  uint64_t conv_stride = 0;
  const float* conv_bias = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  const float* skip = nullptr;
  const float* norm_weight = nullptr;
  float epsilon = 0;
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  uint32_t groups = 0;
  uint32_t state = 0;
  uint32_t conv_kernel = 0;
  float min_step = 0;
  float max_step = 0;          // 0: none
  float* convolved = nullptr;  // workspace [tokens, conv_cols]
  float* out = nullptr;
  uint64_t out_stride = 0;
  bool operator==(const MambaLaunch& other) const = default;
};
// Three launches. cudaErrorInvalidValue for a head_dim above 1024.
cudaError_t EnqueueMamba(const MambaLaunch& launch, Launcher& launcher);

// out = c * convolution(b * x), or silu(convolution(x)).
struct ShortConvLaunch {
  StateSequences sequences;  // states: [kernel - 1][width]
  const float* bcx = nullptr;
  uint64_t bcx_stride = 0;
  bool gated = true;
  const float* conv = nullptr;  // [kernel] rows
  uint64_t conv_stride = 0;
  const float* bias = nullptr;  // or none
  uint32_t width = 0;
  uint32_t kernel = 0;
  float* out = nullptr;
  uint64_t out_stride = 0;
  bool operator==(const ShortConvLaunch& other) const = default;
};
cudaError_t EnqueueShortConv(const ShortConvLaunch& launch, Launcher& launcher);

struct SelectiveScanLaunch {
  StateSequences sequences;  // states: [states][channels]
  const float* x = nullptr;
  uint64_t x_stride = 0;
  const float* z = nullptr;
  uint64_t z_stride = 0;
  const float* step = nullptr;
  uint64_t step_stride = 0;
  const float* b = nullptr;
  uint64_t b_stride = 0;
  const float* c = nullptr;
  uint64_t c_stride = 0;
  const float* a_log = nullptr;  // [states] rows
  uint64_t a_stride = 0;
  const float* skip = nullptr;
  uint32_t channels = 0;
  uint32_t states = 0;
  float* out = nullptr;
  uint64_t out_stride = 0;
  bool operator==(const SelectiveScanLaunch& other) const = default;
};
cudaError_t EnqueueSelectiveScan(const SelectiveScanLaunch& launch, Launcher& launcher);

}  // namespace sluice::cuda
