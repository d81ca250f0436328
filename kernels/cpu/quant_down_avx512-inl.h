// Weighted sums of quantized rows by panels of columns, with AVX-512: the 32-bit sums of a panel stay in
// registers while its neurons pass. Codes are multiplied as bytes (quant_codes-inl.h): those of four neurons
// lie in one 32-bit lane, which is a column. The sums are exact, so the bits are those of quant_down-inl.h.
//
// A panel is read down its rows before the next one, so the rows should be in the second-level cache. Rows
// fetched by RowFetch are there only for the fetch distance: a panel has as many of them. With the call's
// `prefetch` they are fetched kPanelAhead bytes ahead, as many streams as there are rows.
//
// Included by isa_avx512-inl.h only.
//
// Thread safety: pure but for the memory that the calls name.

#ifndef SLUICE_ISA
#error "included by isa/avx512-inl.h only"
#endif

// True if rows of a kind with groups of kUnits units are added this way.
template <QuantKind kKind, uint32_t kUnits>
inline constexpr bool kDownByPanels = kUnits > 0;

// Blocks of a panel: enough for eight sums where that is a line or two, else one.
template <QuantKind kKind>
inline constexpr uint32_t kPanelBlocks = kKind == QuantKind::kQ8   ? 4
                                         : kKind == QuantKind::kQ4 ? 2
                                                                   : 1;

// The rounded coefficients of one token and one block of neurons. quads[PlaceOf(quad) + group]: of the
// neurons 4 quad to 4 quad + 3, a byte each. Groups are padded to 16.
struct PanelFactors {
  uint32_t* quads;
  uint32_t words;
  float* scales;
  float* zero_sums;
  uint32_t in_halves = 0;  // number of quads, kept in the order of InHalves(); 0: in their own order

  uint32_t PlaceOf(uint32_t quad) const {
    const uint32_t second = (in_halves + 1) / 2;
    const uint32_t place = in_halves == 0 ? quad : quad < second ? 2 * quad : 2 * (quad - second) + 1;
    return place * words;
  }
};

// Scales (or zeros) of the groups [g, g + 16) of which n exist; zeros behind them.
template <QuantKind kKind, bool kZeros>
SLUICE_INLINE __m512 WideMeta(const RowShape& shape, const uint8_t* w, uint32_t g, uint32_t n) {
  if (shape.super_group == 0 && kKind != QuantKind::kMxfp4) {
    const uint8_t* p = w + (kZeros ? shape.zeros : shape.scales) + uint64_t{g} * 2;
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(static_cast<__mmask16>(0xffffu >> (16 - n)), p));
  }
  const auto eight = [&](uint32_t first, uint32_t count) {
    return kZeros ? ZerosOf<kKind>(shape, w, first, count) : ScalesOf<kKind>(shape, w, first, count);
  };
  const __m256 low = eight(g, n < 8 ? n : 8);
  const __m256 high = n > 8 ? eight(g + 8, n - 8) : _mm256_setzero_ps();
  return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

// Sixteen groups of RoundCoefficients() (quant_down-inl.h). `lines` are fetched meanwhile.
template <QuantKind kKind>
inline void RoundSixteenGroups(const QuantDownCall& call, const float* c, uint32_t g, LinesAhead lines,
                               const PanelFactors& out) {
  const uint32_t count = call.shape.groups - g < 16 ? call.shape.groups - g : 16;
  __m512 d[64];
  __m512 largest = _mm512_setzero_ps();
  for (uint32_t j = 0; j < call.neurons; ++j) {
    d[j] = _mm512_mul_ps(_mm512_set1_ps(c[j]), WideMeta<kKind, false>(call.shape, call.w[j], g, count));
    largest = _mm512_max_ps(largest, _mm512_abs_ps(d[j]));
    lines.Step();
  }
  const __mmask16 some = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(1e-30f), _CMP_NLT_UQ);
  const __m512 full = _mm512_set1_ps(127.0f);
  const __m512 inverse = _mm512_maskz_div_ps(some, full, largest);
  _mm512_storeu_ps(out.scales + g, _mm512_maskz_div_ps(some, largest, full));
  __m512 zero_sum = _mm512_setzero_ps();
  const auto round = [&](uint32_t j) {
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(d[j], inverse));
    zero_sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(q), WideMeta<kKind, true>(call.shape, call.w[j], g, count),
                               zero_sum);
    return q;
  };
  for (uint32_t j = 0; j < call.neurons; j += 4) {
    const __m512i none = _mm512_setzero_si512();
    __m512i q[4];
    q[0] = round(j);
    q[1] = j + 1 < call.neurons ? round(j + 1) : none;
    q[2] = j + 2 < call.neurons ? round(j + 2) : none;
    q[3] = j + 3 < call.neurons ? round(j + 3) : none;
    _mm512_storeu_si512(out.quads + out.PlaceOf(j / 4) + g, NFourBytes(q[0], q[1], q[2], q[3]));
  }
  _mm512_storeu_ps(out.zero_sums + g, _mm512_add_ps(zero_sum, _mm512_setzero_ps()));
}

