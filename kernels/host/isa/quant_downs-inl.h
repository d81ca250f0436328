// Sets the weighted sums of quantized rows in a kernel table. Included by the instruction sets' kernels_*.cc,
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
  // q5, q6 and iq4 have no weighted sums, because only block encodings use them.
  SetQuantDown<QuantKind::kQ8>(table);
  SetQuantDown<QuantKind::kQ4>(table);
  SetQuantDown<QuantKind::kQ3>(table);
  SetQuantDown<QuantKind::kQ2>(table);
  SetQuantDown<QuantKind::kMxfp4>(table);
}

// Defined by quant_table-inl.h.
void SetQuantProducts(KernelTable* table);
