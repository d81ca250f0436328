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

// Sums over unpacked codes for many tokens, shared by this file and quant_many_down-inl.h: a word of four
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

inline constexpr uint32_t kGemmQuantRows = kQuadRegisters * kNative;

// Rows as the passes read them, in the call's scratch memory.
struct UnpackedRows {
  int32_t* codes = nullptr;  // [four codes][row]
  float* scales = nullptr;   // [group][row]
  float* zeros = nullptr;
};

inline void Transpose8(const __m256i* rows, __m256i* out) {
  __m256i pairs[8];
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    pairs[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
  __m256i quads[8];
  for (int i = 0; i < 2; ++i) {
    quads[4 * i] = _mm256_unpacklo_epi64(pairs[4 * i], pairs[4 * i + 2]);
    quads[4 * i + 1] = _mm256_unpackhi_epi64(pairs[4 * i], pairs[4 * i + 2]);
    quads[4 * i + 2] = _mm256_unpacklo_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
    quads[4 * i + 3] = _mm256_unpackhi_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20);
    out[i + 4] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31);
  }
}

// Unpacks all blocks of eight rows, which are rows [first, first + 8) of the kRows unpacked ones. The blocks
// are transposed as they are stored: field f of word 0 of each row, in the order of EvenOdd(), is four codes
// of unit f, and so on. Codes of the rows `next` are fetched meanwhile.
template <QuantKind kKind, uint32_t kRows>
void UnpackCodes(const RowShape& shape, const uint8_t* const* w, const uint8_t* const* next, uint32_t first,
                 int32_t* out) {
  constexpr uint32_t kFields = kByteFields<kKind>;
  // For word i: its unit (without the field's offset), and the index of its quad of codes.
  constexpr uint32_t kUnitOf[8] = {0, 0, kFields, kFields, 0, 0, kFields, kFields};
  constexpr uint32_t kQuadOf[8] = {0, 1, 0, 1, 2, 3, 2, 3};
  for (uint32_t b = 0; b * 32 * kFields < shape.cols; ++b) {
    __m256i bytes[8];
    for (uint32_t r = 0; r < 8; ++r) {
      if (b % 2 == 0) {
        _mm_prefetch(reinterpret_cast<const char*>(next[r] + uint64_t{b} * 32), _MM_HINT_T1);
      }
      bytes[r] = EvenOdd(LoadBlock(w[r] + uint64_t{b} * 32));
    }
    __m256i words[8];
    Transpose8(bytes, words);
    __m256i thirds[8];
    if constexpr (kKind == QuantKind::kQ3) {
      for (uint32_t r = 0; r < 8; ++r) {
        bytes[r] = ThirdBits(LoadBlock(w[r] + shape.high_plane + uint64_t{b / 2} * 32), b % 2 != 0);
      }
      Transpose8(bytes, thirds);
    } else if constexpr (kHighBits<kKind> != 0) {
      for (uint32_t r = 0; r < 8; ++r) {
        bytes[r] = EvenOdd(UpperBits<kKind>(w[r] + shape.high_plane, b));
      }
      Transpose8(bytes, thirds);
    }
    SLUICE_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      __m256i fields[kFields];
      ByteFields<kKind>(words[i], kHighBits<kKind> != 0 ? thirds[i] : words[i], fields);
      SLUICE_UNROLL
      for (uint32_t f = 0; f < kFields; ++f) {
        const uint32_t quad = (b * 2 * kFields + kUnitOf[i] + f) * 4 + kQuadOf[i];
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + uint64_t{quad} * kRows + first), fields[f]);
      }
    }
  }
}

// Unpacks their scales, or zeros.
template <QuantKind kKind, uint32_t kRows, bool kZeros>
void UnpackMeta(const RowShape& shape, const uint8_t* const* w, uint32_t first, float* out) {
  for (uint32_t g = 0; g < shape.groups; g += 8) {
    const uint32_t count = shape.groups - g < 8 ? shape.groups - g : 8;
    __m256i rows[8];
    for (uint32_t r = 0; r < 8; ++r) {
      rows[r] = _mm256_castps_si256(kZeros ? ZerosOf<kKind>(shape, w[r], g, count)
                                           : ScalesOf<kKind>(shape, w[r], g, count));
    }
    __m256i groups[8];
    Transpose8(rows, groups);
    for (uint32_t i = 0; i < 8; ++i) {
      _mm256_store_ps(out + uint64_t{g + i} * kRows + first, _mm256_castsi256_ps(groups[i]));
    }
  }
}

