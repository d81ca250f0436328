#include <algorithm>

#include "kernels/cuda/device/dots.cuh"
#include "kernels/cuda/device/matmul.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / kLanes;
constexpr unsigned kQuantizedRows = kDots * kWarps;  // of a block: x is staged once for four rows a warp
constexpr unsigned kPlainRows = 32;                  // by the first four warps: a router has few rows

// The rounded x of the block's tokens in shared memory, rounded here where nobody has done it before. Returns
// what is behind them.
template <int kTokens>
__device__ inline int* StageX(const MatMulLaunch& launch, const MatMulLaunchPart& part, unsigned first_token,
                              uint8_t* shared, StagedRows* x) {
  const DeviceMatrix& m = part.weights;
  x->base = shared;
  x->token_bytes = StagedBytes(m.cols, m.group);
  uint8_t* const behind = shared + kTokens * x->token_bytes;
  if (kTokens > 1 || part.rounded != nullptr) {
    const uint64_t row = RoundedStride(m.cols, m.group);
    const uint64_t stride = row * launch.heads;
    StageRounded(part.rounded + first_token * stride + blockIdx.z * row, stride, kTokens,
                 launch.tokens - 1 - first_token, m.cols, m.group, shared);
    __pipeline_wait_prior(0);
  } else {
    NormAndRound(launch.x + blockIdx.z * launch.x_head_stride, launch.norm, {shared, m.cols, m.group},
                 reinterpret_cast<float*>(behind));
  }
  __syncthreads();
  return reinterpret_cast<int*>(behind);
}

// A block has 32 rows of a quantized part, four a warp, and the rounded x of its tokens in shared memory;
// dots.cuh says how a warp makes dots: of four rows at once for one token, of a row after the other for up to
// four. Bytes: a row's codes, scales and zeros once for kTokens tokens; x from the cache once a block. Bound:
// memory, for one token; shared memory for four.
template <int kTokens>
__device__ void QuantizedPart(const MatMulLaunch& launch, const MatMulLaunchPart& part, unsigned block,
                              uint8_t* shared) {
  constexpr int kRows = kDots / kTokens;
  const DeviceMatrix& m = part.weights;
  const unsigned first_token = blockIdx.y * kTokens;
  StagedRows x;
  int* const behind = StageX<kTokens>(launch, part, first_token, shared, &x);
  const unsigned warp = threadIdx.x / kLanes;
  const unsigned dot = threadIdx.x % kLanes / kDotLanes;
  int* const sums = behind + warp * launch.warp_sums;
  const unsigned begin = block * kQuantizedRows + warp * kDots;
  const unsigned end = min(part.rows, begin + kDots);
  for (unsigned first = begin; first < end; first += kRows) {
    const uint8_t* const from = m.base + uint64_t{blockIdx.z * part.rows + first} * m.stride;
    const uint8_t* rows[kRows];
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
      rows[r] = from + min(r, end - 1 - first) * static_cast<unsigned>(m.stride);
    }
    const float value = QuantizedDots<kRows, kTokens>(m, rows, x, sums);
    const unsigned row = first + dot / kTokens;
    const unsigned token = first_token + dot % kTokens;
    if (threadIdx.x % kDotLanes == 0 && row < end && token < launch.tokens) {
      WriteProduct(launch, part, token, row, value);
    }
  }
}

// A block has 32 rows of a plain part, eight a warp; x comes from the cache, the same 128 bytes for all rows.
// Bytes: a row's values once for kTokens tokens. Bound: memory.
template <int kTokens>
__device__ void PlainPart(const MatMulLaunch& launch, const MatMulLaunchPart& part, unsigned block) {
  if (threadIdx.x / 4 >= kPlainRows) {
    return;
  }
  const DeviceMatrix& m = part.weights;
  const unsigned r = block * kPlainRows + threadIdx.x / 4;
  const unsigned first_token = blockIdx.y * kTokens;
  const bool inside = r < part.rows;
  const uint8_t* const row = inside ? RowOf(m, blockIdx.z * part.rows + r) : nullptr;
  const float* x[kTokens];
#pragma unroll
  for (unsigned t = 0; t < kTokens; ++t) {
    x[t] = launch.x + min(first_token + t, launch.tokens - 1) * launch.x_stride +
           blockIdx.z * launch.x_head_stride;
  }
  float dots[kTokens];
  // More loads for four tokens would take the registers of a second block on a multiprocessor.
  PlainDots<kTokens, kTokens == 1 ? 8 : 1>(m, row, x, dots);
  if (inside && threadIdx.x % 4 == 0) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (first_token + t < launch.tokens) {
        WriteProduct(launch, part, first_token + t, r, dots[t]);
      }
    }
  }
}

