// Launches over residual streams (ARITHMETIC.md section 11).
//
// Thread safety: pure but for the work they enqueue.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/stream_operands.h"

namespace sluice::cuda {

inline constexpr uint32_t kMaxDeviceStreams = 16;

struct StreamMixLaunch : StreamMixCall {
  float* pre = nullptr;  // workspace [tokens][streams]
  bool operator==(const StreamMixLaunch& other) const = default;
};
// Two launches.
cudaError_t EnqueueStreamMix(const StreamMixLaunch& launch, Launcher& launcher);
cudaError_t EnqueueStreamWrite(const StreamWriteCall& call, Launcher& launcher);
cudaError_t EnqueueStreamMean(const StreamMeanCall& call, Launcher& launcher);
cudaError_t EnqueueStreamAdd(const StreamAddCall& call, Launcher& launcher);
cudaError_t EnqueueStreamMatch(const StreamMatchCall& call, Launcher& launcher);

}  // namespace sluice::cuda