// The tree over the lanes of a register of rows of a token, closed; kStride floats from lane to lane.
template <uint32_t kStride>
inline N TotalOfRows(const float* lanes) {
  N s[4];
  for (uint32_t i = 0; i < 4; ++i) {
    s[i] = NAdd(NLoad(lanes + i * kStride), NLoad(lanes + (i + 4) * kStride));
  }
  return NAdd(NAdd(NAdd(s[0], s[2]), NAdd(s[1], s[3])), NZero());
}

// The tokens of a pass side by side: four values of each of kQuadTokens, then the next four; scales and sums
// of each for a group, then the next group's.
struct TokenPanel {
  const int8_t* codes;
  const float* scales;
  const float* sums;
};
inline uint64_t PanelBytes(uint32_t cols, uint32_t groups) {
  return RoundUp(kQuadTokens * (RoundUp(cols, 4) + 8 * groups), 64);
}
inline TokenPanel PanelAt(const int8_t* packed, uint32_t cols, uint32_t groups, uint32_t pass) {
  const int8_t* codes = packed + pass * PanelBytes(cols, groups);
  const float* scales = reinterpret_cast<const float*>(codes + kQuadTokens * RoundUp(cols, 4));
  return {codes, scales, scales + kQuadTokens * groups};
}

// Number of passes, which are as equal as possible.
inline uint32_t PassesOf(uint32_t tokens) { return (tokens + kQuadTokens - 1) / kQuadTokens; }
inline uint32_t FirstOfPass(uint32_t tokens, uint32_t pass) {
  return static_cast<uint32_t>(uint64_t{tokens} * pass / PassesOf(tokens));
}

// Packs four words of each of four tokens, from word k on, into a panel.
SLUICE_INLINE void PackFour(const int8_t* const* x, uint32_t k, int8_t* out) {
  __m128i rows[4];
  SLUICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x[i] + k));
  }
  const __m128i a = _mm_unpacklo_epi32(rows[0], rows[1]);
  const __m128i b = _mm_unpackhi_epi32(rows[0], rows[1]);
  const __m128i c = _mm_unpacklo_epi32(rows[2], rows[3]);
  const __m128i d = _mm_unpackhi_epi32(rows[2], rows[3]);
  const __m128i words[4] = {_mm_unpacklo_epi64(a, c), _mm_unpackhi_epi64(a, c), _mm_unpacklo_epi64(b, d),
                            _mm_unpackhi_epi64(b, d)};
  SLUICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * kQuadTokens * 4), words[i]);
  }
}

// KernelTable::pack_quant. Missing tokens of a pass repeat its last token.
inline void PackPanels(const QuantPackCall& call) {
  const uint32_t groups = (call.cols + call.group - 1) / call.group;
  for (uint32_t pass = 0; pass < PassesOf(call.tokens); ++pass) {
    const TokenPanel panel = PanelAt(call.packed, call.cols, groups, pass);
    int8_t* codes = call.packed + (panel.codes - call.packed);
    float* scales = reinterpret_cast<float*>(codes + kQuadTokens * RoundUp(call.cols, 4));
    const uint32_t first = FirstOfPass(call.tokens, pass);
    const uint32_t tokens = FirstOfPass(call.tokens, pass + 1) - first;
    const int8_t* x[kQuadTokens];
    for (uint32_t t = 0; t < kQuadTokens; ++t) {
      const QuantRow& row = call.x[first + (t < tokens ? t : tokens - 1)];
      x[t] = row.codes;
      for (uint32_t g = 0; g < groups; ++g) {
        scales[g * kQuadTokens + t] = row.scales[g];
        scales[(groups + g) * kQuadTokens + t] = row.sums[g];
      }
    }
    uint32_t k = 0;
    for (; k + 16 <= call.cols; k += 16) {
      uint32_t t = 0;
      for (; t + 4 <= kQuadTokens; t += 4) {
        PackFour(x + t, k, codes + k * kQuadTokens + t * 4);
      }
      for (; t < kQuadTokens; ++t) {
        for (uint32_t i = 0; i < 16; i += 4) {
          __builtin_memcpy(codes + (k + i) * kQuadTokens + t * 4, x[t] + k + i, 4);
        }
      }
    }
    for (; k < call.cols; k += 4) {
      for (uint32_t t = 0; t < kQuadTokens; ++t) {
        __builtin_memcpy(codes + k * kQuadTokens + t * 4, x[t] + k, 4);
      }
    }
  }
}