// A block of 32 bytes of four rows: 32-bit lane i holds the even (odd) byte of word i of each row.
struct FourRows {
  __m512i even;
  __m512i odd;
};

SLUICE_INLINE __m512i TwoBlocks(const uint8_t* a, const uint8_t* b) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(LoadBlock(a)), LoadBlock(b), 1);
}

SLUICE_INLINE FourRows LoadFourRows(const uint8_t* const* w, uint64_t at) {
  const __m512i a = TwoBlocks(w[0] + at, w[2] + at);
  const __m512i b = TwoBlocks(w[1] + at, w[3] + at);
  // Words of rows 0 and 1, and 16 words later of rows 2 and 3: bytes 0-7 and 16-23, then 8-15 and 24-31.
  const __m512i low = _mm512_unpacklo_epi8(a, b);
  const __m512i high = _mm512_unpackhi_epi8(a, b);
  const __m512i even = _mm512_set_epi16(62, 46, 60, 44, 58, 42, 56, 40, 30, 14, 28, 12, 26, 10, 24, 8,  //
                                        54, 38, 52, 36, 50, 34, 48, 32, 22, 6, 20, 4, 18, 2, 16, 0);
  const __m512i odd = _mm512_add_epi16(even, _mm512_set1_epi16(1));
  return {_mm512_permutex2var_epi16(low, even, high), _mm512_permutex2var_epi16(low, odd, high)};
}

// The third bits of the q3 block whose high block begins at `at`: for word i of each row the bits of its even
// byte (the low four of each byte) and of its odd one.
template <bool kOddBlock>
SLUICE_INLINE __m512i LoadThirdBits(const uint8_t* const* w, uint64_t at) {
  const __m512i a = TwoBlocks(w[0] + at, w[2] + at);
  const __m512i b = TwoBlocks(w[1] + at, w[3] + at);
  constexpr __mmask64 kOdd = 0xaaaaaaaaaaaaaaaa;
  const __m512i words = kOddBlock ? _mm512_mask_blend_epi8(kOdd, _mm512_srli_epi16(a, 8), b)
                                  : _mm512_mask_blend_epi8(kOdd, a, _mm512_slli_epi16(b, 8));
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                                         23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, words);
}

// The fields of every byte times 2^PanelShift(field): where they stand, if that saves a shift.
template <QuantKind kKind>
SLUICE_INLINE void PanelFields(__m512i bytes, __m512i third, __m512i* out) {
  if constexpr (kKind == QuantKind::kQ2) {
    out[0] = _mm512_and_si512(bytes, _mm512_set1_epi8(0x03));
    out[1] = _mm512_and_si512(bytes, _mm512_set1_epi8(0x0c));
    out[2] = _mm512_and_si512(bytes, _mm512_set1_epi8(0x30));
    out[3] = _mm512_and_si512(_mm512_srli_epi16(bytes, 6), _mm512_set1_epi8(0x03));
  } else if constexpr (kKind == QuantKind::kQ3) {
    const auto pairs = WithThirdBits(bytes, third);
    out[0] = _mm512_and_si512(pairs.even, _mm512_set1_epi8(0x0f));
    out[1] = _mm512_and_si512(pairs.odd, _mm512_set1_epi8(0x0f));
    out[2] = _mm512_and_si512(pairs.even, _mm512_set1_epi8(0x70));
    out[3] = _mm512_and_si512(pairs.odd, _mm512_set1_epi8(0x70));
  } else {
    ByteFields<kKind>(bytes, third, out);
  }
}
template <QuantKind kKind>
constexpr int PanelShift(uint32_t field) {
  return kKind == QuantKind::kQ2 && field < 3   ? static_cast<int>(2 * field)
         : kKind == QuantKind::kQ3 && field > 1 ? 4
                                                : 0;
}

