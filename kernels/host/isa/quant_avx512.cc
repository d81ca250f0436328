// The products of quantized rows for AVX-512.
#define SLUICE_QUANT_PRODUCTS
#include "kernels/host/isa/avx512-inl.h"
