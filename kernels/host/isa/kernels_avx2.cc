// The kernels compiled for AVX2, FMA and F16C.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/host/simd/isa_attributes.h"
#include "kernels/host/simd/kernel_table.h"

#define SLUICE_ISA avx2
#define SLUICE_LANES "kernels/host/quant/lanes_avx2-inl.h"
#define SLUICE_DOWN "kernels/host/quant/byte_down-inl.h"
SLUICE_BEGIN_ISA("avx2,fma,f16c")

namespace sluice::host {
namespace avx2 {
#include "kernels/host/simd/native_avx2-inl.h"

// The table comes after the instruction set's own vectors, of which its kernels are made.
#include "kernels/host/isa/table-inl.h"
}  // namespace avx2

SLUICE_END_ISA

const KernelTable& Avx2Kernels() {
  static const KernelTable table = avx2::MakeTable("avx2");
  return table;
}

}  // namespace sluice::host
