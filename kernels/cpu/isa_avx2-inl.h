// Kernels compiled for AVX2, FMA and F16C.
//
// Included by kernels_avx2.cc and quant_avx2.cc.
//
// Thread safety: pure functions.

#if defined(SLUICE_ISA)
#error "included once, by kernels_avx2.cc or quant_avx2.cc"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "common/base/grid_tables.h"
#include "kernels/cpu/file_rows.h"
#include "kernels/cpu/kernel_table.h"

#define SLUICE_ISA avx2
#define SLUICE_DOWN "kernels/cpu/quant_down_avx2-inl.h"
SLUICE_BEGIN_ISA("avx2,fma,f16c")

namespace sluice::cpu {
namespace avx2 {
#include "kernels/cpu/native_avx2-inl.h"

// Kernels follow the instruction set's vectors, which they use.
#include "kernels/cpu/isa_table-inl.h"
}  // namespace avx2

SLUICE_END_ISA

}  // namespace sluice::cpu