// Groups of one lane that are summed before they are added to it, so that the lane's registers are loaded and
// stored less often.
inline constexpr uint32_t kGroupsAtOnce = 4;

// Returns `lane` plus the term of a group (ARITHMETIC.md 2 b), for rows with zeros, or with mins in their
// place.
SLUICE_INLINE N AddTerm(bool mins, N scale, N zero, N x_scale, N x_sum, N sum, N lane) {
  if (mins) {
    return NFma(x_scale, NNegFma(zero, x_sum, NMul(scale, sum)), lane);
  }
  return NFma(NMul(scale, x_scale), NNegFma(zero, x_sum, sum), lane);
}

// Adds the terms of kCount groups, g and every eighth after it, to their lane, [token][row]; sums:
// [group][register][token].
template <QuantKind kKind, uint32_t T, uint32_t kCount>
__attribute__((noinline)) void AddTerms(const TokenPanel& x, const UnpackedRows& w, bool mins, uint32_t g,
                                        bool first, const NInt* sums, float* lane) {
  N scales[kCount][kQuadRegisters];
  N zeros[kCount][kQuadRegisters];
  SLUICE_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    SLUICE_UNROLL
    for (uint32_t r = 0; r < kQuadRegisters; ++r) {
      const uint64_t place = uint64_t{g + 8 * i} * kGemmQuantRows + r * kNative;
      scales[i][r] = NLoad(w.scales + place);
      zeros[i][r] = NLoad(w.zeros + place);
    }
  }
  const float* x_scales = x.scales + g * kQuadTokens;
  const float* x_sums = x.sums + g * kQuadTokens;
  for (uint32_t t = 0; t < T; ++t, lane += kGemmQuantRows) {
    N total[kQuadRegisters];
    SLUICE_UNROLL
    for (uint32_t r = 0; r < kQuadRegisters; ++r) {
      total[r] = first ? NZero() : NLoad(lane + r * kNative);
    }
    SLUICE_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      const N x_sum = NSet1(x_sums[i * 8 * kQuadTokens + t]);
      const N x_scale = NSet1(x_scales[i * 8 * kQuadTokens + t]);
      SLUICE_UNROLL
      for (uint32_t r = 0; r < kQuadRegisters; ++r) {
        const N sum = FloatSum<kKind>(sums[(i * kQuadRegisters + r) * T + t], x_sum);
        total[r] = AddTerm(mins, scales[i][r], zeros[i][r], x_scale, x_sum, sum, total[r]);
      }
    }
    SLUICE_UNROLL
    for (uint32_t r = 0; r < kQuadRegisters; ++r) {
      NStore(lane + r * kNative, total[r]);
    }
  }
}

// Makes the groups' sums, then adds their terms; sums: room for kGroupsAtOnce groups.
template <QuantKind kKind, uint32_t T, uint32_t kCount>
void SumAndAddGroups(const RowShape& shape, const TokenPanel& x, const UnpackedRows& w, uint32_t g,
                     bool first, NInt* sums, float* lane) {
  constexpr QuadLayout kLayout = {kGemmQuantRows, kNative, 4, 4 * kQuadTokens};
  const uint32_t per_group = shape.group / 4;
  const uint32_t quads = (shape.cols + 3) / 4;
  for (uint32_t i = 0; i < kCount; ++i) {
    const uint32_t quad = (g + 8 * i) * per_group;
    SumQuads<kKind, T, kQuadRegisters, kLayout>(
        w.codes + uint64_t{quad} * kGemmQuantRows, quads - quad < per_group ? quads - quad : per_group,
        x.codes + uint64_t{quad} * kLayout.token_quad, sums + i * kQuadRegisters * T);
  }
  AddTerms<kKind, T, kCount>(x, w, HasMins(shape.meta), g, first, sums, lane);
}

