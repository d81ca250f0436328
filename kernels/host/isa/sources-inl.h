// The kernels of one instruction set, and its table of them. An instruction set has two sources, so that two
// CPUs share the compilation: kernels_*.cc makes the table; quant_*.cc, which defines SLUICE_QUANT_PRODUCTS,
// has the products of quantized rows with tokens, which take longest to compile.
//
// Included by isa_avx2-inl.h, isa_avx2vnni-inl.h and isa_avx512-inl.h.
//
// Thread safety: pure functions.
#ifndef SLUICE_ISA
#error "included by isa_*-inl.h only"
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
