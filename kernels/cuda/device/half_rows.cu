#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/device/half_rows.h"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / 32;

// The largest of the threads' values in the block, NaNs left out.
__device__ inline float LargestOfBlock(float value) {
  __shared__ float largest[kWarps];
  value = MaxWithin<16>(value);
  if (threadIdx.x % 32 == 0) {
    largest[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float all = 0;
#pragma unroll
  for (unsigned i = 0; i < kWarps; ++i) {
    all = fmaxf(all, largest[i]);
  }
  return all;
}

// The power of two that takes `largest` to [2^14, 2^15), as its exponent; 0 for zero and for what is not
// finite, at most 126, so that it and its inverse are normal numbers.
__device__ inline int ExponentOf(float largest) {
  const int bits = static_cast<int>(__float_as_uint(largest) >> 23);
  return largest == 0 || bits == 255 ? 0 : min(14 - (bits - 127), 126);
}
__device__ inline float PowerOfTwo(int exponent) {
  return __uint_as_float(static_cast<unsigned>(127 + exponent) << 23);
}

__device__ inline uint16_t HalfBits(float value) { return __half_as_ushort(__float2half_rn(value)); }
// To the nearest, to even; a NaN stays one.
__device__ inline uint16_t Bf16Bits(float value) {
  const unsigned bits = __float_as_uint(value);
  return static_cast<uint16_t>(value != value ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// A block a row: the row's largest value, then the row, read again from the cache. Bytes: 4 (or 1, and 8 a
// group) read and 2 written a value. Bound: memory.
__global__ void __launch_bounds__(kThreads) HalfRowsKernel(HalfRowsLaunch launch) {
  const unsigned row = blockIdx.x;
  uint16_t* const y = launch.y + uint64_t{row} * launch.padded_cols;
  const bool exists = row < launch.rows;
  const unsigned cols = exists ? launch.cols : 0;
  const float* const x = launch.x + (exists ? row * launch.x_stride : 0);
  const uint8_t* const codes = launch.rounded == nullptr || !exists
                                   ? nullptr
                                   : launch.rounded + row * RoundedStride(launch.cols, launch.group);
  const auto value = [=, &launch](unsigned k) {
    if (codes == nullptr) {
      return x[k];
    }
    const float scale = reinterpret_cast<const float*>(codes + RoundedScales(launch.cols))[k / launch.group];
    return static_cast<float>(static_cast<signed char>(codes[k])) * scale;
  };
  int exponent = 0;
  if (!launch.bf16) {
    float largest = 0;
    for (unsigned k = threadIdx.x; k < cols; k += kThreads) {
      largest = fmaxf(largest, fabsf(value(k)));
    }
    exponent = ExponentOf(LargestOfBlock(largest));
  }
  const float factor = PowerOfTwo(exponent);
  for (unsigned k = threadIdx.x; k < launch.padded_cols; k += kThreads) {
    const float v = k < cols ? value(k) : 0.0f;
    y[k] = launch.bf16 ? Bf16Bits(v) : HalfBits(v * factor);
  }
  if (threadIdx.x == 0) {
    launch.scales[row] = PowerOfTwo(-exponent);
  }
}

// A block a row: decoded into shared memory if it is there that long, else decoded twice. Bytes: the encoded
// row read, 2 written a value, which the product finds in the cache. Bound: instructions of decoding.
__global__ void __launch_bounds__(kThreads) ExpandKernel(ExpandLaunch launch) {
  extern __shared__ float decoded[];
  const DeviceMatrix& m = launch.weights;
  const uint8_t* const row = m.base + static_cast<uint64_t>(launch.first + blockIdx.x) * m.stride;
  const bool staged = m.cols <= kStagedColumns;
  float largest = 0;
  for (unsigned k = threadIdx.x; k < m.cols; k += kThreads) {
    const float value = ValueAt(m, row, k);
    largest = fmaxf(largest, fabsf(value));
    if (staged) {
      decoded[k] = value;
    }
  }
  const int exponent = ExponentOf(LargestOfBlock(largest));
  const float factor = PowerOfTwo(exponent);
  uint16_t* const y = launch.y + uint64_t{blockIdx.x} * launch.padded_cols;
  // A thread reads what it has written.
  for (unsigned k = threadIdx.x; k < launch.padded_cols; k += kThreads) {
    y[k] = k >= m.cols ? uint16_t{0} : HalfBits((staged ? decoded[k] : ValueAt(m, row, k)) * factor);
  }
  if (threadIdx.x == 0) {
    launch.scales[blockIdx.x] = PowerOfTwo(-exponent);
  }
}

// A thread a value. Bytes: 4 read from the cache, 4 of the residual, 4 written. Bound: memory.
__global__ void __launch_bounds__(kThreads) FinishKernel(FinishLaunch launch) {
  const unsigned r = blockIdx.y * kThreads + threadIdx.x;
  if (r >= launch.rows) {
    return;
  }
  const unsigned t = blockIdx.x;
  float dot = launch.sums[t * launch.sums_stride + r] * launch.x_scales[t];
  if (launch.row_scales != nullptr) {
    dot = dot * launch.row_scales[r];
  }
  if (launch.bias != nullptr) {
    dot = dot + launch.bias[r];
  }
  const float y = launch.scale * dot;
  launch.y[t * launch.y_stride + r] =
      launch.residual == nullptr ? y : launch.residual[t * launch.residual_stride + r] + y;
}

}  // namespace

cudaError_t EnqueueHalfRows(const HalfRowsLaunch& launch, Launcher& launcher) {
  return launcher.Launch(HalfRowsKernel, launch.padded_rows, kThreads, 0, launch);
}

cudaError_t EnqueueExpand(const ExpandLaunch& launch, Launcher& launcher) {
  const uint64_t shared = launch.weights.cols <= kStagedColumns ? uint64_t{4} * launch.weights.cols : 0;
  return launcher.Launch(ExpandKernel, launch.rows, kThreads, shared, launch);
}

cudaError_t EnqueueFinish(const FinishLaunch& launch, Launcher& launcher) {
  const dim3 grid(launch.tokens, (launch.rows + kThreads - 1) / kThreads);
  return launcher.Launch(FinishKernel, grid, kThreads, 0, launch);
}

}  // namespace sluice::cuda