// sum plus the products of four unsigned bytes of a and four signed ones of b. In place: GCC 12 copies each
// sum before the intrinsic, which costs the loop below a tenth.
SLUICE_INLINE __m512i AddByteProducts(__m512i sum, __m512i a, __m512i b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

// Distance in rows at which a row's part of the panel is prefetched to the first-level cache: the hardware
// does not follow panels. q3 and q2, which take longer for a line, lose by it.
inline constexpr uint32_t kNearRows = 8;

// Tokens that share the codes of a panel: their sixteen sums and the codes fill the registers.
inline constexpr uint32_t kPanelTokens = 2;

// Data shared by a call's panels.
struct Panels {
  const uint8_t* rows[64 + kNearRows];  // padded to a multiple of 4, then the last ones again
  PanelFactors factors[kPanelTokens];   // at the same distance from each other as their coefficients
  uint64_t next_token;                  // words from a token's coefficients to the next one's
  int32_t* sums;                        // [token][column], sums over the earlier rows' panels
  uint64_t sum_words;                   // from a token's sums to the next one's
};

// Some columns of some of the rows.
struct Panel {
  uint32_t first = 0;  // row, a multiple of 4
  uint32_t end = 0;
  uint32_t block = 0;
  bool own = false;          // prefetches the line kPanelAhead bytes ahead of each row
  uint32_t fetch_lines = 0;  // lines that the call fetches meanwhile
};

// Begin of a block's codes and, for q3, third bits in every row, and the coefficients of four rows for its
// groups; those of the next four rows lie PanelFactors::words further.
struct PanelPart {
  uint64_t at;
  uint64_t third_at;
  const uint32_t* quads;
};

// row: a multiple of 4.
template <QuantKind kKind, uint32_t kUnits>
SLUICE_INLINE PanelPart PartAt(const RowShape& shape, const PanelFactors& f, uint32_t row, uint32_t block) {
  const uint64_t place = uint64_t{row / 4} * f.words + block * kBlockUnits<kKind> / kUnits;
  return {uint64_t{block} * 32, shape.high_plane + uint64_t{block / 2} * 32, f.quads + place};
}

template <uint32_t kSums>
SLUICE_INLINE void StartSums(__m512i* sums) {
  SLUICE_UNROLL
  for (uint32_t u = 0; u < kSums; ++u) {
    sums[u] = _mm512_setzero_si512();
  }
}

// Adds four rows' products of kBlocks blocks, the first of them at `part`, to sixteen columns in each of
// sums[token]; next_token: words from a token's coefficients to the next one's.
template <QuantKind kKind, uint32_t kUnits, uint32_t kBlocks, bool kOddBlock, uint32_t T = 1>
SLUICE_INLINE void AddQuad(const uint8_t* const* rows, const PanelPart& part, uint64_t next_token,
                           __m512i (*sums)[kBlocks * kBlockUnits<kKind>]) {
  constexpr uint32_t kPer = kBlockUnits<kKind>;
  constexpr uint32_t kFields = kPer / 2;
  const __m512i nibble = _mm512_set1_epi8(0x0f);
  __m512i third = nibble;
  if constexpr (kKind == QuantKind::kQ3) {
    third = LoadThirdBits<kOddBlock>(rows, part.third_at);
  }
  SLUICE_UNROLL
  for (uint32_t b = 0; b < kBlocks; ++b) {
    const FourRows four = LoadFourRows(rows, part.at + b * 32);
    __m512i fields[kPer];
    PanelFields<kKind>(four.even, _mm512_and_si512(third, nibble), fields);
    PanelFields<kKind>(four.odd, _mm512_and_si512(_mm512_srli_epi16(third, 4), nibble), fields + kFields);
    SLUICE_UNROLL
    for (uint32_t i = 0; i < kPer; ++i) {
      // Whole blocks lie in a group, or whole groups in a block.
      const uint32_t u = b * kPer + i;
      SLUICE_UNROLL
      for (uint32_t t = 0; t < T; ++t) {
        const uint32_t quad = part.quads[t * next_token + u / kUnits];
        sums[t][u] = AddByteProducts(sums[t][u], fields[i], _mm512_set1_epi32(static_cast<int32_t>(quad)));
      }
    }
  }
}

// The sums of kBlocks blocks from p.block on over the panel's rows, sixteen columns in each of sums[token].
template <QuantKind kKind, uint32_t kUnits, uint32_t kBlocks, bool kOddBlock, uint32_t T>
SLUICE_INLINE void SumPanel(const QuantDownCall& call, const Panels& panels, const Panel& p,
                            __m512i (*sums)[kBlocks * kBlockUnits<kKind>]) {
  constexpr uint32_t kPer = kBlockUnits<kKind>;
  constexpr uint32_t kSums = kBlocks * kPer;
  SLUICE_UNROLL
  for (uint32_t t = 0; t < T; ++t) {
    StartSums<kSums>(sums[t]);
  }
  const uint32_t words = panels.factors[0].words;
  PanelPart part = PartAt<kKind, kUnits>(call.shape, panels.factors[0], p.first, p.block);
  LinesAhead lines;
  if (p.fetch_lines > 0) {
    call.fetch->Start(p.fetch_lines, (p.end - p.first + 3) / 4, &lines);
  }
  for (uint32_t j = p.first; j < p.end; j += 4, part.quads += words) {
    const uint8_t* const* rows = panels.rows + j;
    for (uint32_t i = 0; i < 4 && p.own; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(rows[i]) + part.at + kPanelAhead, _MM_HINT_T1);
    }
    constexpr bool kNear = kKind == QuantKind::kQ8 || kKind == QuantKind::kQ4;
    lines.Step<kNear>();
    if constexpr (kNear) {
      for (uint32_t i = kNearRows; i < kNearRows + 4; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(rows[i]) + part.at, _MM_HINT_T0);
        if constexpr (kBlocks == 4) {
          _mm_prefetch(reinterpret_cast<const char*>(rows[i]) + part.at + 64, _MM_HINT_T0);
        }
      }
    }
    AddQuad<kKind, kUnits, kBlocks, kOddBlock, T>(rows, part, panels.next_token, sums);
  }
  SLUICE_UNROLL
  for (uint32_t u = 0; u < kSums; ++u) {
    SLUICE_UNROLL
    for (uint32_t t = 0; t < T; ++t) {
      sums[t][u] = _mm512_srai_epi32(sums[t][u], PanelShift<kKind>(u % (kPer / 2)));
    }
  }
}

