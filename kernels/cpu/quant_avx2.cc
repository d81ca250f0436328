// The products of quantized rows for AVX2, FMA and F16C.

#define SLUICE_QUANT_PRODUCTS
#include "kernels/cpu/isa_avx2-inl.h"
