#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/gemv_q4.h"
#include "kernels/cuda/round_rows.h"
#include "kernels/cuda/warp.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kWarps = kThreads / kLanes;
constexpr unsigned kSharedBytes = 48 * 1024;

// The products of 4 bytes of 4-bit codes with their piece of x (round_rows.h): eight multiply-adds, exact in
// int32.
__device__ inline int DotPiece(unsigned codes, int4 piece, int sum) {
  const unsigned low = codes & 0x0f0f0f0fu;
  const unsigned high = codes >> 4 & 0x0f0f0f0fu;
  sum = __dp2a_lo(piece.x, static_cast<int>(low), sum);
  sum = __dp2a_hi(piece.y, static_cast<int>(low), sum);
  sum = __dp2a_lo(piece.z, static_cast<int>(high), sum);
  return __dp2a_hi(piece.w, static_cast<int>(high), sum);
}

// A block stages x in shared memory by 16-byte asynchronous copies; a warp a row. A lane pair a group: each
// lane loads 16 bytes of codes (512 neighbouring bytes a warp), 16 groups a step. Bytes: a row's codes,
// scales and zeros once (36 bytes a group of 64), x from the cache. Bound: memory.
__global__ void __launch_bounds__(kThreads) GemvQ4Kernel(GemvQ4Launch launch) {
  extern __shared__ int4 staged[];  // RoundedRowBytes(groups), rounded up to 16
  const unsigned groups = (launch.cols + kRoundGroup - 1) / kRoundGroup;
  const unsigned staged_bytes = static_cast<unsigned>(RoundedRowBytes(groups));
  const int4* const x = reinterpret_cast<const int4*>(launch.x);
  for (unsigned i = threadIdx.x; i < staged_bytes / 16; i += kThreads) {
    __pipeline_memcpy_async(&staged[i], &x[i], 16);
  }
  if (staged_bytes % 16 != 0 && threadIdx.x < 2) {
    const unsigned at = staged_bytes / 16 * 4 + threadIdx.x;
    reinterpret_cast<int*>(staged)[at] = reinterpret_cast<const int*>(launch.x)[at];
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();

  const unsigned row = blockIdx.x * kWarps + threadIdx.x / kLanes;
  if (row >= launch.rows) {
    return;
  }
  const unsigned lane = threadIdx.x % kLanes;
  const float* const x_scales = reinterpret_cast<const float*>(staged + 8 * groups);
  const int* const x_sums = reinterpret_cast<const int*>(x_scales + groups);
  const unsigned char* const weights = launch.weights + row * launch.stride;
  const uint4* const codes = reinterpret_cast<const uint4*>(weights);
  const __half* const scales = reinterpret_cast<const __half*>(weights + 32 * uint64_t{groups});
  const __half* const zeros = scales + groups;

  // Lane 2 j, j < 8, adds up the groups j mod 8 in their order: its own, and those of its partner 16 lanes
  // on.
  float sum = 0;
  for (unsigned first = 0; first < groups; first += 16) {
    const unsigned g = first + lane / 2;
    int dot = 0;
    float scale = 0;
    float t = 0;
    if (g < groups) {
      const uint4 c = codes[2 * g + lane % 2];
      const int4* const pieces = staged + 2 * g + lane % 2;
      dot = DotPiece(c.x, pieces[0], dot);
      dot = DotPiece(c.y, pieces[2 * groups], dot);
      dot = DotPiece(c.z, pieces[4 * groups], dot);
      dot = DotPiece(c.w, pieces[6 * groups], dot);
    }
    dot += __shfl_xor_sync(kAllLanes, dot, 1);
    if (g < groups) {
      scale = __half2float(scales[g]) * x_scales[g];
      t = fmaf(-__half2float(zeros[g]), static_cast<float>(x_sums[g]), static_cast<float>(dot));
    }
    const float partner_scale = __shfl_xor_sync(kAllLanes, scale, 16);
    const float partner_t = __shfl_xor_sync(kAllLanes, t, 16);
    sum = fmaf(scale, t, sum);
    sum = fmaf(partner_scale, partner_t, sum);
  }
  sum += __shfl_xor_sync(kAllLanes, sum, 8);
  sum += __shfl_xor_sync(kAllLanes, sum, 4);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  if (lane == 0) {
    launch.y[row] = sum + 0.0f;
  }
}

}  // namespace

cudaError_t EnqueueGemvQ4(const GemvQ4Launch& launch, cudaStream_t stream) {
  const unsigned groups = (launch.cols + kRoundGroup - 1) / kRoundGroup;
  const uint64_t shared = (RoundedRowBytes(groups) + 15) / 16 * 16;
  if (launch.cols == 0 || launch.stride % 16 != 0 || shared > kSharedBytes) {
    return cudaErrorInvalidValue;
  }
  if (launch.rows == 0) {
    return cudaSuccess;
  }
  GemvQ4Kernel<<<(launch.rows + kWarps - 1) / kWarps, kThreads, shared, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace sluice::cuda
