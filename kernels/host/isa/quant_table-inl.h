template <QuantKind kKind>
void SetQuantProducts(KernelTable* table) {
  const int i = static_cast<int>(kKind);
  table->quant_dot[i] = QuantDot<kKind>;
  table->in_halves[i] = kInHalves<kKind>;
  table->quant_gemm[i] = QuantGemm<kKind>;
  table->quant_decode[i] = QuantDecode<kKind>;
}

void SetQuantProducts(KernelTable* table) {
  table->quantize = Quantize;
  table->pack_quant = PackPanels;
  SetQuantProducts<QuantKind::kQ8>(table);
  SetQuantProducts<QuantKind::kQ4>(table);
  SetQuantProducts<QuantKind::kQ3>(table);
  SetQuantProducts<QuantKind::kQ2>(table);
  SetQuantProducts<QuantKind::kMxfp4>(table);
  SetQuantProducts<QuantKind::kQ5>(table);
  SetQuantProducts<QuantKind::kQ6>(table);
  SetQuantProducts<QuantKind::kIq4>(table);
  static_assert(kQuantKinds == 8);
}

#endif  // SLUICE_QUANT_PRODUCTS
