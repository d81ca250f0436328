// The kernels for AVX2, FMA and F16C: their table, and all but the products of quantized rows.

#include "kernels/cpu/isa_avx2-inl.h"

namespace sluice::cpu {

const KernelTable& Avx2Kernels() {
  static const KernelTable table = avx2::MakeTable("avx2");
  return table;
}

}  // namespace sluice::cpu
