// Small kernels that the fake's own tests launch.
//
// Thread safety: pure but for the work they enqueue.
#pragma once

#include <cuda_runtime_api.h>

namespace sluice::cuda_fake {

// c = a + b, n values; reads the last one's neighbour too with `beyond` 1.
void EnqueueAdd(const float* a, const float* b, float* c, unsigned n, unsigned beyond, cudaStream_t stream);
// y[i] = table[i mod 4] * x[i] with a __constant__ table {1, 2, 3, 4} at first.
void EnqueueScaleByTable(const float* x, float* y, unsigned n, cudaStream_t stream);
extern const void* const kScaleTable;

}  // namespace sluice::cuda_fake
