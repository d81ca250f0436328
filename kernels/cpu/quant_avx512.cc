// The products of quantized rows for AVX-512.

#define SLUICE_QUANT_PRODUCTS
#include "kernels/cpu/isa_avx512-inl.h"
