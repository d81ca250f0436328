// The products of quantized rows for AVX-512.
#define SLUICE_PART "kernels/host/isa/quant_table-inl.h"
#include "kernels/host/isa/avx512-inl.h"
