// The kernels compiled for AVX-512 (F, BW, DQ, VL, VNNI).
#if !defined(__clang__)
// GCC 12 takes the undefined registers inside its own AVX-512 intrinsics for mistakes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/host/simd/isa_attributes.h"
#include "kernels/host/simd/kernel_table.h"

#define SLUICE_ISA avx512
#define SLUICE_AVX512
#define SLUICE_LANES "kernels/host/quant/lanes_avx512-inl.h"
#define SLUICE_DOWN "kernels/host/quant/panel_down_avx512-inl.h"
SLUICE_BEGIN_ISA("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

namespace sluice::host {
namespace avx512 {
#include "kernels/host/simd/native_avx512-inl.h"

// The table comes after the instruction set's own vectors, of which its kernels are made.
#include "kernels/host/isa/table-inl.h"
}  // namespace avx512

SLUICE_END_ISA

const KernelTable& Avx512Kernels() {
  static const KernelTable table = avx512::MakeTable("avx512");
  return table;
}

}  // namespace sluice::host
