// The products of quantized rows for AVX2, FMA and F16C.
#define SLUICE_QUANT_PRODUCTS
#include "kernels/host/isa/avx2-inl.h"
