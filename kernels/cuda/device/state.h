// Layers that carry a state from step to step: the gated delta rule (ARITHMETIC.md section 9), Mamba-2 and
// the short convolution (section 10).
//
// Thread safety: pure but for the work they enqueue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/operands.h"

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

// States: [conv_kernel - 1][conv_cols], [value_heads][key_dim][value_dim].
struct DeltaLaunch : StateSequences, GatedDeltaOperands {
  float q_scale = 0;  // 1 / sqrt(key_dim)
  uint32_t head_decays = 1;
  float* convolved = nullptr;  // workspace [tokens, conv_cols]
  bool operator==(const DeltaLaunch& other) const = default;
};
// Two launches. cudaErrorInvalidValue for a value_dim above 1024.
cudaError_t EnqueueDelta(const DeltaLaunch& launch, Launcher& launcher);

// States: [conv_kernel - 1][conv_cols], [heads][state][head_dim].
struct MambaLaunch : StateSequences, MambaOperands {
  float* convolved = nullptr;  // workspace [tokens, conv_cols]
  bool operator==(const MambaLaunch& other) const = default;
};
// Three launches. cudaErrorInvalidValue for a head_dim above 1024.
cudaError_t EnqueueMamba(const MambaLaunch& launch, Launcher& launcher);

// States: [Reach()][width].
struct ShortConvLaunch : StateSequences, ShortConvOperands {
  bool operator==(const ShortConvLaunch& other) const = default;
};
cudaError_t EnqueueShortConv(const ShortConvLaunch& launch, Launcher& launcher);

// States: [state_size][channels].
struct SelectiveScanLaunch : StateSequences, SelectiveScanOperands {
  bool operator==(const SelectiveScanLaunch& other) const = default;
};
cudaError_t EnqueueSelectiveScan(const SelectiveScanLaunch& launch, Launcher& launcher);

}  // namespace sluice::cuda
