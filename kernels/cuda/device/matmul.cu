#include <algorithm>

#include "kernels/cuda/device/dots.cuh"
#include "kernels/cuda/device/matmul.h"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kWarps = kThreads / kLanes;
constexpr unsigned kQuantizedRows =
    2 * kWarps;  // of a block: two rows a warp, so that x is staged half as often
constexpr unsigned kPlainRows = 8 * kWarps;
constexpr uint64_t kDefaultShared = 48 * 1024;

__device__ inline void Write(const MatMulLaunch& launch, const MatMulLaunchPart& part, unsigned token,
                             unsigned row, float dot) {
  float y = part.bias == nullptr ? dot : dot + part.bias[row];
  y = part.scale * y;
  if (launch.residual != nullptr) {
    y = launch.residual[token * launch.residual_stride + row] + y;
  }
  part.y[token * part.y_stride + blockIdx.z * part.y_head_stride + row] = y;
}

// A block has eight rows of a quantized part, two a warp, and stages its tokens' rounded x once by 16-byte
// asynchronous copies; dots.cuh says how a warp makes a row's dots. Bytes: a row's codes, scales and zeros
// once for kTokens tokens, x from the cache once a block. Bound: memory.
template <int kTokens>
__device__ void QuantizedPart(const MatMulLaunch& launch, const MatMulLaunchPart& part, unsigned block,
                              int4* shared) {
  const DeviceMatrix& m = part.weights;
  const unsigned units = UnitsOf(m.cols);
  const unsigned units_a_block = UnitsABlock(m.encoding);
  const unsigned first_token = blockIdx.y * kTokens;
  StagedRows x;
  x.codes = shared;
  x.token_quads = StagedQuad(units, units_a_block) + 1;
  x.stride = RoundedStride(m.cols, m.group) * launch.heads;
  x.rounded = part.rounded + first_token * x.stride + blockIdx.z * RoundedStride(m.cols, m.group);
  StageCodes(x.rounded, x.stride, kTokens, units, units_a_block, x.token_quads, shared);
  __pipeline_wait_prior(0);
  __syncthreads();
  const unsigned warp = threadIdx.x / kLanes;
  int* const sums = reinterpret_cast<int*>(shared + kTokens * x.token_quads) + warp * kTokens * units;
  for (unsigned r = block * kQuantizedRows + warp; r < min(part.rows, (block + 1) * kQuantizedRows);
       r += kWarps) {
    float dots[kTokens];
    QuantizedDots<kTokens>(m, RowOf(m, blockIdx.z * part.rows + r), x, sums, dots);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (threadIdx.x % kLanes == 0) {
        Write(launch, part, first_token + t, r, dots[t]);
      }
    }
  }
}

// A block has 32 rows of a plain part, eight a warp; x comes from the cache, the same 128 bytes for all rows.
// Bytes: a row's values once for kTokens tokens. Bound: memory.
template <int kTokens>
__device__ void PlainPart(const MatMulLaunch& launch, const MatMulLaunchPart& part, unsigned block) {
  const DeviceMatrix& m = part.weights;
  const unsigned r = block * kPlainRows + threadIdx.x / 4;
  const unsigned first_token = blockIdx.y * kTokens;
  const float* const x = launch.x + first_token * launch.x_stride + blockIdx.z * launch.x_head_stride;
  const bool inside = r < part.rows;
  float dots[kTokens];
  PlainDots<kTokens>(m, inside ? RowOf(m, blockIdx.z * part.rows + r) : nullptr, x, launch.x_stride, dots);
  if (inside && threadIdx.x % 4 == 0) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      Write(launch, part, first_token + t, r, dots[t]);
    }
  }
}

template <int kTokens>
__global__ void __launch_bounds__(kThreads) MatMulKernel(MatMulLaunch launch) {
  extern __shared__ int4 shared[];  // staged codes of kTokens rows, and each warp's unit sums
  MatMulLaunchPart part = launch.parts[0];
#pragma unroll
  for (unsigned i = 1; i < kMaxParts; ++i) {
    if (i < launch.part_count && blockIdx.x >= launch.parts[i].first_block) {
      part = launch.parts[i];
    }
  }
  const unsigned block = blockIdx.x - part.first_block;
  if (IsPlain(part.weights.encoding)) {
    PlainPart<kTokens>(launch, part, block);
  } else {
    QuantizedPart<kTokens>(launch, part, block, shared);
  }
}

// Shared memory for `tokens` tokens of the part that takes most.
uint64_t SharedBytes(const MatMulLaunch& launch, uint32_t tokens) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < launch.part_count; ++i) {
    const DeviceMatrix& m = launch.parts[i].weights;
    if (m.encoding > Encoding::kF32) {
      const uint64_t units = UnitsOf(m.cols);
      const uint64_t quads = 2 * units + units / UnitsABlock(m.encoding) + 1;
      most = std::max(most, tokens * (16 * quads + 4 * kWarps * units));
    }
  }
  return most;
}

template <int kTokens>
cudaError_t Enqueue(const MatMulLaunch& launch, uint32_t first, uint32_t count, uint32_t blocks,
                    uint64_t shared, cudaStream_t stream) {
  MatMulLaunch tokens = launch;
  tokens.x += first * launch.x_stride;
  tokens.residual += launch.residual == nullptr ? 0 : first * launch.residual_stride;
  for (uint32_t i = 0; i < launch.part_count; ++i) {
    MatMulLaunchPart& part = tokens.parts[i];
    part.y += first * part.y_stride;
    if (part.rounded != nullptr) {
      part.rounded += first * RoundedStride(part.weights.cols, part.weights.group) * launch.heads;
    }
  }
  if (shared > kDefaultShared) {
    const cudaError_t error = cudaFuncSetAttribute(
        MatMulKernel<kTokens>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) {
      return error;
    }
  }
  MatMulKernel<kTokens><<<dim3(blocks, count / kTokens, launch.heads), kThreads, shared, stream>>>(tokens);
  return cudaGetLastError();
}

}  // namespace

cudaError_t EnqueueMatMul(MatMulLaunch launch, uint64_t shared_bytes, cudaStream_t stream) {
  uint32_t blocks = 0;
  for (uint32_t i = 0; i < launch.part_count; ++i) {
    MatMulLaunchPart& part = launch.parts[i];
    const uint32_t rows = part.weights.encoding > Encoding::kF32 ? kQuantizedRows : kPlainRows;
    part.first_block = blocks;
    blocks += (part.rows + rows - 1) / rows;
  }
  constexpr uint32_t kMany = 4;
  const uint32_t many = SharedBytes(launch, kMany) <= shared_bytes ? launch.tokens / kMany * kMany : 0;
  if (SharedBytes(launch, 1) > shared_bytes) {
    return cudaErrorInvalidValue;
  }
  if (many != 0) {
    const cudaError_t error = Enqueue<kMany>(launch, 0, many, blocks, SharedBytes(launch, kMany), stream);
    if (error != cudaSuccess) {
      return error;
    }
  }
  const uint32_t rest = launch.tokens - many;
  return rest == 0 ? cudaSuccess : Enqueue<1>(launch, many, rest, blocks, SharedBytes(launch, 1), stream);
}

}  // namespace sluice::cuda
