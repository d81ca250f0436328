// Operations of one token on device cuda, run on the fake: what their launches ask for. A failure ends the
// program.
//
// Thread safety: none; the fake is one.
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
  uint32_t rows;  // of a product
  uint32_t positions;
};

// The minimum that an operation needs, and the counts of its launches.
struct Counted {
  double bytes = 0;
  std::vector<cuda_fake::KernelCounts> launches;
};

// `capability`: of the PTX. A product with a matrix of model.rows rows; the model's top_k experts, of which
// up leaves 80 % of the neurons out; attention over all positions.
Counted CountProduct(const Model& model, Encoding encoding, int capability);
Counted CountSparseExperts(const Model& model, Encoding encoding, int capability);
Counted CountAttention(const Model& model, int capability);

// The kernels of a layer for one token, all experts there and nothing left out: what the forward pass asks
// for, in its order.
uint64_t CountLayerKernels(const Model& model, int capability);

}  // namespace sluice::bench
