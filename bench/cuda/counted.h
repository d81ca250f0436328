// Operations of one token on device cuda, run on the fake to count what their launches access. A failure ends
// the program.
//
// Thread safety: none; the fake is a single instance.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/encoding.h"
#include "tests/cuda_fake/fake_cuda.h"

namespace sluice::bench {

struct Model {
  const char* name;
  uint32_t hidden;
  uint32_t width;
  uint32_t experts;
  uint32_t top_k;
  uint32_t heads;
  uint32_t kv_heads;
  uint32_t rows;  // rows of the matrix in CountProduct()
  uint32_t positions;
};

// Minimum bytes of an operation, and the counts of its launches.
struct Counted {
  double bytes = 0;
  std::vector<cuda_fake::KernelCounts> launches;
};

// Count a product with a matrix of model.rows rows; the model's top_k experts, with 80 % of the neurons left
// out by up; attention over all positions. `capability`: compute capability of the PTX.
Counted CountProduct(const Model& model, Encoding encoding, int capability);
Counted CountSparseExperts(const Model& model, Encoding encoding, int capability);
Counted CountAttention(const Model& model, int capability);
// Counts the expansion of model.rows rows to f16, for a library's product; bytes: those of both.
Counted CountExpand(const Model& model, Encoding encoding, int capability);

// Counts the kernels of a layer for one token, in the order of the forward pass, with all experts resident
// and no neuron left out.
uint64_t CountLayerKernels(const Model& model, int capability);

}  // namespace sluice::bench
