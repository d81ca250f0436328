// Weighted sums of the few quantized rows that a mask leaves of a block, with AVX-512: as
// panel_down_avx512-inl.h, with all rows in one panel. The work per column, independent of the number of
// rows, takes most of the time, so it is kept minimal: sums stay in registers until they are in y; shifts of
// fields are replaced by scales and zeros multiplied with powers of two, which changes no bit; and a block
// sum is not closed by itself, as adding it to y, which is never -0, closes it.
//
// Included by panel_down_avx512-inl.h only.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by panel_down_avx512-inl.h only"
#endif

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