// y (+)= scale * (S - Z), closed, of the columns [k, k + 16) that exist: n.
template <QuantKind kKind>
SLUICE_INLINE void FinishColumns(const QuantDownCall& call, const PanelFactors& f, uint32_t k, uint32_t n,
                                 uint32_t g, __m512i sum, float* y) {
  const __mmask16 there = static_cast<__mmask16>(0xffffu >> (16 - n));
  const __m512 block = _mm512_mul_ps(_mm512_set1_ps(f.scales[g]),
                                     _mm512_sub_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(f.zero_sums[g])));
  const __m512 closed = _mm512_add_ps(block, _mm512_setzero_ps());
  // A closed sum is never -0, so adding it to +0 does not change it.
  const __m512 before = _mm512_maskz_loadu_ps(call.add ? there : static_cast<__mmask16>(0), y + k);
  _mm512_mask_storeu_ps(y + k, there, _mm512_add_ps(before, closed));
}

// Adds one token's sums of a panel to y, or to the sums of the panels before and after.
template <QuantKind kKind, uint32_t kUnits, uint32_t kSums>
SLUICE_INLINE void FinishPanel(const QuantDownCall& call, const PanelFactors& f, const Panel& p,
                               __m512i* sums, int32_t* before, float* y) {
  const uint32_t first = p.block * kBlockUnits<kKind>;
  before += uint64_t{first} * 16;
  if (p.first > 0) {
    SLUICE_UNROLL
    for (uint32_t u = 0; u < kSums; ++u) {
      sums[u] = _mm512_add_epi32(sums[u], _mm512_loadu_si512(before + u * 16));
    }
  }
  if (p.end < call.neurons) {
    SLUICE_UNROLL
    for (uint32_t u = 0; u < kSums; ++u) {
      _mm512_storeu_si512(before + u * 16, sums[u]);
    }
    return;
  }
  const uint32_t cols = call.shape.cols;
  if ((first + kSums) * 16 <= cols) {
    SLUICE_UNROLL
    for (uint32_t u = 0; u < kSums; ++u) {
      FinishColumns<kKind>(call, f, (first + u) * 16, 16, (first + u) / kUnits, sums[u], y);
    }
    return;
  }
  for (uint32_t u = 0; u < kSums && (first + u) * 16 < cols; ++u) {
    const uint32_t k = (first + u) * 16;
    const uint32_t n = cols - k < 16 ? cols - k : 16;
    FinishColumns<kKind>(call, f, k, n, (first + u) / kUnits, sums[u], y);
  }
}

