#include "tests/cuda_fake/tests/vector_kernels.h"

namespace sluice::cuda_fake {
namespace {

constexpr unsigned kThreads = 128;

__constant__ float scale_table[4] = {1, 2, 3, 4};

__global__ void AddKernel(const float* a, const float* b, float* c, unsigned n, unsigned beyond) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i < n) {
    c[i] = a[i + beyond] + b[i];
  }
}

__global__ void ScaleKernel(const float* x, float* y, unsigned n) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i < n) {
    y[i] = scale_table[i % 4] * x[i];
  }
}

unsigned Blocks(unsigned n) { return (n + kThreads - 1) / kThreads; }

}  // namespace

const void* const kScaleTable = scale_table;

void EnqueueAdd(const float* a, const float* b, float* c, unsigned n, unsigned beyond, cudaStream_t stream) {
  AddKernel<<<Blocks(n), kThreads, 0, stream>>>(a, b, c, n, beyond);
}

void EnqueueScaleByTable(const float* x, float* y, unsigned n, cudaStream_t stream) {
  ScaleKernel<<<Blocks(n), kThreads, 0, stream>>>(x, y, n);
}

}  // namespace sluice::cuda_fake
