// The kernels compiled for AVX2, FMA and F16C with AVX-VNNI, the byte and word products of AVX-512 VNNI in
// 256 bits, which CPUs without AVX-512 have too.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/host/simd/isa_attributes.h"
#include "kernels/host/simd/kernel_table.h"

#define SLUICE_ISA avx2vnni
#define SLUICE_VNNI
#define SLUICE_LANES "kernels/host/quant/lanes_avx2-inl.h"
#define SLUICE_DOWN "kernels/host/quant/byte_down-inl.h"
SLUICE_BEGIN_ISA("avx2,fma,f16c,avxvnni")

namespace sluice::host {
namespace avx2vnni {
#include "kernels/host/simd/native_avx2-inl.h"

// The table comes after the instruction set's own vectors, of which its kernels are made.
#include "kernels/host/isa/table-inl.h"
}  // namespace avx2vnni

SLUICE_END_ISA

const KernelTable& Avx2VnniKernels() {
  static const KernelTable table = avx2vnni::MakeTable("avx2vnni");
  return table;
}

}  // namespace sluice::host
