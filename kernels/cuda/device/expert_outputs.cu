#include <algorithm>

#include "kernels/cuda/device/dots.cuh"
#include "kernels/cuda/device/experts.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / kLanes;
constexpr unsigned kOutputs =
    32;  // of a block: four quantized rows a warp, or eight plain ones of four warps

static_assert(kOutputs == kDots * kWarps);

// Rounds a pair's coefficients for the rows of down, behind them in the workspace. A block a pair. Bytes: the
// coefficients once. Bound: latency.
__global__ void __launch_bounds__(kThreads) RoundCoefficientsKernel(ExpertsLaunch launch) {
  const PairOfBlock block = PairOf(launch);
  if (block.expert == nullptr || IsPlain(block.expert->down.encoding)) {
    return;
  }
  const DeviceMatrix down = block.expert->down;
  const unsigned cols = down.cols;
  const float* const c = reinterpret_cast<const float*>(block.blocks);
  RoundRow(RoundedRow<false>{block.blocks + launch.rounded_at, cols, down.group}, [=](unsigned k) {
    if (k + 8 <= cols) {
      return EightOf(c + k);
    }
    float values[8];
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
      values[i] = k + i < cols ? c[k + i] : 0.0f;
    }
    return EightValues{make_float4(values[0], values[1], values[2], values[3]),
                       make_float4(values[4], values[5], values[6], values[7])};
  });
}

// Section 3's y of one output.
__device__ inline void WriteOutput(const ExpertsLaunch& launch, const PairOfBlock& block, unsigned output,
                                   float dot) {
  const float* const bias = block.expert->down_bias;
  launch.y[block.pair.slot * launch.y_stride + output] = bias == nullptr ? dot : dot + bias[output];
}

__device__ inline void QuantizedOutputs(const ExpertsLaunch& launch, const PairOfBlock& block,
                                        uint8_t* shared) {
  const DeviceMatrix m = block.expert->down;
  StageRounded(block.blocks + launch.rounded_at, 0, 1, 0, m.cols, m.group, shared);
  __pipeline_wait_prior(0);
  __syncthreads();
  StagedRows x;
  x.base = shared;
  const unsigned warp = threadIdx.x / kLanes;
  const unsigned first = blockIdx.x * kOutputs + warp * kDots;
  if (first >= m.rows) {
    return;
  }
  const uint8_t* rows[kDots];
#pragma unroll
  for (unsigned r = 0; r < kDots; ++r) {
    rows[r] = RowAt(m, min(first + r, m.rows - 1));
  }
  int* const sums = reinterpret_cast<int*>(shared + StagedBytes(m.cols, m.group)) + warp * launch.output_sums;
  const float dot = QuantizedDots<kDots, 1>(m, rows, x, sums);
  const unsigned output = first + threadIdx.x % kLanes / kDotLanes;
  if (threadIdx.x % kDotLanes == 0 && output < m.rows) {
    WriteOutput(launch, block, output, dot);
  }
}

__device__ inline void PlainOutputs(const ExpertsLaunch& launch, const PairOfBlock& block) {
  if (threadIdx.x / 4 >= kOutputs) {
    return;
  }
  const DeviceMatrix m = block.expert->down;
  const unsigned output = blockIdx.x * kOutputs + threadIdx.x / 4;
  const bool inside = output < m.rows;
  const float* const x[1] = {reinterpret_cast<const float*>(block.blocks)};
  float dot[1];
  PlainDots<1>(m, inside ? RowAt(m, output) : nullptr, x, dot);
  if (inside && threadIdx.x % 4 == 0) {
    WriteOutput(launch, block, output, dot[0]);
  }
}

// A block: 32 outputs of one pair, with its rounded coefficients in shared memory; dots.cuh says how a warp
// makes dots. The first block of a pair counts its neurons. Bytes: the rows of down once for each pair.
// Bound: memory.
__global__ void __launch_bounds__(kThreads, 2) OutputsKernel(ExpertsLaunch launch) {
  extern __shared__ int4 shared[];
  const PairOfBlock block = PairOf(launch);
  if (block.expert == nullptr || blockIdx.x * kOutputs >= block.expert->down.rows) {
    return;
  }
  const DeviceExpert& e = *block.expert;
  if (launch.active != nullptr && blockIdx.x == 0 && threadIdx.x < kLanes) {
    const unsigned blocks = BlocksOf(e.neuron_end);
    const unsigned* const counted = CountsOf(launch, block.blocks);
    int sum = 0;
    for (unsigned b = threadIdx.x; b < blocks; b += kLanes) {
      sum += static_cast<int>(counted[b]);
    }
    sum = WarpSum(sum);
    if (threadIdx.x == 0) {
      launch.active[block.pair.slot] = static_cast<unsigned>(sum);
    }
  }
  if (IsPlain(e.down.encoding)) {
    PlainOutputs(launch, block);
  } else {
    QuantizedOutputs(launch, block, reinterpret_cast<uint8_t*>(shared));
  }
}

}  // namespace

void WidenOutputs(const DeviceMatrix& down, ExpertsLaunch* launch) {
  launch->max_outputs = std::max(launch->max_outputs, down.rows);
  if (down.encoding <= Encoding::kF32) {
    return;
  }
  launch->output_sums = std::max(launch->output_sums, DotSums(down.encoding, down.group));
  launch->staged_bytes = std::max(launch->staged_bytes, StagedBytes(down.cols, down.group));
  launch->rounded_bytes = std::max(launch->rounded_bytes, RoundedStride(down.cols, down.group));
}

uint64_t OutputsShared(const ExpertsLaunch& launch) {
  return launch.staged_bytes + uint64_t{4} * kWarps * launch.output_sums;
}

cudaError_t EnqueueOutputs(const ExpertsLaunch& launch, Launcher& launcher) {
  if (launch.rounded_bytes > 0) {
    const dim3 pairs(1, launch.pair_count);
    const cudaError_t error = launcher.Launch(RoundCoefficientsKernel, pairs, kThreads, 0, launch);
    if (error != cudaSuccess) {
      return error;
    }
  }
  const dim3 grid((launch.max_outputs + kOutputs - 1) / kOutputs, launch.pair_count);
  return launcher.Launch(OutputsKernel, grid, kThreads, OutputsShared(launch), launch);
}

}  // namespace sluice::cuda
