// Dot products of quantized rows with many tokens (ARITHMETIC.md 2 b): as many rows as a register has lanes
// are unpacked once, four codes of each row in its lane; every token then costs one multiplication for all of
// them, and no folding. Lane g mod 8 of a dot is one lane of register g mod 8 of its rows, so the sums are
// those of QuantDot, to the bit.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// Sums over unpacked codes for many tokens, shared by this file and many_down-inl.h: a word of four
// codes for each lane, so that a register times four values of a token gives a partial sum in each lane.

// Tokens and registers of codes in one pass over the codes: their sums, the codes and a token's values fill
// the registers. Two registers of codes halve the loads of token values.
inline constexpr uint32_t kQuadTokens = kNative == 16 ? 12 : 6;
inline constexpr uint32_t kQuadRegisters = kNative == 16 ? 2 : 1;

// Calls function.operator()<T>() for the smallest even T >= `tokens`, at most kQuadTokens.
template <uint32_t T = kQuadTokens, class Function>
SLUICE_INLINE void WithTokens(uint32_t tokens, const Function& function) {
  if constexpr (T > 2) {
    if (tokens <= T - 2) {
      return WithTokens<T - 2>(tokens, function);
    }
  }
  function.template operator()<T>();
}

// Layout of codes and values: words from quad to quad and from register to register, bytes from token to
// token and from quad to quad.
struct QuadLayout {
  uint32_t quad;
  uint32_t a_register;
  uint32_t token;
  uint32_t token_quad;
};

// Adds kCount quads, one after the other, to the sums.
template <QuantKind kKind, uint32_t T, uint32_t R, QuadLayout kLayout, uint32_t kCount>
SLUICE_INLINE void AddQuads(const int32_t* codes, const int8_t* values, ByteSum<kKind> (&sums)[R][T]) {
  SLUICE_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    NInt w[R];
    SLUICE_UNROLL
    for (uint32_t r = 0; r < R; ++r) {
      w[r] = NIntLoad(codes + i * kLayout.quad + r * kLayout.a_register);
    }
    SLUICE_UNROLL
    for (uint32_t t = 0; t < T; ++t) {
      const NInt x = NFourInAll(values + i * kLayout.token_quad + t * kLayout.token);
      SLUICE_UNROLL
      for (uint32_t r = 0; r < R; ++r) {
        sums[r][t].Add(w[r], x);
        // Without this GCC 12 turns a chain of sums into a tree, and has no registers for its leaves.
        asm("" : SLUICE_IN_REGISTER(sums[r][t].sum));
      }
    }
  }
}

// Computes for T tokens and R registers of codes: out[register * T + token] = the sums over `quads` quads.
// Not inlined, so that it has all registers: inlined, GCC 12 moves the sums between registers and memory in
// the loop.
template <QuantKind kKind, uint32_t T, uint32_t R, QuadLayout kLayout>
__attribute__((noinline)) void SumQuads(const int32_t* codes, uint32_t quads, const int8_t* values,
                                        NInt* out) {
  constexpr uint32_t kPiece = kQuadPiece<kKind>;
  static_assert(kPiece <= kMaxAdds<kKind>);
  ByteSum<kKind> sums[R][T];
  NInt totals[R][T];
  SLUICE_UNROLL
  for (uint32_t i = 0; i < R * T; ++i) {
    totals[i / T][i % T] = NIntZero();
  }
  const auto begin = [&] {
    SLUICE_UNROLL
    for (uint32_t i = 0; i < R * T; ++i) {
      sums[i / T][i % T].Begin(totals[i / T][i % T]);
    }
  };
  const auto end = [&] {
    SLUICE_UNROLL
    for (uint32_t i = 0; i < R * T; ++i) {
      totals[i / T][i % T] = sums[i / T][i % T].End(totals[i / T][i % T]);
    }
  };
  uint32_t q = 0;
  if constexpr (kPiece == 0) {
    begin();
    for (; q < quads; ++q, codes += kLayout.quad, values += kLayout.token_quad) {
      AddQuads<kKind, T, R, kLayout, 1>(codes, values, sums);
    }
    end();
  } else {
    for (; q + kPiece <= quads; q += kPiece) {
      begin();
      AddQuads<kKind, T, R, kLayout, kPiece>(codes, values, sums);
      end();
      codes += kPiece * kLayout.quad;
      values += kPiece * kLayout.token_quad;
    }
    for (; q < quads; ++q, codes += kLayout.quad, values += kLayout.token_quad) {
      begin();
      AddQuads<kKind, T, R, kLayout, 1>(codes, values, sums);
      end();
    }
  }
  SLUICE_UNROLL
  for (uint32_t i = 0; i < R * T; ++i) {
    out[i] = totals[i / T][i % T];
  }
}
