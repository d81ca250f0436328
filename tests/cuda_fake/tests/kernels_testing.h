// The project's CUDA kernels called with host arrays of the test, over the fake's streams; entry points as a
// table, so that versions of them with seeded bugs run through the same code.
//
// Thread safety: pure but for the fake's state.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/device/attention.h"
#include "kernels/cuda/device/experts.h"
#include "kernels/cuda/device/matmul.h"
#include "kernels/cuda/device/row_kernels.h"

namespace sluice::cuda_fake {

struct KernelEntries {
  cudaError_t (*prepare)(const cuda::PrepareLaunch&, cuda::Launcher&) = cuda::EnqueuePrepare;
  cudaError_t (*matmul)(cuda::MatMulLaunch, uint64_t, cuda::Launcher&) = cuda::EnqueueMatMul;
  cudaError_t (*tiles)(const cuda::MatMulLaunch&, const cuda::MatMulLaunchPart&,
                       cuda::Launcher&) = cuda::EnqueueMatMulTiles;
  cudaError_t (*attention)(const cuda::AttentionLaunch&, cuda::Launcher&) = cuda::EnqueueAttention;
  cudaError_t (*coefficients)(const cuda::ExpertsLaunch&, cuda::Launcher&) = cuda::EnqueueCoefficients;
  cudaError_t (*down)(const cuda::ExpertsLaunch&, cuda::Launcher&) = cuda::EnqueueDown;
};

// y of `rows` rows; with an empty weight none is passed. Empty after an error, which the fake has reported.
std::vector<float> RunRmsNorm(const KernelEntries& entries, const std::vector<float>& x,
                              const std::vector<float>& weight, uint32_t rows, float epsilon);

// x rounded in one stream and multiplied in another behind an event; weights of the layout of
// pack/row_layout.h.
std::vector<float> RunGemvQ4(const KernelEntries& entries, const std::vector<float>& x,
                             const std::vector<uint8_t>& weights, uint32_t rows, uint64_t stride);

// The same of `tokens` rows of x by tensor cores: y of a token after the other.
std::vector<float> RunTilesQ4(const KernelEntries& entries, const std::vector<float>& x, uint32_t tokens,
                              const std::vector<uint8_t>& weights, uint32_t rows, uint64_t stride);

// A token of four heads of 64 values over `positions` positions of one f16 KV head, a block a span.
std::vector<float> RunAttentionF16(const KernelEntries& entries, uint32_t positions);

// One token's expert of q4 rows: `width` neurons, of which those with up factors below 1 are left out.
std::vector<float> RunExpertQ4(const KernelEntries& entries, const std::vector<float>& x, uint32_t width);

// Random q4 rows with groups of 64 for `cols` columns, `stride` bytes each.
std::vector<uint8_t> RandomQ4Rows(uint32_t rows, uint32_t cols, uint64_t* stride, uint64_t seed);
std::vector<float> RandomFloats(size_t count, uint64_t seed);

}  // namespace sluice::cuda_fake
