// The kernels for AMX with a model of its tiles in place of its instructions, so that any CPU runs their
// code.
#if !defined(__clang__)
// As in kernels_avx512.cc.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "tests/kernels/host/tile_model.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gtest/gtest.h"
#include "kernels/host/simd/isa_attributes.h"
#include "kernels/host/simd/kernel_table.h"

#define SLUICE_ISA tile_model
SLUICE_BEGIN_ISA("avx2,fma,f16c")

namespace sluice::cpu {
namespace tile_model {
inline const KernelTable& TileBase() { return Avx2Kernels(); }

// As in kernels_amx.cc.
// clang-format off
#include "kernels/host/simd/native_avx2-inl.h"
#include "kernels/host/simd/vec-inl.h"
#include "tests/kernels/host/model_tiles-inl.h"
#include "kernels/host/simd/codes-inl.h"
#include "kernels/host/quant/byte_codes-inl.h"
#include "kernels/host/quant/quad_sums-inl.h"
#include "kernels/host/quant/quant_gemm-inl.h"
#include "kernels/host/quant/many_down-inl.h"
#include "kernels/host/quant/tile_sums-inl.h"
// clang-format on
}  // namespace tile_model

SLUICE_END_ISA

const KernelTable& TileModelKernels() {
  static const KernelTable table = tile_model::MakeTileTable("tile model");
  return table;
}

}  // namespace sluice::cpu
