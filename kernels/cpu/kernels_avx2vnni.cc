// The kernels for AVX2 with AVX-VNNI: their table, which is that of AVX2 except for quantized rows.

#include "kernels/cpu/isa_avx2vnni-inl.h"

namespace sluice::cpu {

const KernelTable& Avx2VnniKernels() {
  static const KernelTable table = avx2vnni::MakeTable("avx2vnni");
  return table;
}

}  // namespace sluice::cpu
