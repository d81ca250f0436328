// The products of quantized rows for AVX2, FMA and F16C.
#define SLUICE_PART "kernels/host/isa/quant_table-inl.h"
#include "kernels/host/isa/avx2-inl.h"
