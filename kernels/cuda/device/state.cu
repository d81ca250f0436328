// The operations with a recurrent state: the gated delta rule, Mamba-2, the short convolution and Mamba-1.
// Addresses of rows are written out: by the operands' Row() and At() ptxas needs more registers.

#include "kernels/cuda/device/scalar.cuh"
#include "kernels/cuda/device/state.h"

namespace sluice::cuda {

// Causal convolutions over the rows of a sequence and those that its state keeps.

// Input of column c of a convolution that reaches `reach` rows back, of `cols` columns: input(t) for a row of
// the batch, the kept rows before the sequence's first one, zeros before those.
template <typename Input>
__device__ inline float ConvInput(const StateSequence& sequence, int row, unsigned reach, unsigned cols,
                                  unsigned c, Input input) {
  if (row >= 0) {
    return input(sequence.first_row + static_cast<unsigned>(row));
  }
  const unsigned kept = static_cast<unsigned>(row + static_cast<int>(reach));
  return sequence.from == nullptr ? 0.0f : sequence.from[kept * cols + c];
}

// The sum of row `row` for column c over every dilation-th row, oldest row first, from `bias`; weight(j): of
// its j-th row.
template <typename Input, typename Weight>
__device__ inline float Convolve(const StateSequence& sequence, unsigned row, unsigned kernel_size,
                                 unsigned dilation, unsigned cols, unsigned c, float bias, Input input,
                                 Weight weight) {
  const unsigned reach = (kernel_size - 1) * dilation;
  float sum = bias;
  for (unsigned j = 0; j < kernel_size; ++j) {
    const int at = static_cast<int>(row + j * dilation) - static_cast<int>(reach);
    sum = fmaf(ConvInput(sequence, at, reach, cols, c, input), weight(j), sum);
  }
  return sum + 0.0f;
}

// Keeps the last `reach` rows of the sequence for the next step.
template <typename Input>
__device__ inline void KeepInputs(const StateSequence& sequence, unsigned reach, unsigned cols, unsigned c,
                                  Input input) {
  for (unsigned j = 0; j < reach; ++j) {
    const int at = static_cast<int>(sequence.rows + j) - static_cast<int>(reach);
    sequence.to[j * cols + c] = ConvInput(sequence, at, reach, cols, c, input);
  }
}

namespace {

constexpr unsigned kConvThreads = 256;
constexpr unsigned kMaxThreads = 1024;

// A thread a column of a row (128 neighbouring bytes a warp); the row behind the last one writes the inputs
// that the next step needs. Bytes: conv_kernel inputs, from the cache but one, and as many weights a value.
// Bound: memory.
__global__ void __launch_bounds__(kConvThreads) DeltaConvKernel(DeltaLaunch launch) {
  const unsigned cols = launch.ConvCols();
  const unsigned c = blockIdx.x * kConvThreads + threadIdx.x;
  const StateSequence sequence = launch.sequences[blockIdx.z];
  const unsigned row = blockIdx.y;
  if (c >= cols || row > sequence.rows) {
    return;
  }
  const auto input = [&](unsigned t) { return launch.qkv.base[t * launch.qkv.stride + c]; };
  if (row == sequence.rows) {
    KeepInputs(sequence, launch.shape.conv_kernel - 1, cols, c, input);
    return;
  }
  const float sum = Convolve(sequence, row, launch.shape.conv_kernel, 1, cols, c, 0.0f, input,
                             [&](unsigned j) { return launch.conv.base[c * launch.conv.stride + j]; });
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

// The factor of row i of a head's state (section 9).
__device__ inline float DecayOf(const DeltaLaunch& launch, unsigned t, unsigned head, unsigned i) {
  const unsigned at = head * launch.head_decays + i;
  const float x = launch.decay.base[t * launch.decay.stride + at] + launch.dt_bias[at];
  const float a = Exp(launch.a_log[head]);
  return Exp(launch.shape.decay_floor < 0 ? launch.shape.decay_floor * Sigmoid(a * x) : -(a * Softplus(x)));
}

// A block a value head of a sequence, a thread a column of its state, rows of the sequence one after another.
// Each thread goes down its column twice a token: it decays and remembers, then corrects and reads; 128
// neighbouring bytes a warp. Bytes: a head's state twice read (the second time from the cache) and once
// written a token. Bound: memory for a decode step, latency of the recurrence for a prompt.
__global__ void DeltaStepKernel(DeltaLaunch launch) {
  extern __shared__ float shared[];  // q and k [key_dim], o [value_dim], decays [head_decays]
  __shared__ float gates[2];         // beta, the norm's factor
  const unsigned key_dim = launch.shape.key_dim;
  const unsigned value_dim = launch.shape.value_dim;
  float* const q = shared;
  float* const k = q + key_dim;
  float* const o = k + key_dim;
  float* const decays = o + value_dim;
  const unsigned decay_step = launch.head_decays > 1 ? 1 : 0;
  const StateSequence sequence = launch.sequences[blockIdx.y];
  const unsigned head = blockIdx.x;
  const unsigned key_head = head / (launch.shape.value_heads / launch.shape.key_heads);
  const unsigned cols = launch.ConvCols();
  const uint64_t first = uint64_t{launch.shape.conv_kernel - 1} * cols + uint64_t{head} * key_dim * value_dim;
  const unsigned j = threadIdx.x;
  const float* s = sequence.from == nullptr ? nullptr : sequence.from + first;
  float* const to = sequence.to + first;
  for (unsigned row = 0; row < sequence.rows; ++row) {
    const unsigned t = sequence.first_row + row;
    const float* const in = launch.convolved + uint64_t{t} * cols;
    for (unsigned i = threadIdx.x; i < key_dim; i += blockDim.x) {
      q[i] = in[key_head * key_dim + i];
      k[i] = in[(launch.shape.key_heads + key_head) * key_dim + i];
    }
    for (unsigned i = threadIdx.x; i < launch.head_decays; i += blockDim.x) {
      decays[i] = DecayOf(launch, t, head, i);
    }
    __syncthreads();
    if (threadIdx.x < kLanes) {
      L2Norm(q, key_dim, launch.q_scale, true);
      L2Norm(k, key_dim, 0, false);
      if (threadIdx.x == 0) {
        gates[0] = Sigmoid(launch.beta.base[t * launch.beta.stride + head]);
      }
    }
    __syncthreads();
    if (j < value_dim) {
      float memory = 0;
      for (unsigned i = 0; i < key_dim; ++i) {
        const float decay = decays[i * decay_step];
        const float cell = s == nullptr ? 0.0f * decay : s[uint64_t{i} * value_dim + j] * decay;
        memory = fmaf(cell, k[i], memory);
      }
      const float value = in[2 * launch.shape.key_heads * key_dim + head * value_dim + j];
      const float delta = (value - (memory + 0.0f)) * gates[0];
      float sum = 0;
      for (unsigned i = 0; i < key_dim; ++i) {
        const float decay = decays[i * decay_step];
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
        gates[1] = 1.0f / sqrtf(squares / static_cast<float>(value_dim) + launch.norm.epsilon);
      }
    }
    __syncthreads();
    if (j < value_dim) {
      const float z = launch.z.base[t * launch.z.stride + head * value_dim + j];
      launch.out.base[t * launch.out.stride + head * value_dim + j] =
          o[j] * gates[1] * launch.norm.weight[j] * (launch.shape.sigmoid_gate ? Sigmoid(z) : Silu(z));
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t EnqueueDelta(const DeltaLaunch& launch, Launcher& launcher) {
  const unsigned threads = (launch.shape.value_dim + kLanes - 1) / kLanes * kLanes;
  if (threads > kMaxThreads) {
    return cudaErrorInvalidValue;
  }
  const unsigned cols = launch.ConvCols();
  const dim3 grid((cols + kConvThreads - 1) / kConvThreads, launch.max_rows + 1, launch.count);
  const cudaError_t error = launcher.Launch(DeltaConvKernel, grid, kConvThreads, 0, launch);
  if (error != cudaSuccess) {
    return error;
  }
  const unsigned shared = 4 * (2 * launch.shape.key_dim + launch.shape.value_dim + launch.head_decays);
  return launcher.Launch(DeltaStepKernel, dim3(launch.shape.value_heads, launch.count), threads, shared,
                         launch);
}

namespace {

constexpr unsigned kThreads = 256;

dim3 ConvGrid(unsigned cols, const StateSequences& sequences) {
  return dim3((cols + kThreads - 1) / kThreads, sequences.max_rows + 1, sequences.count);
}

// A thread a column of a row (128 neighbouring bytes a warp); the row behind the last one keeps the inputs
// that the next step needs. Bytes: conv_kernel inputs, from the cache but one, and as many weights a value.
// Bound: memory.
__global__ void __launch_bounds__(kThreads) MambaConvKernel(MambaLaunch launch) {
  const unsigned cols = launch.ConvCols();
  const unsigned c = blockIdx.x * kThreads + threadIdx.x;
  const StateSequence sequence = launch.sequences[blockIdx.z];
  const unsigned row = blockIdx.y;
  if (c >= cols || row > sequence.rows) {
    return;
  }
  const auto input = [&](unsigned t) { return launch.xbc.base[t * launch.xbc.stride + c]; };
  if (row == sequence.rows) {
    KeepInputs(sequence, launch.shape.conv_kernel - 1, cols, c, input);
    return;
  }
  const float sum = Convolve(sequence, row, launch.shape.conv_kernel, 1, cols, c, launch.conv_bias[c], input,
                             [&](unsigned j) { return launch.conv.base[j * launch.conv.stride + c]; });
  launch.convolved[uint64_t{sequence.first_row + row} * cols + c] = Silu(sum);
}

// The step's length and what a state keeps of itself, of one head and token.
struct Step {
  float length;
  float decay;
};
__device__ inline Step StepOf(const MambaLaunch& launch, unsigned t, unsigned head) {
  float s = Softplus(launch.dt.base[t * launch.dt.stride + head] + launch.dt_bias[head]);
  s = s < launch.shape.min_step ? launch.shape.min_step : s;
  s = launch.shape.max_step > 0 && launch.shape.max_step < s ? launch.shape.max_step : s;
  return {s, Exp(-(s * Exp(launch.a_log[head])))};
}

// A block a head of a sequence, a thread a column of its state, rows of the sequence one after another: each
// thread goes down its column once a token. 128 neighbouring bytes a warp. Bytes: a head's state once read
// and once written a token. Bound: memory for a decode step, latency of the recurrence for a prompt.
__global__ void MambaStepKernel(MambaLaunch launch) {
  extern __shared__ float shared[];  // B and C [state]
  __shared__ Step step;
  const unsigned states = launch.shape.state;
  const unsigned dim = launch.shape.head_dim;
  float* const b = shared;
  float* const c = b + states;
  const StateSequence sequence = launch.sequences[blockIdx.y];
  const unsigned head = blockIdx.x;
  const unsigned group = head / (launch.shape.heads / launch.shape.groups);
  const unsigned values = launch.shape.heads * dim;
  const unsigned cols = launch.ConvCols();
  const uint64_t first = uint64_t{launch.shape.conv_kernel - 1} * cols + uint64_t{head} * states * dim;
  const unsigned p = threadIdx.x;
  const float* from = sequence.from == nullptr ? nullptr : sequence.from + first;
  float* const to = sequence.to + first;
  for (unsigned row = 0; row < sequence.rows; ++row) {
    const unsigned t = sequence.first_row + row;
    const float* const in = launch.convolved + uint64_t{t} * cols;
    for (unsigned n = threadIdx.x; n < states; n += blockDim.x) {
      b[n] = in[values + group * states + n];
      c[n] = in[values + (launch.shape.groups + group) * states + n];
    }
    if (threadIdx.x == 0) {
      step = StepOf(launch, t, head);
    }
    __syncthreads();
    if (p < dim) {
      const float x = in[head * dim + p];
      const float u = step.length * x;
      const float decay = step.decay;
      float y = 0;
      for (unsigned n = 0; n < states; ++n) {
        const uint64_t at = uint64_t{n} * dim + p;
        const float cell = fmaf(b[n], u, (from == nullptr ? 0.0f : from[at]) * decay);
        to[at] = cell;
        y = fmaf(cell, c[n], y);
      }
      const unsigned place = head * dim + p;
      launch.out.base[t * launch.out.stride + place] =
          fmaf(launch.skip[head], x, y + 0.0f) * Silu(launch.z.base[t * launch.z.stride + place]);
    }
    from = to;
    __syncthreads();
  }
}

// A block a row and group of heads: warp 0 makes the sum, all threads scale. 128 neighbouring bytes a warp.
// Bytes: the row read twice (the second time from the cache) and written. Bound: latency.
__global__ void __launch_bounds__(kThreads) MambaNormKernel(MambaLaunch launch) {
  __shared__ float factor;
  const StateSequence sequence = launch.sequences[blockIdx.z];
  if (blockIdx.y >= sequence.rows) {
    return;
  }
  const unsigned width = launch.shape.heads * launch.shape.head_dim / launch.shape.groups;
  const unsigned first = blockIdx.x * width;
  float* const row = launch.out.base + (sequence.first_row + blockIdx.y) * launch.out.stride + first;
  if (threadIdx.x < kLanes) {
    float squares = 0;
    for (unsigned i = threadIdx.x; i < width; i += kLanes) {
      squares = fmaf(row[i], row[i], squares);
    }
    squares = WarpTreeSum(squares);
    if (threadIdx.x == 0) {
      factor = 1.0f / sqrtf(squares / static_cast<float>(width) + launch.norm.epsilon);
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < width; i += kThreads) {
    row[i] = row[i] * factor * launch.norm.weight[first + i];
  }
}

// As MambaConvKernel, over b * x, and times c. Bytes: 12 read and 4 written a value, `kernel` weights from
// the cache. Bound: memory.
__global__ void __launch_bounds__(kThreads) ShortConvKernel(ShortConvLaunch launch) {
  const unsigned width = launch.shape.width;
  const unsigned c = blockIdx.x * kThreads + threadIdx.x;
  const StateSequence sequence = launch.sequences[blockIdx.z];
  const unsigned row = blockIdx.y;
  if (c >= width || row > sequence.rows) {
    return;
  }
  const auto input = [&](unsigned t) {
    const float* const from = launch.bcx.base + t * launch.bcx.stride + c;
    return launch.gated ? from[0] * from[2 * uint64_t{width}] : from[0];
  };
  if (row == sequence.rows) {
    KeepInputs(sequence, launch.Reach(), width, c, input);
    return;
  }
  const unsigned t = sequence.first_row + row;
  const float bias = launch.bias == nullptr ? 0.0f : launch.bias[c];
  const float sum = Convolve(sequence, row, launch.shape.kernel, launch.dilation, width, c, bias, input,
                             [&](unsigned j) { return launch.conv.base[j * launch.conv.stride + c]; });
  launch.out.base[t * launch.out.stride + c] =
      launch.gated ? launch.bcx.base[t * launch.bcx.stride + width + c] * sum : Silu(sum);
}

// A thread a channel of a sequence, rows of the sequence one after another: each thread goes down its column
// of the state once a token. 128 neighbouring bytes a warp. Bytes: a state once read and once written a
// token, and a_log. Bound: memory for a decode step, latency of the recurrence for a prompt.
__global__ void __launch_bounds__(kThreads) SelectiveScanKernel(SelectiveScanLaunch launch) {
  const unsigned c = blockIdx.x * kThreads + threadIdx.x;
  const StateSequence sequence = launch.sequences[blockIdx.y];
  if (c >= launch.channels) {
    return;
  }
  const float* from = sequence.from;
  for (unsigned row = 0; row < sequence.rows; ++row) {
    const unsigned t = sequence.first_row + row;
    const float x = launch.x.base[t * launch.x.stride + c];
    const float step = Softplus(launch.step.base[t * launch.step.stride + c]);
    const float input = step * x;
    float y = 0;
    for (unsigned n = 0; n < launch.state_size; ++n) {
      const uint64_t at = uint64_t{n} * launch.channels + c;
      const float decay = Exp(-(step * Exp(launch.a_log.base[n * launch.a_log.stride + c])));
      const float cell =
          fmaf(launch.b.base[t * launch.b.stride + n], input, (from == nullptr ? 0.0f : from[at]) * decay);
      sequence.to[at] = cell;
      y = fmaf(cell, launch.c.base[t * launch.c.stride + n], y);
    }
    launch.out.base[t * launch.out.stride + c] =
        fmaf(launch.skip[c], x, y + 0.0f) * Silu(launch.z.base[t * launch.z.stride + c]);
    from = sequence.to;
  }
}

}  // namespace

cudaError_t EnqueueMamba(const MambaLaunch& launch, Launcher& launcher) {
  const unsigned threads = (launch.shape.head_dim + kLanes - 1) / kLanes * kLanes;
  if (threads > kMaxThreads) {
    return cudaErrorInvalidValue;
  }
  cudaError_t error =
      launcher.Launch(MambaConvKernel, ConvGrid(launch.ConvCols(), launch), kThreads, 0, launch);
  if (error != cudaSuccess) {
    return error;
  }
  error = launcher.Launch(MambaStepKernel, dim3(launch.shape.heads, launch.count), threads,
                          8 * launch.shape.state, launch);
  if (error != cudaSuccess) {
    return error;
  }
  return launcher.Launch(MambaNormKernel, dim3(launch.shape.groups, launch.max_rows, launch.count), kThreads,
                         0, launch);
}

cudaError_t EnqueueShortConv(const ShortConvLaunch& launch, Launcher& launcher) {
  return launcher.Launch(ShortConvKernel, ConvGrid(launch.shape.width, launch), kThreads, 0, launch);
}

cudaError_t EnqueueSelectiveScan(const SelectiveScanLaunch& launch, Launcher& launcher) {
  const dim3 grid((launch.channels + kThreads - 1) / kThreads, launch.count);
  return launcher.Launch(SelectiveScanKernel, grid, kThreads, 0, launch);
}

}  // namespace sluice::cuda
