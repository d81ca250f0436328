// Sums over unpacked codes for many tokens, which quant_gemm-inl.h and many_down-inl.h have in common: a word
// of four codes for each lane, so that a register times four values of a token gives a partial sum in each
// lane.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the arguments name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// Of one pass over the codes: sums of so many tokens, a register of codes and some more fill the registers.
inline constexpr uint32_t kQuadTokens = kNative == 16 ? 12 : 6;

// Calls function.operator()<T>() for the least even T that `tokens` fit, at most kQuadTokens.
template <uint32_t T = kQuadTokens, class Function>
SLUICE_INLINE void WithTokens(uint32_t tokens, const Function& function) {
  if constexpr (T > 2) {
    if (tokens <= T - 2) {
      return WithTokens<T - 2>(tokens, function);
    }
  }
  function.template operator()<T>();
}

// For T tokens: sums[t] = the products of `quads` registers of codes with as many times four values of
// values[t]. Where kMostAdds limits them they are added up piece by piece.
template <QuantKind kKind, uint32_t T, uint32_t kStride>
SLUICE_INLINE void SumQuads(const int32_t* codes, uint32_t quads, const int8_t* const* values, uint64_t first,
                            NInt* sums) {
  constexpr uint32_t kPiece = kMostAdds<kKind> >= 8 ? 8 : kMostAdds<kKind> >= 4 ? 4 : 2;
  static_assert(kPiece <= kMostAdds<kKind>);
  SLUICE_UNROLL
  for (uint32_t t = 0; t < T; ++t) {
    sums[t] = NIntZero();
  }
  uint32_t q = 0;
  for (; q + kPiece <= quads; q += kPiece) {
    ByteSum<kKind> pieces[T];
    SLUICE_UNROLL
    for (uint32_t t = 0; t < T; ++t) {
      pieces[t].Begin(sums[t]);
    }
    SLUICE_UNROLL
    for (uint32_t i = 0; i < kPiece; ++i) {
      const NInt w = NIntLoad(codes + (q + i) * kStride);
      SLUICE_UNROLL
      for (uint32_t t = 0; t < T; ++t) {
        pieces[t].AddFour(w, values[t] + first + (q + i) * 4);
      }
    }
    SLUICE_UNROLL
    for (uint32_t t = 0; t < T; ++t) {
      sums[t] = pieces[t].End(sums[t]);
    }
  }
  for (; q < quads; ++q) {
    const NInt w = NIntLoad(codes + q * kStride);
    SLUICE_UNROLL
    for (uint32_t t = 0; t < T; ++t) {
      ByteSum<kKind> one;
      one.Begin(sums[t]);
      one.AddFour(w, values[t] + first + q * 4);
      sums[t] = one.End(sums[t]);
    }
  }
}
