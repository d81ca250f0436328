// The weighted sums of quantized rows, set in a kernel table. Included by the instruction sets' kernels_*.cc,
// after the kernels.
//
// Thread safety: pure functions.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

template <QuantKind kKind>
void SetQuantDown(KernelTable* table) {
  table->quant_down[static_cast<int>(kKind)] = QuantDown<kKind>;
}

inline void SetQuantDowns(KernelTable* table) {
  // Of q5, q6 and iq4, which only block encodings have, there are no weighted sums.
  SetQuantDown<QuantKind::kQ8>(table);
  SetQuantDown<QuantKind::kQ4>(table);
  SetQuantDown<QuantKind::kQ3>(table);
  SetQuantDown<QuantKind::kQ2>(table);
  SetQuantDown<QuantKind::kMxfp4>(table);
}

// Defined by quant_table-inl.h.
void SetQuantProducts(KernelTable* table);
