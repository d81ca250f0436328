#include "kernels/cuda/device/convolution.cuh"
#include "kernels/cuda/device/scalar.cuh"
#include "kernels/cuda/device/state.h"
#include "kernels/cuda/device/warp.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kConvThreads = 256;
constexpr unsigned kMaxThreads = 1024;

__device__ inline unsigned ConvCols(const DeltaLaunch& launch) {
  return 2 * launch.key_heads * launch.key_dim + launch.value_heads * launch.value_dim;
}

// A thread a column of a row (128 neighbouring bytes a warp); the row behind the last one writes the inputs
// that the next step needs. Bytes: conv_kernel inputs, from the cache but one, and as many weights a value.
// Bound: memory.
__global__ void __launch_bounds__(kConvThreads) DeltaConvKernel(DeltaLaunch launch) {
  const unsigned cols = ConvCols(launch);
  const unsigned c = blockIdx.x * kConvThreads + threadIdx.x;
  const StateSequence sequence = launch.sequences.sequences[blockIdx.z];
  const unsigned row = blockIdx.y;
  if (c >= cols || row > sequence.rows) {
    return;
  }
  const auto input = [&](unsigned t) { return launch.qkv[t * launch.qkv_stride + c]; };
  if (row == sequence.rows) {
    KeepInputs(sequence, launch.conv_kernel, cols, c, input);
    return;
  }
  const float sum = Convolve(sequence, row, launch.conv_kernel, cols, c, 0.0f, input,
                             [&](unsigned j) { return launch.conv[uint64_t{c} * launch.conv_kernel + j]; });
  launch.convolved[uint64_t{sequence.first_row + row} * cols + c] = Silu(sum);
}

// x / |x| of a head in shared memory, by one warp.
__device__ inline void L2Norm(float* x, unsigned dim, float scale, bool scaled) {
  float sum = 0;
  for (unsigned k = threadIdx.x % kLanes; k < dim; k += kLanes) {
    sum = fmaf(x[k], x[k], sum);
  }
  const float r = 1.0f / sqrtf(WarpTreeSum(sum) + 1e-6f);
  for (unsigned k = threadIdx.x % kLanes; k < dim; k += kLanes) {
    x[k] = scaled ? x[k] * r * scale : x[k] * r;
  }
}

// A block a value head of a sequence, a thread a column of its state, rows of the sequence one after another.
// Each thread goes down its column twice a token: it decays and remembers, then corrects and reads; 128
// neighbouring bytes a warp. Bytes: a head's state twice read (the second time from the cache) and once
// written a token. Bound: memory for a decode step, latency of the recurrence for a prompt.
__global__ void DeltaStepKernel(DeltaLaunch launch) {
  extern __shared__ float shared[];  // q and k [key_dim], o [value_dim]
  __shared__ float gates[3];         // decay, beta, the norm's factor
  const unsigned key_dim = launch.key_dim;
  const unsigned value_dim = launch.value_dim;
  float* const q = shared;
  float* const k = q + key_dim;
  float* const o = k + key_dim;
  const StateSequence sequence = launch.sequences.sequences[blockIdx.y];
  const unsigned head = blockIdx.x;
  const unsigned key_head = head / (launch.value_heads / launch.key_heads);
  const unsigned cols = ConvCols(launch);
  const uint64_t first = uint64_t{launch.conv_kernel - 1} * cols + uint64_t{head} * key_dim * value_dim;
  const unsigned j = threadIdx.x;
  const float* s = sequence.from == nullptr ? nullptr : sequence.from + first;
  float* const to = sequence.to + first;
  for (unsigned row = 0; row < sequence.rows; ++row) {
    const unsigned t = sequence.first_row + row;
    const float* const in = launch.convolved + uint64_t{t} * cols;
    for (unsigned i = threadIdx.x; i < key_dim; i += blockDim.x) {
      q[i] = in[key_head * key_dim + i];
      k[i] = in[(launch.key_heads + key_head) * key_dim + i];
    }
    __syncthreads();
    if (threadIdx.x < kLanes) {
      L2Norm(q, key_dim, launch.q_scale, true);
      L2Norm(k, key_dim, 0, false);
      if (threadIdx.x == 0) {
        const float x = launch.decay[t * launch.decay_stride + head] + launch.dt_bias[head];
        gates[0] = Exp(-(Exp(launch.a_log[head]) * Softplus(x)));
        gates[1] = Sigmoid(launch.beta[t * launch.beta_stride + head]);
      }
    }
    __syncthreads();
    if (j < value_dim) {
      const float decay = gates[0];
      float memory = 0;
      for (unsigned i = 0; i < key_dim; ++i) {
        const float cell = s == nullptr ? 0.0f * decay : s[uint64_t{i} * value_dim + j] * decay;
        memory = fmaf(cell, k[i], memory);
      }
      const float value = in[2 * launch.key_heads * key_dim + head * value_dim + j];
      const float delta = (value - (memory + 0.0f)) * gates[1];
      float sum = 0;
      for (unsigned i = 0; i < key_dim; ++i) {
        float cell = s == nullptr ? 0.0f * decay : s[uint64_t{i} * value_dim + j] * decay;
        cell = fmaf(k[i], delta, cell);
        to[uint64_t{i} * value_dim + j] = cell;
        sum = fmaf(cell, q[i], sum);
      }
      o[j] = sum + 0.0f;
    }
    s = to;
    __syncthreads();
    if (threadIdx.x < kLanes) {
      float squares = 0;
      for (unsigned i = threadIdx.x; i < value_dim; i += kLanes) {
        squares = fmaf(o[i], o[i], squares);
      }
      squares = WarpTreeSum(squares);
      if (threadIdx.x == 0) {
        gates[2] = 1.0f / sqrtf(squares / static_cast<float>(value_dim) + launch.epsilon);
      }
    }
    __syncthreads();
    if (j < value_dim) {
      const float z = launch.z[t * launch.z_stride + head * value_dim + j];
      launch.out[t * launch.out_stride + head * value_dim + j] =
          o[j] * gates[2] * launch.norm_weight[j] * Silu(z);
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t EnqueueDelta(const DeltaLaunch& launch, Launcher& launcher) {
  const unsigned threads = (launch.value_dim + kLanes - 1) / kLanes * kLanes;
  if (threads > kMaxThreads) {
    return cudaErrorInvalidValue;
  }
  const unsigned cols = 2 * launch.key_heads * launch.key_dim + launch.value_heads * launch.value_dim;
  const dim3 grid((cols + kConvThreads - 1) / kConvThreads, launch.sequences.max_rows + 1,
                  launch.sequences.count);
  const cudaError_t error = launcher.Launch(DeltaConvKernel, grid, kConvThreads, 0, launch);
  if (error != cudaSuccess) {
    return error;
  }
  const unsigned shared = 4 * (2 * launch.key_dim + launch.value_dim);
  return launcher.Launch(DeltaStepKernel, dim3(launch.value_heads, launch.sequences.count), threads, shared,
                         launch);
}

}  // namespace sluice::cuda
