// Shared by the kernels of matrix products: the last step of a dot product.
#pragma once

#include "kernels/cuda/device/matmul.h"

namespace sluice::cuda {

// Section 2, after the dot. The grid's z is the head.
__device__ inline void WriteProduct(const MatMulLaunch& launch, const MatMulLaunchPart& part, unsigned token,
                                    unsigned row, float dot) {
  float y = part.bias == nullptr ? dot : dot + part.bias[row];
  y = part.scale * y;
  if (launch.residual != nullptr) {
    y = launch.residual[token * launch.residual_stride + row] + y;
  }
  part.y[token * part.y_stride + blockIdx.z * part.y_head_stride + row] = y;
}

}  // namespace sluice::cuda