template <QuantKind kKind, uint32_t kUnits, uint32_t kBlocks, bool kOddBlock, uint32_t T>
__attribute__((noinline)) void DownPanel(const QuantDownCall& call, const Panels& panels, const Panel& p,
                                         float* const* y) {
  constexpr uint32_t kSums = kBlocks * kBlockUnits<kKind>;
  __m512i sums[T][kSums];
  SumPanel<kKind, kUnits, kBlocks, kOddBlock, T>(call, panels, p, sums);
  SLUICE_UNROLL
  for (uint32_t t = 0; t < T; ++t) {
    FinishPanel<kKind, kUnits, kSums>(call, panels.factors[t], p, sums[t], panels.sums + t * panels.sum_words,
                                      y[t]);
  }
}

// Rows of a panel: all of them, or as many as have arrived when the call's rows are fetched.
inline uint32_t PanelRows(const QuantDownCall& call) {
  const uint32_t most = call.fetch == nullptr ? 64 : call.fetch->distance() / call.shape.bytes;
  return most >= 64 ? 64 : most >= 32 ? 32 : 16;
}

// Computes all panels of the rows [p.first, p.end), for T tokens.
template <QuantKind kKind, uint32_t kUnits, uint32_t T>
void DownPanels(const QuantDownCall& call, const Panels& panels, Panel p, float* const* y) {
  constexpr uint32_t kColumns = kBlockUnits<kKind> * 16;
  constexpr uint32_t kBlocks = kPanelBlocks<kKind>;
  const uint32_t blocks = (call.shape.cols + kColumns - 1) / kColumns;
  const uint32_t code_bytes = kKind == QuantKind::kQ3 ? call.shape.high_plane : call.shape.scales;
  const uint32_t steps = (blocks + kBlocks - 1) / kBlocks;
  const bool own = p.own;
  p.fetch_lines = (p.fetch_lines * (p.end - p.first) + steps - 1) / steps;
  for (p.block = 0; p.block < blocks; p.block += kBlocks) {
    p.own = own && p.block * 32 + kPanelAhead < code_bytes;
    if (kKind == QuantKind::kQ3 && p.block % 2 != 0) {
      DownPanel<kKind, kUnits, 1, kKind == QuantKind::kQ3, T>(call, panels, p, y);
    } else if (p.block + kBlocks <= blocks) {
      DownPanel<kKind, kUnits, kBlocks, false, T>(call, panels, p, y);
    } else {
      Panel one = p;
      for (one.fetch_lines /= kBlocks; one.block < blocks; ++one.block) {
        DownPanel<kKind, kUnits, 1, false, T>(call, panels, one, y);
      }
    }
  }
}

// Weighted sums of the few quantized rows that a mask leaves of a block, with AVX-512: as
// PanelDown, with all rows in one panel. The work per column, independent of the number of
// rows, takes most of the time, so it is kept minimal: sums stay in registers until they are in y; shifts of
// fields are replaced by scales and zeros multiplied with powers of two, which changes no bit; and a block
// sum is not closed by itself, as adding it to y, which is never -0, closes it.

