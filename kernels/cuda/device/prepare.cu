#include "kernels/cuda/device/rounding.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;

// A block a row. All threads load it, 128 neighbouring bytes a warp, into shared memory if it is there that
// long; warp 0 makes the norm's sums, lane l over the columns l mod 32 ascending; then all threads write the
// normed row, and a warp rounds 256 columns at once, eight a lane. Bytes: cols * 4 read (weights from the
// cache behind the first row), cols * 4 written, or cols and 8 a group rounded. Bound: latency of one row for
// a decode step, memory for a prompt. (Asked for one block a multiprocessor at least, ptxas keeps in
// registers what lives across divisions; else it spills on sm_80.)
__global__ void __launch_bounds__(kThreads, 1) PrepareKernel(PrepareLaunch launch) {
  extern __shared__ float4 shared_row[];
  const unsigned cols = launch.cols;
  const unsigned token = blockIdx.x / launch.heads;
  const float* const from = launch.x + (launch.ids == nullptr ? token : launch.ids[token]) * launch.x_stride +
                            blockIdx.x % launch.heads * launch.x_head_stride;
  float* const y = launch.y == nullptr ? nullptr : launch.y + blockIdx.x * launch.y_stride;
  const RoundedRow<false> rounded = {launch.rounded + blockIdx.x * RoundedStride(cols, launch.group), cols,
                                     launch.group};
  if (cols <= kStagedColumns) {
    float* const staged = reinterpret_cast<float*>(shared_row);
    StageValues(from, cols, launch.norm, staged);
    if (launch.rounded != nullptr) {
      RoundStaged(staged, rounded);
    }
    for (unsigned k = threadIdx.x; y != nullptr && k < cols; k += kThreads) {
      y[k] = staged[k];
    }
    return;
  }
  const DeviceNorm norm = launch.norm;
  const Normed by = norm.on ? NormOfRow(from, cols, norm) : Normed{0, 1};
  const auto value = [=](unsigned k) {
    return k >= cols ? 0.0f : norm.on ? ApplyNorm(norm, by, from[k], k) : from[k];
  };
  if (launch.rounded != nullptr) {
    const auto four = [=](unsigned k) {
      return make_float4(value(k), value(k + 1), value(k + 2), value(k + 3));
    };
    RoundRow(rounded, [=](unsigned k) { return EightValues{four(k), four(k + 4)}; });
  }
  if (y != nullptr) {
    __syncthreads();  // y may be x, which others still read
    for (unsigned k = threadIdx.x; k < cols; k += kThreads) {
      y[k] = value(k);
    }
  }
}

}  // namespace

cudaError_t EnqueuePrepare(const PrepareLaunch& launch, Launcher& launcher) {
  const uint64_t shared = launch.cols <= kStagedColumns ? uint64_t{4} * RoundedCodes(launch.cols) : 0;
  return launcher.Launch(PrepareKernel, launch.rows, kThreads, shared, launch);
}

}  // namespace sluice::cuda
