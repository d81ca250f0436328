#include "kernels/cuda/rms_norm.h"
#include "kernels/cuda/warp.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kMaxCols = 12288;  // 48 KiB, what a block has without asking for more

// A block a row. All threads load it by 16 bytes into shared memory; warp 0 makes the sum of squares there,
// lane l over the columns l mod 32 ascending (32 neighbouring words a step: no bank twice); all threads write
// by 16 bytes. Bytes: cols * 4 read (and the weights' once a row, from the cache after the first), cols * 4
// written. Bound: latency of one row for a decode step, memory for a prompt.
__global__ void __launch_bounds__(kThreads) RmsNormKernel(RmsNormLaunch launch) {
  extern __shared__ float4 row[];  // [cols / 4]
  __shared__ float factor;
  const unsigned quads = launch.cols / 4;
  const float4* const x = reinterpret_cast<const float4*>(launch.x + uint64_t{blockIdx.x} * launch.cols);
  for (unsigned i = threadIdx.x; i < quads; i += kThreads) {
    row[i] = x[i];
  }
  __syncthreads();
  if (threadIdx.x < kLanes) {
    const float* const values = reinterpret_cast<const float*>(row);
    float sum = 0;
    for (unsigned k = threadIdx.x; k < launch.cols; k += kLanes) {
      sum = fmaf(values[k], values[k], sum);
    }
    const float squares = WarpTreeSum(sum);
    if (threadIdx.x == 0) {
      factor = 1.0f / sqrtf(squares / static_cast<float>(launch.cols) + launch.epsilon);
    }
  }
  __syncthreads();
  float4* const y = reinterpret_cast<float4*>(launch.y + uint64_t{blockIdx.x} * launch.cols);
  const float4* const weight = reinterpret_cast<const float4*>(launch.weight);
  const float r = factor;
  for (unsigned i = threadIdx.x; i < quads; i += kThreads) {
    float4 v = row[i];
    v = make_float4(v.x * r, v.y * r, v.z * r, v.w * r);
    if (weight != nullptr) {
      const float4 w = weight[i];
      v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
    }
    y[i] = v;
  }
}

}  // namespace

cudaError_t EnqueueRmsNorm(const RmsNormLaunch& launch, cudaStream_t stream) {
  if (launch.cols == 0 || launch.cols % 4 != 0 || launch.cols > kMaxCols - 32) {
    return cudaErrorInvalidValue;
  }
  if (launch.rows == 0) {
    return cudaSuccess;
  }
  RmsNormKernel<<<launch.rows, kThreads, launch.cols * sizeof(float), stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace sluice::cuda
