// The kernels for AVX-512: their table, and all but the products of quantized rows.

#include "kernels/cpu/isa_avx512-inl.h"

namespace sluice::cpu {

const KernelTable& Avx512Kernels() {
  static const KernelTable table = avx512::MakeTable("avx512");
  return table;
}

}  // namespace sluice::cpu
