// The kernels for AMX (tile, int8): those of AVX-512, except for quantized rows with many tokens.

#if !defined(__clang__)
// As in kernels_avx512.cc.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/file_rows.h"
#include "kernels/cpu/kernel_table.h"

#define SLUICE_ISA amx
#define SLUICE_AVX512
SLUICE_BEGIN_ISA("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

namespace sluice::cpu {
namespace amx {
inline const KernelTable& TileBase() { return Avx512Kernels(); }

// In this order: later ones use earlier ones.
// clang-format off
#include "kernels/cpu/native_avx512-inl.h"
#include "kernels/cpu/vec-inl.h"
#include "kernels/cpu/native_tiles-inl.h"
#include "kernels/cpu/quant_codes-inl.h"
#include "kernels/cpu/quant_gemm-inl.h"
#include "kernels/cpu/quant_many_down-inl.h"
#include "kernels/cpu/quant_tiles-inl.h"
// clang-format on
}  // namespace amx

SLUICE_END_ISA

const KernelTable& AmxKernels() {
  static const KernelTable table = amx::MakeTileTable("amx");
  return table;
}

}  // namespace sluice::cpu
