// Residual streams: hyper-connections that mix and write them, and streams with gates of their own.

#include "kernels/cuda/device/scalar.cuh"
#include "kernels/cuda/device/streams.h"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;

dim3 GridOf(uint32_t cols, uint32_t rows) { return dim3(rows, (cols + kThreads - 1) / kThreads); }

__device__ inline unsigned Column() { return blockIdx.y * kThreads + threadIdx.x; }

// Value `i` of the factors before their functions, of part 0 (pre), 1 (post) or 2 (matrix).
__device__ inline float RawFactor(const StreamMixLaunch& launch, const float* raw, float r, unsigned part,
                                  unsigned i) {
  return fmaf(launch.scale[part], raw[i] * r, launch.base[i]);
}

// Divides cell (i, k) by the sum of its row, or of its column. All threads call it.
__device__ inline void DivideBySums(bool has_cell, unsigned streams, unsigned first, unsigned step,
                                    float epsilon, float* matrix) {
  float value = 0;
  if (has_cell) {
    float sum = 0;
    for (unsigned k = 0; k < streams; ++k) {
      sum = sum + matrix[first + k * step];
    }
    value = matrix[threadIdx.x] / (sum + epsilon);
  }
  __syncthreads();
  if (has_cell) {
    matrix[threadIdx.x] = value;
  }
  __syncthreads();
}

// The matrix of a row, a thread a cell: the softmax of each row, then columns and rows in turn.
__device__ inline void MakeMatrix(const StreamMixLaunch& launch, const float* raw, float r, float* matrix) {
  const unsigned m = launch.streams;
  const bool has_cell = threadIdx.x < m * m;
  const unsigned row = threadIdx.x / m * m;
  const unsigned column = threadIdx.x % m;
  if (has_cell) {
    matrix[threadIdx.x] = RawFactor(launch, raw, r, 2, 2 * m + threadIdx.x);
  }
  __syncthreads();
  float e = 0;
  if (has_cell) {
    float largest = matrix[row];
    for (unsigned k = 1; k < m; ++k) {
      largest = largest < matrix[row + k] ? matrix[row + k] : largest;
    }
    e = Exp(matrix[threadIdx.x] - largest);
  }
  __syncthreads();
  if (has_cell) {
    matrix[threadIdx.x] = e;
  }
  __syncthreads();
  float sum = 0;
  for (unsigned k = 0; has_cell && k < m; ++k) {
    sum = sum + matrix[row + k];
  }
  __syncthreads();
  if (has_cell) {
    matrix[threadIdx.x] = e / sum + launch.epsilon;
  }
  __syncthreads();
  DivideBySums(has_cell, m, column, m, launch.epsilon, matrix);
  for (unsigned i = 1; i < launch.iterations; ++i) {
    DivideBySums(has_cell, m, row, 1, launch.epsilon, matrix);
    DivideBySums(has_cell, m, column, m, launch.epsilon, matrix);
  }
}

// A block a row: warp 0 makes the sum of squares, lane l over the columns l mod 32 ascending, 128
// neighbouring bytes a load; then a thread a factor. Bytes: the streams once. Bound: latency of the sum and
// of the matrix's divisions.
__global__ void __launch_bounds__(kThreads) StreamFactorsKernel(StreamMixLaunch launch) {
  __shared__ float matrix[kMaxDeviceStreams * kMaxDeviceStreams];
  __shared__ float shared_r;
  const unsigned t = blockIdx.x;
  const unsigned m = launch.streams;
  const unsigned cols = m * launch.hidden;
  if (threadIdx.x < kLanes) {
    const float* const x = launch.x.base + t * launch.x.stride;
    float squares = 0;
#pragma unroll 8
    for (unsigned k = threadIdx.x; k < cols; k += kLanes) {
      squares = fmaf(x[k], x[k], squares);
    }
    squares = WarpTreeSum(squares);
    if (threadIdx.x == 0) {
      shared_r = 1.0f / sqrtf(squares / static_cast<float>(cols) + launch.norm_epsilon);
    }
  }
  __syncthreads();
  const float* const raw = launch.raw.base + t * launch.raw.stride;
  const float r = shared_r;
  if (threadIdx.x < m) {
    launch.pre[t * m + threadIdx.x] = Sigmoid(RawFactor(launch, raw, r, 0, threadIdx.x)) + launch.epsilon;
  }
  if (launch.iterations == 0) {
    return;
  }
  float* const factors = launch.factors.base + t * launch.factors.stride;
  if (threadIdx.x < m) {
    factors[threadIdx.x] = 2.0f * Sigmoid(RawFactor(launch, raw, r, 1, m + threadIdx.x));
  }
  MakeMatrix(launch, raw, r, matrix);
  if (threadIdx.x < m * m) {
    factors[m + threadIdx.x] = matrix[threadIdx.x];
  }
}

// A thread a column of y, streams ascending; 128 neighbouring bytes a warp. Bytes: the streams read, y
// written. Bound: memory.
__global__ void __launch_bounds__(kThreads) StreamMixKernel(StreamMixLaunch launch) {
  const unsigned c = Column();
  if (c >= launch.hidden) {
    return;
  }
  const float* const x = launch.x.base + blockIdx.x * launch.x.stride + c;
  const float* const pre = launch.pre + blockIdx.x * launch.streams;
  float sum = 0;
  for (unsigned i = 0; i < launch.streams; ++i) {
    sum = fmaf(x[i * launch.hidden], pre[i], sum);
  }
  launch.y.base[blockIdx.x * launch.y.stride + c] = sum;
}

