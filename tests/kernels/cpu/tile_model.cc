// The kernels for AMX with a model of its tiles in place of its instructions, so that any CPU runs their
// code.
#if !defined(__clang__)
// As in kernels_avx512.cc.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "tests/kernels/cpu/tile_model.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gtest/gtest.h"
#include "kernels/cpu/file_rows.h"
#include "kernels/cpu/kernel_table.h"

#define SLUICE_ISA tile_model
SLUICE_BEGIN_ISA("avx2,fma,f16c")

namespace sluice::cpu {
namespace tile_model {
inline const KernelTable& TileBase() { return Avx2Kernels(); }

// As in kernels_amx.cc.
// clang-format off
#include "kernels/cpu/native_avx2-inl.h"
#include "kernels/cpu/vec-inl.h"
#include "tests/kernels/cpu/model_tiles-inl.h"
#include "kernels/cpu/quant_codes-inl.h"
#include "kernels/cpu/quant_gemm-inl.h"
#include "kernels/cpu/quant_many_down-inl.h"
#include "kernels/cpu/quant_tiles-inl.h"
// clang-format on
}  // namespace tile_model

SLUICE_END_ISA

const KernelTable& TileModelKernels() {
  static const KernelTable table = tile_model::MakeTileTable("tile model");
  return table;
}

}  // namespace sluice::cpu