// Multiplies the unpacked rows with T tokens of a panel; totals: [token][row].
template <QuantKind kKind, uint32_t T>
void MultiplyTokens(const RowShape& shape, const TokenPanel& x, const UnpackedRows& w, float* totals) {
  constexpr uint32_t kLaneFloats = T * kGemmQuantRows;
  alignas(64) float lanes[8 * kLaneFloats];
  alignas(64) NInt sums[kGroupsAtOnce * kQuadRegisters * T];
  for (uint32_t lane = 0; lane < 8; ++lane) {
    float* values = lanes + lane * kLaneFloats;
    uint32_t g = lane;
    if (g >= shape.groups) {
      __builtin_memset(values, 0, kLaneFloats * sizeof(float));
    }
    for (; g + 8 * (kGroupsAtOnce - 1) < shape.groups; g += 8 * kGroupsAtOnce) {
      SumAndAddGroups<kKind, T, kGroupsAtOnce>(shape, x, w, g, g == lane, sums, values);
    }
    for (; g < shape.groups; g += 8) {
      SumAndAddGroups<kKind, T, 1>(shape, x, w, g, g == lane, sums, values);
    }
  }
  for (uint32_t row = 0; row < kLaneFloats; row += kNative) {
    NStore(totals + row, TotalOfRows<kLaneFloats>(lanes + row));
  }
}

template <QuantKind kKind, uint32_t kRows>
void UnpackRows(const QuantDotCall& call, uint32_t first, uint32_t rows, const UnpackedRows& out) {
  const uint32_t listed = call.prefetch.listed > call.rows ? call.prefetch.listed : call.rows;
  for (uint32_t r = 0; r < kRows; r += 8) {
    const uint8_t* w[8];
    const uint8_t* next[8];
    for (uint32_t i = 0; i < 8; ++i) {  // missing rows repeat the last row
      w[i] = call.w[first + (r + i < rows ? r + i : rows - 1)];
      next[i] = call.w[first + r + i + 8 < listed ? first + r + i + 8 : listed - 1];
    }
    UnpackCodes<kKind, kRows>(call.shape, w, next, r, out.codes);
    UnpackMeta<kKind, kRows, false>(call.shape, w, r, out.scales);
    UnpackMeta<kKind, kRows, true>(call.shape, w, r, out.zeros);
  }
}

// The location of kRows unpacked rows in the call's scratch memory.
template <uint32_t kRows>
UnpackedRows UnpackedIn(const QuantDotCall& call) {
  const uint64_t words = uint64_t{RoundUp(call.shape.cols, kCodeAlign / 2) / 4} * kRows;
  const uint64_t meta = uint64_t{RoundUp(call.shape.groups, 8)} * kRows;
  return {reinterpret_cast<int32_t*>(call.scratch), call.scratch + words, call.scratch + words + meta};
}

template <QuantKind kKind>
void QuantGemm(const QuantDotCall& call) {
  const UnpackedRows unpacked = UnpackedIn<kGemmQuantRows>(call);
  for (uint32_t r = 0; r < call.rows; r += kGemmQuantRows) {
    const uint32_t rows = call.rows - r < kGemmQuantRows ? call.rows - r : kGemmQuantRows;
    UnpackRows<kKind, kGemmQuantRows>(call, r, rows, unpacked);
    for (uint32_t pass = 0; pass < PassesOf(call.tokens); ++pass) {
      const uint32_t first = FirstOfPass(call.tokens, pass);
      const uint32_t tokens = FirstOfPass(call.tokens, pass + 1) - first;
      const TokenPanel panel = PanelAt(call.packed, call.shape.cols, call.shape.groups, pass);
      alignas(64) float totals[kQuadTokens * kGemmQuantRows];
      WithTokens(tokens, [&]<uint32_t T>() {
        MultiplyTokens<kSumKind<kKind>, T>(call.shape, panel, unpacked, totals);
      });
      for (uint32_t t = 0; t < tokens; ++t) {
        __builtin_memcpy(call.y[first + t] + call.first + r, totals + t * kGemmQuantRows,
                         rows * sizeof(float));
      }
    }
  }
}
