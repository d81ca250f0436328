// The products of quantized rows for AVX2 with AVX-VNNI.

#define SLUICE_QUANT_PRODUCTS
#include "kernels/cpu/isa_avx2vnni-inl.h"
