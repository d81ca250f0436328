// Dot products and weighted sums over lists of weight rows in any encoding, for one worker. A list names rows
// of one encoding anywhere in memory, so rows may be gathered at no cost; it describes their layout, so that
// the right ones are prefetched.
//
// Thread safety: every worker may call with its own index at the same time.
#pragma once

#include <cstdint>

#include "kernels/calls/places.h"
#include "kernels/host/simd/kernel_table.h"

namespace sluice::cpu {

// The norm of a row, of any kind.

// y = norm(x) over `cols` values (ARITHMETIC.md 5); y may be x.
inline void NormRow(const KernelTable& kernels, const CallNorm& norm, const float* x, uint32_t cols,
                    float* y) {
  if (norm.kind == NormKind::kLayer) {
    kernels.layer_norm(x, cols, norm.weight, norm.bias, norm.epsilon, y);
  } else {
    kernels.rms_norm(x, cols, norm.weight, norm.epsilon, y);
  }
}

}  // namespace sluice::cpu