// Maximum number of rows: a quarter of a block. With more rows, the lines fetched meanwhile (RowFetch) come
// in bursts.
inline constexpr uint32_t kFewRows = 16;

// Columns per fetch of lines for long rows that one token keeps: 2 to 9 % less time with 90 % left out, up to
// 3 % with 70 %. With 2048 columns it was up to 3 % more (Granite Rapids).
inline constexpr uint32_t kLongRow = 4096;  // columns
inline constexpr uint32_t kPanelsTogether = 4;

// The multiples of scales and zeros that the fields of a block need: PanelShift() = kScaleShift * index.
template <QuantKind kKind>
inline constexpr uint32_t kScaleShift = kKind == QuantKind::kQ3 ? 4 : 2;
template <QuantKind kKind>
inline constexpr uint32_t kScaleForms = kKind == QuantKind::kQ2   ? 3
                                        : kKind == QuantKind::kQ3 ? 2
                                                                  : 1;

// scales[form * words + group], and zero_sums likewise.
template <QuantKind kKind>
inline void ScaleForms(const PanelFactors& f) {
  for (uint32_t g = 0; g < f.words; g += 16) {
    for (uint32_t form = 1; form < kScaleForms<kKind>; ++form) {
      const float up = static_cast<float>(1u << (kScaleShift<kKind> * form));
      _mm512_storeu_ps(f.scales + form * f.words + g,
                       _mm512_mul_ps(_mm512_loadu_ps(f.scales + g), _mm512_set1_ps(1 / up)));
      _mm512_storeu_ps(f.zero_sums + form * f.words + g,
                       _mm512_mul_ps(_mm512_loadu_ps(f.zero_sums + g), _mm512_set1_ps(up)));
    }
  }
}

// Data shared by the panels of a call.
struct FewRows {
  const uint8_t* rows[kFewRows];  // padded to a multiple of 4
  uint32_t count = 0;             // number of rows
  PanelFactors factors;
  bool own = false;
};

// y += the sums of kBlocks blocks from `block` on; y: their first column. Not inlined: GCC 12 would keep some
// of the sums in memory. kQuads: rows in fours; 0: from few.count.
template <QuantKind kKind, uint32_t kUnits, uint32_t kBlocks, uint32_t kQuads, bool kOddBlock>
__attribute__((noinline)) void AddFewPanel(const RowShape& shape, const FewRows& few, uint32_t block,
                                           float* y) {
  constexpr uint32_t kPer = kBlockUnits<kKind>;
  constexpr uint32_t kSums = kBlocks * kPer;
  __m512i sums[1][kSums];
  StartSums<kSums>(sums[0]);
  const uint64_t words = few.factors.words;
  PanelPart part = PartAt<kKind, kUnits>(shape, few.factors, 0, block);
  const uint8_t* const* rows = few.rows;
  if constexpr (kQuads > 0) {
    SLUICE_UNROLL
    for (uint32_t q = 0; q < kQuads; ++q, part.quads += words) {
      AddQuad<kKind, kUnits, kBlocks, kOddBlock>(rows + 4 * q, part, 0, sums);
    }
  } else {
    for (const uint8_t* const* end = rows + few.count; rows != end; rows += 4, part.quads += words) {
      AddQuad<kKind, kUnits, kBlocks, kOddBlock>(rows, part, 0, sums);
    }
  }
  const uint32_t group = block * kPer / kUnits;
  const float* scales = few.factors.scales + group;
  const float* zeros = few.factors.zero_sums + group;
  SLUICE_UNROLL
  for (uint32_t u = 0; u < kSums; ++u) {
    const uint64_t form =
        static_cast<uint32_t>(PanelShift<kKind>(u % (kPer / 2))) / kScaleShift<kKind> * words + u / kUnits;
    const __m512 value =
        _mm512_mul_ps(_mm512_set1_ps(scales[form]),
                      _mm512_sub_ps(_mm512_cvtepi32_ps(sums[0][u]), _mm512_set1_ps(zeros[form])));
    _mm512_storeu_ps(y + u * 16, _mm512_add_ps(_mm512_loadu_ps(y + u * 16), value));
  }
}

