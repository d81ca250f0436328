// The products of quantized rows for AVX2 with AVX-VNNI.
#define SLUICE_QUANT_PRODUCTS
#include "kernels/host/isa/avx2vnni-inl.h"
