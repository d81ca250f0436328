// Dot products of quantized rows with many tokens (ARITHMETIC.md 2 b): as many rows as a register has lanes
// are unpacked once, their codes interleaved in pairs so that a register holds one pair of each row; every
// token then costs one multiplication for all of them, and no folding. Lane g mod 8 of a dot is one lane of
// register g mod 8 of its rows, so the sums are those of QuantDot, to the bit.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

inline constexpr uint32_t kGemmQuantRows = kNative;
// Of one pass over the unpacked codes: their sums, a register of codes and some more fill the registers.
inline constexpr uint32_t kGemmQuantTokens = kNative == 16 ? 12 : 6;

// Rows as the passes read them, in the call's scratch memory.
struct UnpackedRows {
  int32_t* codes = nullptr;  // [pair of codes][row]
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

// All units of eight rows, which are rows [first, first + 8) of the unpacked ones.
template <QuantKind kKind>
void UnpackCodes(const RowShape& shape, const uint8_t* const* w, uint32_t first, int32_t* out) {
  const uint32_t units = (shape.cols + 15) / 16;
  for (uint32_t u = 0; u < units; ++u) {
    __m256i rows[8];
    for (uint32_t r = 0; r < 8; ++r) {
      rows[r] = UnitOf<kKind>(shape, w[r], u);
    }
    __m256i pairs[8];
    Transpose8(rows, pairs);
    for (uint32_t p = 0; p < 8; ++p) {
      int32_t* place = out + (uint64_t{u} * 8 + p) * kGemmQuantRows + first;
      _mm256_store_si256(reinterpret_cast<__m256i*>(place), pairs[p]);
    }
  }
}

// Their scales, or zeros.
template <QuantKind kKind, bool kZeros>
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
      _mm256_store_ps(out + uint64_t{g + i} * kGemmQuantRows + first, _mm256_castsi256_ps(groups[i]));
    }
  }
}

inline NInt TwoCodes(const int16_t* codes) {
  int32_t pair = 0;
  __builtin_memcpy(&pair, codes, sizeof pair);
  return NIntSet1(pair);
}

// The tree over the lanes of all rows of a token, closed; lanes: [8][row].
inline N TotalOfRows(const float* lanes) {
  N s[4];
  for (int i = 0; i < 4; ++i) {
    s[i] = NAdd(NLoad(lanes + i * kNative), NLoad(lanes + (i + 4) * kNative));
  }
  return NAdd(NAdd(NAdd(s[0], s[2]), NAdd(s[1], s[3])), NZero());
}

// The unpacked rows for T tokens; totals: [token][row].
template <uint32_t T>
void MultiplyTokens(const RowShape& shape, const QuantRow* x, const UnpackedRows& w, float* totals) {
  const uint32_t per_group = shape.group / 16;
  const uint32_t units = (shape.cols + 15) / 16;
  alignas(64) float lanes[T][8 * kNative] = {};
  for (uint32_t g = 0; g < shape.groups; ++g) {
    const uint32_t first = g * per_group;
    const uint32_t pairs = (units - first < per_group ? units - first : per_group) * 8;
    const int32_t* codes = w.codes + uint64_t{first} * 8 * kNative;
    NInt sums[T];
    for (uint32_t t = 0; t < T; ++t) {
      sums[t] = NIntZero();
    }
    // Else the addresses of the tokens' codes are loaded again for every pair.
    SLUICE_UNROLL_BY_8
    for (uint32_t p = 0; p < pairs; ++p) {
      const NInt rows = NIntLoad(codes + p * kNative);
      SLUICE_UNROLL
      for (uint32_t t = 0; t < T; ++t) {
        sums[t] = NAddProducts(sums[t], rows, TwoCodes(x[t].codes + first * 16 + 2 * p));
      }
    }
    const N scales = NLoad(w.scales + uint64_t{g} * kNative);
    const N zeros = NLoad(w.zeros + uint64_t{g} * kNative);
    for (uint32_t t = 0; t < T; ++t) {
      float* lane = lanes[t] + g % 8 * kNative;
      const N term = NNegFma(zeros, NSet1(x[t].sums[g]), NFromInt(sums[t]));
      NStore(lane, NFma(NMul(scales, NSet1(x[t].scales[g])), term, NLoad(lane)));
    }
  }
  for (uint32_t t = 0; t < T; ++t) {
    NStore(totals + t * kNative, TotalOfRows(lanes[t]));
  }
}

// The same for `tokens` of them, 1 to T.
template <uint32_t T>
void MultiplyUpTo(uint32_t tokens, const RowShape& shape, const QuantRow* x, const UnpackedRows& w,
                  float* totals) {
  if constexpr (T > 1) {
    if (tokens < T) {
      MultiplyUpTo<T - 1>(tokens, shape, x, w, totals);
      return;
    }
  }
  MultiplyTokens<T>(shape, x, w, totals);
}

template <QuantKind kKind>
void UnpackRows(const QuantDotCall& call, uint32_t first, uint32_t rows, const UnpackedRows& out) {
  for (uint32_t r = 0; r < kGemmQuantRows; r += 8) {
    const uint8_t* w[8];
    for (uint32_t i = 0; i < 8; ++i) {  // what is not there is the last row again
      w[i] = call.w[first + (r + i < rows ? r + i : rows - 1)];
    }
    UnpackCodes<kKind>(call.shape, w, r, out.codes);
    UnpackMeta<kKind, false>(call.shape, w, r, out.scales);
    UnpackMeta<kKind, true>(call.shape, w, r, out.zeros);
  }
}

template <QuantKind kKind>
void QuantGemm(const QuantDotCall& call) {
  const uint64_t words = uint64_t{(call.shape.cols + 15) / 16} * 8 * kGemmQuantRows;
  const uint64_t meta = uint64_t{(call.shape.groups + 7) / 8} * 8 * kGemmQuantRows;
  const UnpackedRows unpacked{reinterpret_cast<int32_t*>(call.scratch), call.scratch + words,
                              call.scratch + words + meta};
  const uint32_t passes = (call.tokens + kGemmQuantTokens - 1) / kGemmQuantTokens;
  for (uint32_t r = 0; r < call.rows; r += kGemmQuantRows) {
    const uint32_t rows = call.rows - r < kGemmQuantRows ? call.rows - r : kGemmQuantRows;
    UnpackRows<kKind>(call, r, rows, unpacked);
    for (uint32_t pass = 0; pass < passes; ++pass) {  // as equal as they can be
      const uint32_t first = call.tokens * pass / passes;
      const uint32_t tokens = call.tokens * (pass + 1) / passes - first;
      alignas(64) float totals[kGemmQuantTokens * kGemmQuantRows];
      MultiplyUpTo<kGemmQuantTokens>(tokens, call.shape, call.x + first, unpacked, totals);
      for (uint32_t t = 0; t < tokens; ++t) {
        __builtin_memcpy(call.y[first + t] + call.first + r, totals + t * kGemmQuantRows,
                         rows * sizeof(float));
      }
    }
  }
}
