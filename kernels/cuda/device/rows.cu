#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/device/row_kernels.h"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;

dim3 GridOf(uint32_t cols, uint32_t rows) { return dim3(rows, (cols + kThreads - 1) / kThreads); }

__device__ inline unsigned Column() { return blockIdx.y * kThreads + threadIdx.x; }

// A thread a value: 2 bytes of codes (for 16 neighbours, 32 bytes) or the value itself. Bytes: a row and its
// values. Bound: latency.
__global__ void __launch_bounds__(kThreads) EmbedKernel(EmbedLaunch launch) {
  const unsigned k = Column();
  if (k >= launch.table.cols) {
    return;
  }
  const DeviceMatrix& m = launch.table;
  const uint8_t* const row = m.base + static_cast<uint64_t>(launch.ids[blockIdx.x]) * m.stride;
  launch.y.At(blockIdx.x, k) = launch.scale * ValueAt(m, row, k);
}

// A thread a value, 128 neighbouring bytes a warp. Bytes: at most 8 read and 4 written a value. Bound:
// memory.
__global__ void __launch_bounds__(kThreads) OutputGateKernel(OutputGateCall call) {
  const unsigned k = Column();
  if (k < call.cols) {
    float* const x = call.x.Row(blockIdx.x) + k;
    const float gate = call.gate.At(blockIdx.x, k / call.width);
    *x = *x * (call.activation == GateActivation::kSoftplus ? Softplus(gate) : Sigmoid(gate));
  }
}

// As above: 4 bytes read and 4 written a value (section 4, soft cap).
__global__ void __launch_bounds__(kThreads) SoftCapKernel(SoftCapCall call) {
  const unsigned k = Column();
  if (k < call.cols) {
    float* const x = call.x.Row(blockIdx.x) + k;
    *x = call.cap * fmaf(2.0f, Sigmoid(*x * (2.0f / call.cap)), -1.0f);
  }
}

// As above: 4 bytes read and 4 written a value.
__global__ void __launch_bounds__(kThreads) ScaleRowsKernel(ScaleRowsCall call) {
  const unsigned k = Column();
  if (k < call.cols) {
    const unsigned row = blockIdx.x;
    call.y.At(row, k) = (call.weights == nullptr ? 1.0f : call.weights[row]) * call.x.At(row / call.ranks, k);
  }
}

// A thread a value of the sum, ranks ascending. Bytes: 4 a rank, 4 of the residual, 4 written. Bound: memory.
__global__ void __launch_bounds__(kThreads) CombineKernel(CombineCall call) {
  const unsigned k = Column();
  if (k >= call.hidden) {
    return;
  }
  const unsigned t = blockIdx.x;
  float sum = 0;
  for (unsigned r = 0; r < call.top_k; ++r) {
    const uint64_t slot = uint64_t{t} * call.top_k + r;
    const float weight = call.weights == nullptr ? 1.0f : call.weights[slot];
    if (weight != 0) {
      sum = fmaf(weight, call.y.At(slot, k), sum);
    }
  }
  float out = call.scale * (sum + 0.0f);
  if (call.residual.base != nullptr) {
    out = call.residual.At(t, k) + out;
  }
  call.out.At(t, k) = call.gain == nullptr ? out : *call.gain * out;
}

}  // namespace

cudaError_t EnqueueEmbed(const EmbedLaunch& launch, Launcher& launcher) {
  return launcher.Launch(EmbedKernel, GridOf(launch.table.cols, launch.tokens), kThreads, 0, launch);
}

cudaError_t EnqueueOutputGate(const OutputGateCall& call, Launcher& launcher) {
  return launcher.Launch(OutputGateKernel, GridOf(call.cols, call.tokens), kThreads, 0, call);
}

cudaError_t EnqueueSoftCap(const SoftCapCall& call, Launcher& launcher) {
  return launcher.Launch(SoftCapKernel, GridOf(call.cols, call.tokens), kThreads, 0, call);
}

cudaError_t EnqueueScaleRows(const ScaleRowsCall& call, Launcher& launcher) {
  return launcher.Launch(ScaleRowsKernel, GridOf(call.cols, call.tokens * call.ranks), kThreads, 0, call);
}

cudaError_t EnqueueCombine(const CombineCall& call, Launcher& launcher) {
  return launcher.Launch(CombineKernel, GridOf(call.hidden, call.tokens), kThreads, 0, call);
}

}  // namespace sluice::cuda
