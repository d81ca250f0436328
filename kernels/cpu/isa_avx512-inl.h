// Kernels compiled for AVX-512 (F, BW, DQ, VL, VNNI).
//
// Included by kernels_avx512.cc and quant_avx512.cc.
//
// Thread safety: pure functions.

#if defined(SLUICE_ISA)
#error "included once, by kernels_avx512.cc or quant_avx512.cc"
#endif
#if !defined(__clang__)
// GCC 12 takes the undefined registers inside its own AVX-512 intrinsics for mistakes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "common/base/grid_tables.h"
#include "kernels/cpu/file_rows.h"
#include "kernels/cpu/kernel_table.h"

#define SLUICE_ISA avx512
#define SLUICE_AVX512
#define SLUICE_DOWN "kernels/cpu/quant_down_avx512-inl.h"
SLUICE_BEGIN_ISA("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

namespace sluice::cpu {
namespace avx512 {
#include "kernels/cpu/native_avx512-inl.h"

// Kernels follow the instruction set's vectors, which they use.
#include "kernels/cpu/isa_table-inl.h"
}  // namespace avx512

SLUICE_END_ISA

}  // namespace sluice::cpu
