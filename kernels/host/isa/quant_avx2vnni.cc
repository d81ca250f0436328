// The products of quantized rows for AVX2 with AVX-VNNI.
#define SLUICE_PART "kernels/host/isa/quant_table-inl.h"
#include "kernels/host/isa/avx2vnni-inl.h"
