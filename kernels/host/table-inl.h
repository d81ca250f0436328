// The kernel table of one instruction set: includes every kernel and lists it.
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure functions.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// In this order: later ones use earlier ones.
// clang-format off
#include "kernels/host/vec-inl.h"
#include "kernels/host/rows-inl.h"
#include "kernels/host/dot-inl.h"
#include "kernels/host/down-inl.h"
#include "kernels/host/q8-inl.h"
#include "kernels/host/span-inl.h"
// clang-format on

template <class Row>
void SetRowKernels(RowKind kind, KernelTable* table) {
  const int i = static_cast<int>(kind);
  table->dot[i] = Dot<Row>;
  table->gemm[i] = Gemm<Row>;
  table->down[i] = Down<Row>;
  table->decode[i] = Decode<Row>;
}

inline KernelTable MakeTable(const char* name) {
  KernelTable table;
  table.name = name;
  table.gemm_tokens = kTileTokens;
  SetRowKernels<Bf16Row>(RowKind::kBf16, &table);
  SetRowKernels<F16Row>(RowKind::kF16, &table);
  SetRowKernels<F32Row>(RowKind::kF32, &table);
  table.pack = Pack;
  table.quantize = Quantize;
  table.dot_q8 = DotQ8;
  table.down_q8 = DownQ8;
  table.span = Span;
  table.rms_norm = RmsNorm;
  table.silu_mul = SiluMulRow;
  table.add = AddRows;
  table.accumulate = Accumulate;
  table.combine = Combine;
  table.exp_sum = ExpSum;
  table.largest = Largest;
  table.scale_add = ScaleAdd;
  table.divide = Divide;
  table.rope = Rope;
  table.store_kv = StoreKv;
  return table;
}
