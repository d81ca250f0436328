#include "kernels/cuda/round_rows.h"
#include "kernels/cuda/warp.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kWarps = kThreads / kLanes;

// Nearest, ties to even; saturating; what a NaN becomes is not specified.
__device__ inline int RoundCode(float value) { return min(max(__float2int_rn(value), -128), 127); }

// Where code `c` of group `g` lies, in codes from the row's begin (round_rows.h).
__device__ inline unsigned PlaceOfCode(unsigned groups, unsigned g, unsigned c) {
  const unsigned word = c % 16;
  const unsigned plane = c / 16;
  const unsigned h = word / 8;
  const unsigned k = word % 8 / 2;
  const unsigned slot = plane % 2 * 4 + word % 2 * 2 + plane / 2;
  return ((k * groups + g) * 2 + h) * 8 + slot;
}

// A warp a group, two values a lane (4-byte loads of 32 neighbours). Bytes: 4 read and 2 written a value.
// Bound: latency; a decode step's row is a few KiB.
__global__ void __launch_bounds__(kThreads) RoundRowsKernel(RoundRowsLaunch launch) {
  const unsigned groups = (launch.cols + kRoundGroup - 1) / kRoundGroup;
  const unsigned g = blockIdx.x * kWarps + threadIdx.x / kLanes;
  const unsigned lane = threadIdx.x % kLanes;
  if (g >= groups) {
    return;
  }
  const float* const x = launch.x + uint64_t{blockIdx.y} * launch.cols;
  unsigned char* const y = launch.y + blockIdx.y * RoundedRowBytes(groups);
  const unsigned first = g * kRoundGroup + lane;
  const float a = first < launch.cols ? x[first] : 0.0f;
  const float b = first + kLanes < launch.cols ? x[first + kLanes] : 0.0f;
  const float largest = WarpMax(fmaxf(fabsf(a), fabsf(b)));
  const bool tiny = largest < 1e-30f;
  const float inverse = 127.0f / largest;
  const int code_a = tiny ? 0 : RoundCode(a * inverse);
  const int code_b = tiny ? 0 : RoundCode(b * inverse);
  short* const codes = reinterpret_cast<short*>(y);
  codes[PlaceOfCode(groups, g, lane)] = static_cast<short>(code_a);
  codes[PlaceOfCode(groups, g, lane + kLanes)] = static_cast<short>(code_b);
  const int sum = WarpSum(code_a + code_b);
  if (lane == 0) {
    reinterpret_cast<float*>(y + 2 * kRoundGroup * groups)[g] = tiny ? 0.0f : largest / 127.0f;
    reinterpret_cast<int*>(y + (2 * kRoundGroup + 4) * groups)[g] = sum;
  }
}

}  // namespace

cudaError_t EnqueueRoundRows(const RoundRowsLaunch& launch, cudaStream_t stream) {
  if (launch.cols == 0) {
    return cudaErrorInvalidValue;
  }
  if (launch.rows == 0) {
    return cudaSuccess;
  }
  const unsigned groups = (launch.cols + kRoundGroup - 1) / kRoundGroup;
  RoundRowsKernel<<<dim3((groups + kWarps - 1) / kWarps, launch.rows), kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace sluice::cuda
