// The kernel table of an instruction set that is AVX2 with other products of bytes: it has its own kernels
// for quantized rows, all others are AVX2's. Included by kernels_avx2vnni.cc.
//
// Thread safety: pure functions.
#ifndef SLUICE_ISA
#error "included by kernels_avx2vnni.cc only"
#endif

// clang-format off
#include "kernels/host/isa/sources-inl.h"
#include "kernels/host/isa/quant_downs-inl.h"
// clang-format on

inline KernelTable MakeTable(const char* name) {
  KernelTable table = Avx2Kernels();
  table.name = name;
  SetQuantProducts(&table);
  SetQuantDowns(&table);
  return table;
}
