#if !defined(SLUICE_QUANT_PRODUCTS)

// Weighted sums of quantized rows: chooses the kernel by the number of tokens and the group size.

// Tokens from which codes are unpacked once for all of them. Panels are fast with AVX-512, and for two bits
// it never gained (Zen 4, groups of 64, both in turn; q3 and mxfp4 were not measured).
template <QuantKind kKind>
inline constexpr uint32_t kManyTokens = kNative == 8              ? 6
                                        : kKind == QuantKind::kQ2 ? UINT32_MAX
                                                                  : 16;

template <QuantKind kKind>
void QuantDown(const QuantDownCall& call) {
  if constexpr (kManyTokens<kKind> != UINT32_MAX) {
    if (call.tokens >= kManyTokens<kKind> && call.fetch == nullptr) {
      return ManyDown<kKind>(call);
    }
  }
  if constexpr (kKind == QuantKind::kMxfp4) {
    return QuantDownRows<kKind, 2>(call);
  } else {
    switch (call.shape.group) {
      case 16:
        return QuantDownRows<kKind, 1>(call);
      case 32:
        return QuantDownRows<kKind, 2>(call);
      case 64:
        return QuantDownRows<kKind, 4>(call);
      case 128:
        return QuantDownRows<kKind, 8>(call);
      default:
        return QuantDownRows<kKind, 0>(call);
    }
  }
}