// A thread a column of all streams, which it has read before it writes one. Bytes: the streams read and
// written, y read. Bound: memory.
__global__ void __launch_bounds__(kThreads) StreamWriteKernel(StreamWriteCall call) {
  const unsigned c = Column();
  if (c >= call.hidden) {
    return;
  }
  const unsigned m = call.streams;
  const float* const from = call.x.base + blockIdx.x * call.x.stride + c;
  const float* const factors = call.factors.base + blockIdx.x * call.factors.stride;
  const float y = call.y.base[blockIdx.x * call.y.stride + c];
  float* const out = call.out.base + blockIdx.x * call.out.stride + c;
  float x[kMaxDeviceStreams];
#pragma unroll
  for (unsigned i = 0; i < kMaxDeviceStreams; ++i) {
    x[i] = i < m ? from[i * call.hidden] : 0.0f;
  }
  for (unsigned j = 0; j < m; ++j) {
    float sum = 0;
#pragma unroll
    for (unsigned i = 0; i < kMaxDeviceStreams; ++i) {
      if (i < m) {
        sum = fmaf(x[i], factors[m + i * m + j], sum);
      }
    }
    out[j * call.hidden] = fmaf(y, factors[j], sum);
  }
}

// A thread a column of y, streams ascending. Bytes: streams and gates read, y written. Bound: memory.
__global__ void __launch_bounds__(kThreads) StreamMeanKernel(StreamMeanCall call) {
  const unsigned c = Column();
  if (c >= call.hidden) {
    return;
  }
  const float* const x = call.x.base + blockIdx.x * call.x.stride + c;
  const float* const gates = call.gate.base + blockIdx.x * call.gate.stride + c;
  float sum = 0;
  for (unsigned i = 0; i < call.streams; ++i) {
    sum = sum + x[i * call.hidden] * Sigmoid(gates[i * call.hidden]);
  }
  call.y.base[blockIdx.x * call.y.stride + c] = 1.0f / static_cast<float>(call.streams) * sum;
}

// A thread a column of all streams. Bytes: the streams read and written, y read. Bound: memory.
__global__ void __launch_bounds__(kThreads) StreamAddKernel(StreamAddCall call) {
  const unsigned c = Column();
  if (c >= call.hidden) {
    return;
  }
  const unsigned t = blockIdx.x;
  const float y = call.y.base[t * call.y.stride + c];
  const float* const x = call.x.base == nullptr ? nullptr : call.x.base + t * call.x.stride + c;
  float* const out = call.out.base + t * call.out.stride + c;
  for (unsigned i = 0; i < call.streams; ++i) {
    const float factor = call.scale * Sigmoid(call.gate.base[t * call.gate.stride + i]);
    out[i * call.hidden] = fmaf(y, factor, x == nullptr ? 0.0f : x[i * call.hidden]);
  }
}

// A warp a stream of a row. Bytes: streams and keys read. Bound: memory for a prompt, latency for a decode
// step.
__global__ void __launch_bounds__(kLanes) StreamMatchKernel(StreamMatchCall call) {
  const unsigned i = blockIdx.x;
  const unsigned t = blockIdx.y;
  const float* const x = call.x.base + t * call.x.stride + uint64_t{i} * call.hidden;
  const float* const y = call.y.base + t * call.y.stride + uint64_t{i} * call.hidden;
  float dot = 0;
#pragma unroll 8
  for (unsigned c = threadIdx.x; c < call.hidden; c += kLanes) {
    dot = fmaf(x[c], y[c], dot);
  }
  const float a = WarpTreeSum(dot) * call.scale;
  if (threadIdx.x == 0) {
    const float size = fabsf(a) < 1e-6f ? 1e-6f : fabsf(a);
    const float root = sqrtf(size);
    call.out.base[t * call.out.stride + i] = a > 0 ? root : a < 0 ? -root : a;
  }
}

}  // namespace

cudaError_t EnqueueStreamMix(const StreamMixLaunch& launch, Launcher& launcher) {
  const cudaError_t error = launcher.Launch(StreamFactorsKernel, launch.tokens, kThreads, 0, launch);
  return error != cudaSuccess
             ? error
             : launcher.Launch(StreamMixKernel, GridOf(launch.hidden, launch.tokens), kThreads, 0, launch);
}

cudaError_t EnqueueStreamWrite(const StreamWriteCall& call, Launcher& launcher) {
  return launcher.Launch(StreamWriteKernel, GridOf(call.hidden, call.tokens), kThreads, 0, call);
}

cudaError_t EnqueueStreamMean(const StreamMeanCall& call, Launcher& launcher) {
  return launcher.Launch(StreamMeanKernel, GridOf(call.hidden, call.tokens), kThreads, 0, call);
}

cudaError_t EnqueueStreamAdd(const StreamAddCall& call, Launcher& launcher) {
  return launcher.Launch(StreamAddKernel, GridOf(call.hidden, call.tokens), kThreads, 0, call);
}

cudaError_t EnqueueStreamMatch(const StreamMatchCall& call, Launcher& launcher) {
  return launcher.Launch(StreamMatchKernel, dim3(call.streams, call.tokens), kLanes, 0, call);
}

}  // namespace sluice::cuda
