// Kernels compiled for AVX-512 (F, BW, DQ, VL, VNNI). SLUICE_PART names the list of kernels that a source
// compiles.
//
// Included by kernels_avx512.cc and quant_avx512.cc.
//
// Thread safety: pure functions.
#ifndef SLUICE_PART
#error "included by kernels_avx512.cc and quant_avx512.cc only"
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

// Kernels follow the instruction set's vectors, which they use.
#include SLUICE_PART
}  // namespace avx512

SLUICE_END_ISA

}  // namespace sluice::host
