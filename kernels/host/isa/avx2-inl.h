// Kernels compiled for AVX2, FMA and F16C. SLUICE_PART names the list of kernels that a source compiles.
//
// Included by kernels_avx2.cc and quant_avx2.cc.
//
// Thread safety: pure functions.
#ifndef SLUICE_PART
#error "included by kernels_avx2.cc and quant_avx2.cc only"
#endif

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

// Kernels follow the instruction set's vectors, which they use.
#include SLUICE_PART
}  // namespace avx2

SLUICE_END_ISA

}  // namespace sluice::host