// The part that the block's rows are of.
__device__ inline const MatMulLaunchPart& PartOfBlock(const MatMulLaunch& launch) {
  unsigned index = 0;
#pragma unroll
  for (unsigned i = 1; i < kMaxParts; ++i) {
    index += blockIdx.x >= launch.parts[i].first_block ? 1 : 0;
  }
  return launch.parts[index];
}

// (Asked for so few blocks a multiprocessor at least, ptxas spills nothing of several tokens' dots.)
template <int kTokens>
__global__ void __launch_bounds__(kThreads, kTokens == 1 ? 2 : 1)
    MatMulKernel(const __grid_constant__ MatMulLaunch launch) {
  extern __shared__ int4 shared[];  // rounded x of kTokens rows, and each warp's sums
  const MatMulLaunchPart& part = PartOfBlock(launch);
  const unsigned block = blockIdx.x - part.first_block;
  if (IsPlain(part.weights.encoding)) {
    PlainPart<kTokens>(launch, part, block);
  } else {
    QuantizedPart<kTokens>(launch, part, block, reinterpret_cast<uint8_t*>(shared));
  }
}

// Int32 for a warp's dots of the part that takes most.
uint32_t WarpSums(const MatMulLaunch& launch) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < launch.part_count; ++i) {
    const DeviceMatrix& m = launch.parts[i].weights;
    most = std::max(most, m.encoding > Encoding::kF32 ? DotSums(m.encoding, m.group) : 0);
  }
  return most;
}

// Shared memory for `tokens` tokens of the part that takes most.
uint64_t SharedBytes(const MatMulLaunch& launch, uint32_t tokens) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < launch.part_count; ++i) {
    const DeviceMatrix& m = launch.parts[i].weights;
    if (m.encoding > Encoding::kF32) {
      const uint64_t sums = uint64_t{4} * kWarps * launch.warp_sums;
      const uint64_t values = launch.parts[i].rounded == nullptr ? uint64_t{4} * RoundedCodes(m.cols) : 0;
      most = std::max(most, uint64_t{tokens} * StagedBytes(m.cols, m.group) + std::max(sums, values));
    }
  }
  return most;
}

template <int kTokens>
cudaError_t Enqueue(const MatMulLaunch& launch, uint32_t blocks, uint64_t shared, Launcher& launcher) {
  const dim3 grid(blocks, (launch.tokens + kTokens - 1) / kTokens, launch.heads);
  return launcher.Launch(MatMulKernel<kTokens>, grid, kThreads, shared, launch);
}

}  // namespace

cudaError_t EnqueueMatMul(MatMulLaunch launch, uint64_t shared_bytes, Launcher& launcher) {
  const uint32_t part_count = launch.part_count;
  uint32_t blocks = 0;
  launch.part_count = 0;
  for (uint32_t i = 0; i < part_count; ++i) {
    MatMulLaunchPart part = launch.parts[i];
    if (TakesTiles(launch, part)) {
      const cudaError_t error = EnqueueMatMulTiles(launch, part, launcher);
      if (error != cudaSuccess) {
        return error;
      }
      continue;
    }
    const uint32_t rows = part.weights.encoding > Encoding::kF32 ? kQuantizedRows : kPlainRows;
    part.first_block = blocks;
    blocks += (part.rows + rows - 1) / rows;
    launch.parts[launch.part_count++] = part;
  }
  if (launch.part_count == 0) {
    return cudaSuccess;
  }
  for (uint32_t i = launch.part_count; i < kMaxParts; ++i) {
    launch.parts[i].first_block = blocks;  // no block is theirs
  }
  launch.warp_sums = WarpSums(launch);
  const uint64_t several = SharedBytes(launch, kDots);
  if (launch.tokens > 1 && several <= shared_bytes) {
    return Enqueue<kDots>(launch, blocks, several, launcher);
  }
  const uint64_t one = SharedBytes(launch, 1);
  return one <= shared_bytes ? Enqueue<1>(launch, blocks, one, launcher) : cudaErrorInvalidValue;
}

}  // namespace sluice::cuda