// The last columns, which do not fill a panel.
template <QuantKind kKind, uint32_t kUnits, bool kOddBlock>
void AddLastColumns(const RowShape& shape, const FewRows& few, uint32_t block, float* y) {
  float columns[kBlockUnits<kKind> * 16] = {};
  const uint32_t n = shape.cols - block * kBlockUnits<kKind> * 16;
  __builtin_memcpy(columns, y, n * sizeof(float));
  AddFewPanel<kKind, kUnits, 1, 0, kOddBlock>(shape, few, block, columns);
  __builtin_memcpy(y, columns, n * sizeof(float));
}

// All panels. `fetch_lines` are fetched meanwhile.
template <QuantKind kKind, uint32_t kUnits, uint32_t kQuads>
void AddFewPanels(const QuantDownCall& call, const FewRows& few, uint32_t fetch_lines, float* y) {
  constexpr uint32_t kColumns = kBlockUnits<kKind> * 16;
  constexpr uint32_t kBlocks = kPanelBlocks<kKind>;
  constexpr bool kQ3 = kKind == QuantKind::kQ3;
  const uint32_t blocks = (call.shape.cols + kColumns - 1) / kColumns;
  const uint32_t whole = call.shape.cols / kColumns;
  const uint32_t code_bytes = kQ3 ? call.shape.high_plane : call.shape.scales;
  const uint32_t panels = (blocks + kBlocks - 1) / kBlocks;
  const uint32_t together = call.tokens == 1 && call.shape.cols >= kLongRow ? kPanelsTogether : 1;
  LinesAhead lines;
  for (uint32_t p = 0; p < panels; ++p) {
    if (fetch_lines > 0 && p % together == 0) {
      const uint32_t steps = panels - p < together ? panels - p : together;
      // Rounded up, because uncounted lines would make all later fetches late.
      lines = {};
      call.fetch->Start((fetch_lines * steps + panels - 1) / panels, steps, &lines);
    }
    lines.Step();
    const uint32_t block = p * kBlocks;
    if (few.own && block * 32 + kPanelAhead < code_bytes) {
      for (uint32_t j = 0; j < few.count; ++j) {
        _mm_prefetch(reinterpret_cast<const char*>(few.rows[j]) + block * 32 + kPanelAhead, _MM_HINT_T1);
      }
    }
    if (block + kBlocks <= whole) {
      kQ3&& block % 2 != 0
          ? AddFewPanel<kKind, kUnits, kBlocks, kQuads, kQ3>(call.shape, few, block, y + block * kColumns)
          : AddFewPanel<kKind, kUnits, kBlocks, kQuads, false>(call.shape, few, block, y + block * kColumns);
      continue;
    }
    for (uint32_t one = block; one < whole; ++one) {
      AddFewPanel<kKind, kUnits, 1, 0, false>(call.shape, few, one, y + one * kColumns);
    }
    if (whole < blocks) {
      kQ3&& whole % 2 != 0
          ? AddLastColumns<kKind, kUnits, kQ3>(call.shape, few, whole, y + whole * kColumns)
          : AddLastColumns<kKind, kUnits, false>(call.shape, few, whole, y + whole * kColumns);
    }
  }
}

template <QuantKind kKind, uint32_t kUnits>
void FewDown(const QuantDownCall& call) {
  FewRows few;
  PanelFactors& f = few.factors;
  f.words = RoundUp(call.shape.groups, 16);
  f.quads = call.scratch;
  f.scales = reinterpret_cast<float*>(f.quads + uint64_t{kFewRows / 4} * f.words);
  f.zero_sums = f.scales + kScaleForms<kKind> * f.words;
  few.count = RoundUp(call.neurons, 4);
  for (uint32_t j = 0; j < few.count; ++j) {
    few.rows[j] = call.w[j < call.neurons ? j : call.neurons - 1];  // beyond the end the coefficients are 0
  }
  for (uint32_t t = 0; t < call.tokens; ++t) {
    const uint32_t fetch_lines = t == 0 && call.fetch != nullptr ? call.fetch_lines : 0;
    for (uint32_t g = 0; g < call.shape.groups; g += 16) {
      RoundSixteenGroups<kKind>(call, call.c[t], g, FetchWhileRounding(call, fetch_lines, f.words / 16), f);
    }
    ScaleForms<kKind>(f);
    if (!call.add) {
      __builtin_memset(call.y[t], 0, call.shape.cols * sizeof(float));
    }
    few.own = t == 0 && KindOf(call.prefetch) != Prefetch::kNone;
    const uint32_t lines = (fetch_lines - fetch_lines / kRoundingShare) * call.neurons;
    // Groups of 16 and 32 are rare.
    if (kUnits >= 4 && few.count == 4) {
      AddFewPanels<kKind, kUnits, kUnits >= 4 ? 1 : 0>(call, few, lines, call.y[t]);
    } else if (kUnits >= 4 && few.count == 8) {
      AddFewPanels<kKind, kUnits, kUnits >= 4 ? 2 : 0>(call, few, lines, call.y[t]);
    } else {
      AddFewPanels<kKind, kUnits, 0>(call, few, lines, call.y[t]);
    }
  }
}

