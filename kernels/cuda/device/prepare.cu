#include "kernels/cuda/device/row_kernels.h"
#include "kernels/cuda/device/scalar.cuh"
#include "kernels/cuda/device/warp.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / kLanes;
constexpr unsigned kStagedCols = 8192;  // 32 KiB; longer rows are read again from the cache

// The lane sum of section 0 over f(k), k < cols, by one warp.
template <typename Term>
__device__ inline float LaneSum(unsigned cols, Term term) {
  float sum = 0;
  for (unsigned k = threadIdx.x % kLanes; k < cols; k += kLanes) {
    sum = term(sum, k);
  }
  return WarpTreeSum(sum);
}

struct Normed {
  float mean;
  float r;
};

__device__ inline float Apply(const DeviceNorm& norm, const Normed& by, float x, unsigned k) {
  float y = (x - by.mean) * by.r;
  if (norm.weight != nullptr) {
    y = y * norm.weight[k];
  }
  return norm.bias == nullptr ? y : y + norm.bias[k];
}

// Rounds group g of a row, a warp a group (section 2 b): lane l has the columns l, l + 32, ... of it.
template <typename Value>
__device__ inline void RoundGroup(unsigned cols, unsigned group, unsigned g, uint8_t* rounded, Value value) {
  constexpr unsigned kMost = 4;  // groups have up to 128 columns
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned first = g * group;
  float values[kMost];
  float largest = 0;
#pragma unroll
  for (unsigned i = 0; i < kMost; ++i) {
    const unsigned k = i * kLanes + lane;
    values[i] = k < group && first + k < cols ? value(first + k) : 0.0f;
    largest = fmaxf(largest, fabsf(values[i]));
  }
  largest = WarpMax(largest);
  const bool tiny = largest < 1e-30f;
  const float inverse = 127.0f / largest;
  short* const codes = reinterpret_cast<short*>(rounded);
  int sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kMost; ++i) {
    const unsigned k = i * kLanes + lane;
    // Whole units: codes behind the row's end are 0.
    if (k < group && first + k < UnitsOf(cols) * kUnit) {
      const int code = tiny ? 0 : RoundCode(values[i] * inverse);
      const unsigned column = first + k;
      const unsigned middle = (0x3120u >> (column % 4 * 4)) & 3;  // 0, 2, 1, 3
      codes[column / 4 * 4 + middle] = static_cast<short>(code);
      sum += code;
    }
  }
  sum = WarpSum(sum);
  if (lane == 0) {
    reinterpret_cast<float*>(rounded + RoundedScales(cols))[g] = tiny ? 0.0f : largest / 127.0f;
    reinterpret_cast<int*>(rounded + RoundedSums(cols, group))[g] = sum;
  }
}

// A block a row. All threads load it, 128 neighbouring bytes a warp, into shared memory if it is there that
// long; warp 0 makes the norm's sums, lane l over the columns l mod 32 ascending; then all threads write the
// normed row, and a warp a group rounds. Bytes: cols * 4 read (weights from the cache behind the first row),
// cols * 4 written, or cols * 2 and 8 a group rounded. Bound: latency of one row for a decode step,
// memory for a prompt.
__global__ void __launch_bounds__(kThreads) PrepareKernel(PrepareLaunch launch) {
  extern __shared__ float staged[];
  __shared__ Normed shared_norm;
  const unsigned cols = launch.cols;
  const unsigned token = blockIdx.x / launch.heads;
  const float* const from = launch.x + (launch.ids == nullptr ? token : launch.ids[token]) * launch.x_stride +
                            blockIdx.x % launch.heads * launch.x_head_stride;
  const bool stage = cols <= kStagedCols;
  if (stage) {
    for (unsigned k = threadIdx.x; k < cols; k += kThreads) {
      staged[k] = from[k];
    }
  }
  const float* const x = stage ? staged : from;
  __syncthreads();
  if (!launch.norm.on && threadIdx.x == 0) {
    shared_norm = {0, 1};
  }
  if (launch.norm.on && threadIdx.x < kLanes) {
    const float n = static_cast<float>(cols);
    float mean = 0;
    if (launch.norm.kind == NormKind::kLayer) {
      mean = LaneSum(cols, [=](float sum, unsigned k) { return sum + x[k]; }) / n;
    }
    const float squares = LaneSum(cols, [=](float sum, unsigned k) {
      const float d = x[k] - mean;
      return fmaf(d, d, sum);
    });
    if (threadIdx.x == 0) {
      shared_norm = {mean, 1.0f / sqrtf(squares / n + launch.norm.epsilon)};
    }
  }
  __syncthreads();
  const DeviceNorm norm = launch.norm;
  const Normed by = shared_norm;
  const auto value = [=](unsigned k) { return norm.on ? Apply(norm, by, x[k], k) : x[k]; };
  if (launch.rounded != nullptr) {
    uint8_t* const rounded = launch.rounded + blockIdx.x * RoundedStride(cols, launch.group);
    for (unsigned g = threadIdx.x / kLanes; g < GroupsOf(cols, launch.group); g += kWarps) {
      RoundGroup(cols, launch.group, g, rounded, value);
    }
  }
  if (launch.y != nullptr) {
    float* const y = launch.y + blockIdx.x * launch.y_stride;
    if (!stage) {
      __syncthreads();  // y may be x, which others still read
    }
    for (unsigned k = threadIdx.x; k < cols; k += kThreads) {
      y[k] = value(k);
    }
  }
}

}  // namespace

cudaError_t EnqueuePrepare(const PrepareLaunch& launch, cudaStream_t stream) {
  const uint64_t shared = launch.cols <= kStagedCols ? uint64_t{4} * launch.cols : 0;
  PrepareKernel<<<launch.rows, kThreads, shared, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace sluice::cuda
