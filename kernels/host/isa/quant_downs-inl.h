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

// Defined by the instruction set's quant_*.cc.
void SetQuantProducts(KernelTable* table);