// Computes T tokens from t on.
template <QuantKind kKind, uint32_t kUnits, uint32_t T>
void PanelDownTokens(const QuantDownCall& call, const Panels& panels, uint32_t t, uint32_t rows) {
  const uint32_t fetch_lines = t == 0 && call.fetch != nullptr ? call.fetch_lines : 0;
  const uint32_t words = panels.factors[0].words;
  for (uint32_t i = 0; i < T; ++i) {
    for (uint32_t g = 0; g < call.shape.groups; g += 16) {
      RoundSixteenGroups<kKind>(call, call.c[t + i], g,
                                FetchWhileRounding(call, i == 0 ? fetch_lines : 0, words / 16),
                                panels.factors[i]);
    }
  }
  Panel p;
  p.own = t == 0 && KindOf(call.prefetch) != Prefetch::kNone;
  p.fetch_lines = fetch_lines - fetch_lines / kRoundingShare;
  for (; p.first < call.neurons; p.first += rows) {
    p.end = p.first + rows < call.neurons ? p.first + rows : call.neurons;
    DownPanels<kKind, kUnits, T>(call, panels, p, call.y + t);
  }
}

template <QuantKind kKind, uint32_t kUnits>
void PanelDown(const QuantDownCall& call) {
  if (call.neurons <= kFewRows) {
    return FewDown<kKind, kUnits>(call);
  }
  Panels panels;
  const uint32_t quads = (call.neurons + 3) / 4;
  const uint32_t words = RoundUp(call.shape.groups, 16);
  panels.next_token = uint64_t{16 + 2} * words;
  for (uint32_t i = 0; i < kPanelTokens; ++i) {
    PanelFactors& f = panels.factors[i];
    f.words = words;
    f.quads = call.scratch + i * panels.next_token;
    f.scales = reinterpret_cast<float*>(f.quads + uint64_t{16} * words);
    f.zero_sums = f.scales + words;
    f.in_halves = call.in_halves ? quads : 0;
  }
  panels.sums = reinterpret_cast<int32_t*>(call.scratch + kPanelTokens * panels.next_token);
  panels.sum_words = RoundUp(call.shape.cols, kCodeAlign);
  for (uint32_t i = 0; i < 4 * quads; ++i) {
    const uint32_t j = (call.in_halves ? InHalves(i / 4, quads) : i / 4) * 4 + i % 4;
    panels.rows[i] =
        call.w[j < call.neurons ? j : call.neurons - 1];  // beyond the end the coefficients are 0
  }
  std::fill_n(panels.rows + 4 * quads, kNearRows, panels.rows[0]);
  const uint32_t rows = PanelRows(call);
  uint32_t t = 0;
  for (; t + kPanelTokens <= call.tokens; t += kPanelTokens) {
    PanelDownTokens<kKind, kUnits, kPanelTokens>(call, panels, t, rows);
  }
  for (; t < call.tokens; ++t) {
    PanelDownTokens<kKind, kUnits, 1>(call, panels, t, rows);
  }
}

template <QuantKind kKind, uint32_t kUnits>
void QuantDownRows(const QuantDownCall& call) {
  if constexpr (kDownByPanels<kKind, kUnits>) {
    PanelDown<kKind, kUnits>(call);
  } else {
    DownByPairs<kKind, ByWords<kKind, kUnits>>(call);
  }
}
