// The norm of a row, of any kind.
//
// Thread safety: a pure function but for the row it writes.
#pragma once

#include <cstdint>

#include "kernels/calls/places.h"
#include "kernels/host/simd/kernel_table.h"

namespace sluice::host {

// y = norm(x) over `cols` values (ARITHMETIC.md 5); y may be x.
inline void NormRow(const KernelTable& kernels, const CallNorm& norm, const float* x, uint32_t cols,
                    float* y) {
  if (norm.kind == NormKind::kLayer) {
    kernels.layer_norm(x, cols, norm.weight, norm.bias, norm.epsilon, y);
  } else {
    kernels.rms_norm(x, cols, norm.weight, norm.epsilon, y);
  }
}

}  // namespace sluice::host
