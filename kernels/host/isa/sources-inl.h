// Every kernel's source. Included by table-inl.h and quant_table-inl.h, each of which lists the kernels it
// uses.
//
// Thread safety: pure functions.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc and quant_*.cc only"
#endif

// In this order: later ones use earlier ones.
// clang-format off
#include "kernels/host/simd/vec-inl.h"
#include "kernels/host/simd/rows-inl.h"
#include "kernels/host/simd/activation-inl.h"
#include "kernels/host/simd/mask-inl.h"
#include "kernels/host/simd/family-inl.h"
#include "kernels/host/simd/delta-inl.h"
#include "kernels/host/simd/dot-inl.h"
#include "kernels/host/simd/down-inl.h"
#include "kernels/host/simd/codes-inl.h"
#include "kernels/host/quant/byte_codes-inl.h"
#include SLUICE_LANES
#include "kernels/host/quant/byte_dot-inl.h"
#include "kernels/host/quant/quant_dot-inl.h"
#include "kernels/host/quant/quad_sums-inl.h"
#include "kernels/host/quant/quant_gemm-inl.h"
#include "kernels/host/quant/quant_down-inl.h"
#include SLUICE_DOWN
#include "kernels/host/quant/many_down-inl.h"
#include "kernels/host/quant/any_down-inl.h"
#include "kernels/host/simd/span_dots-inl.h"
#include "kernels/host/simd/span-inl.h"
// clang-format on
