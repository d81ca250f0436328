// Dot products of quantized rows with many tokens (ARITHMETIC.md 2 b): eight rows are unpacked once, eight
// groups at a time, their codes interleaved in pairs so that a register holds one pair of each row; every
// token then costs one multiplication for eight rows, and no folding. Lane g mod 8 of a dot is register
// g mod 8 of its eight rows, so the sums are those of QuantDot, to the bit.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

inline constexpr uint32_t kGemmQuantRows = 8;
inline constexpr uint32_t kGemmQuantTokens = kNative == 16 ? 8 : 4;  // of one pass over the unpacked codes

// Eight rows' scales and zeros of eight groups: [group][row].
struct TileMeta {
  alignas(32) float scales[64];
  alignas(32) float zeros[64];
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

// Units [first, first + units) of eight rows as [pair of codes][row].
template <QuantKind kKind>
void UnpackRows(const RowShape& shape, const uint8_t* const* w, uint32_t first, uint32_t units,
                __m256i* out) {
  for (uint32_t u = 0; u < units; ++u) {
    __m256i rows[8];
    for (uint32_t r = 0; r < kGemmQuantRows; ++r) {
      rows[r] = UnitOf<kKind>(shape, w[r], first + u);
    }
    Transpose8(rows, out + uint64_t{u} * 8);
  }
}

// Scales and zeros of the groups [g, g + count) of eight rows.
template <QuantKind kKind>
void UnpackMeta(const RowShape& shape, const uint8_t* const* w, uint32_t g, uint32_t count, TileMeta* meta) {
  __m256i rows[8];
  for (const bool zeros : {false, true}) {
    for (uint32_t r = 0; r < kGemmQuantRows; ++r) {
      rows[r] = _mm256_castps_si256(zeros ? ZerosOf<kKind>(shape, w[r], g, count)
                                          : ScalesOf<kKind>(shape, w[r], g, count));
    }
    Transpose8(rows, rows);
    for (int i = 0; i < 8; ++i) {
      _mm256_store_ps((zeros ? meta->zeros : meta->scales) + 8 * i, _mm256_castsi256_ps(rows[i]));
    }
  }
}

inline __m256i TwoCodes(const int16_t* codes) {
  int32_t pair = 0;
  __builtin_memcpy(&pair, codes, sizeof pair);
  return _mm256_set1_epi32(pair);
}

// Group i of eight, `pairs` pairs of codes, for T tokens: lanes[token][i][row] are added to.
template <uint32_t T>
inline void MultiplyGroup(const QuantRow* x, const __m256i* w, uint32_t k, uint32_t pairs, uint32_t g,
                          uint32_t i, const TileMeta& meta, float* lanes) {
  __m256i sums[T];
  for (uint32_t t = 0; t < T; ++t) {
    sums[t] = _mm256_setzero_si256();
  }
  for (uint32_t p = 0; p < pairs; ++p) {
    const __m256i codes = _mm256_loadu_si256(w + p);
    SLUICE_UNROLL
    for (uint32_t t = 0; t < T; ++t) {
      sums[t] = AddProducts(sums[t], codes, TwoCodes(x[t].codes + k + 2 * p));
    }
  }
  for (uint32_t t = 0; t < T; ++t) {
    float* lane = lanes + t * 64 + i * 8;
    const __m256 term = _mm256_fnmadd_ps(_mm256_load_ps(meta.zeros + i * 8), _mm256_set1_ps(x[t].sums[g]),
                                         _mm256_cvtepi32_ps(sums[t]));
    const __m256 scale = _mm256_mul_ps(_mm256_load_ps(meta.scales + i * 8), _mm256_set1_ps(x[t].scales[g]));
    _mm256_storeu_ps(lane, _mm256_fmadd_ps(scale, term, _mm256_loadu_ps(lane)));
  }
}

// The tree over the lanes of eight rows, closed.
inline __m256 TotalOfRows(const float* lanes) {
  __m256 s[4];
  for (int i = 0; i < 4; ++i) {
    s[i] = _mm256_add_ps(_mm256_loadu_ps(lanes + 8 * i), _mm256_loadu_ps(lanes + 8 * (i + 4)));
  }
  return _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(s[0], s[2]), _mm256_add_ps(s[1], s[3])),
                       _mm256_setzero_ps());
}

// Eight rows for all tokens; lanes: [tokens][8][8].
template <QuantKind kKind>
void GemmEightRows(const QuantDotCall& call, const uint8_t* const* w, __m256i* codes, float* lanes) {
  const RowShape& shape = call.shape;
  const uint32_t per_group = shape.group / 16;
  const uint32_t units = (shape.cols + 15) / 16;
  __builtin_memset(lanes, 0, uint64_t{call.tokens} * 64 * sizeof(float));
  for (uint32_t g = 0; g < shape.groups; g += 8) {
    const uint32_t count = shape.groups - g < 8 ? shape.groups - g : 8;
    const uint32_t first = g * per_group;
    const uint32_t last = first + count * per_group < units ? first + count * per_group : units;
    TileMeta meta;
    UnpackRows<kKind>(shape, w, first, last - first, codes);
    UnpackMeta<kKind>(shape, w, g, count, &meta);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t begin = i * per_group;
      const uint32_t end = begin + per_group < last - first ? begin + per_group : last - first;
      const __m256i* pairs = codes + uint64_t{begin} * 8;
      const uint32_t k = (first + begin) * 16;
      uint32_t t = 0;
      for (; t + kGemmQuantTokens <= call.tokens; t += kGemmQuantTokens) {
        MultiplyGroup<kGemmQuantTokens>(call.x + t, pairs, k, (end - begin) * 8, g + i, i, meta,
                                        lanes + uint64_t{t} * 64);
      }
      for (; t + 2 <= call.tokens; t += 2) {
        MultiplyGroup<2>(call.x + t, pairs, k, (end - begin) * 8, g + i, i, meta, lanes + uint64_t{t} * 64);
      }
      for (; t < call.tokens; ++t) {
        MultiplyGroup<1>(call.x + t, pairs, k, (end - begin) * 8, g + i, i, meta, lanes + uint64_t{t} * 64);
      }
    }
  }
}

template <QuantKind kKind>
void QuantGemm(const QuantDotCall& call) {
  __m256i* codes = reinterpret_cast<__m256i*>(call.scratch);
  float* lanes = call.scratch + kGemmQuantCodes / 2 * kGemmQuantRows;
  for (uint32_t r = 0; r < call.rows; r += kGemmQuantRows) {
    const uint32_t rows = call.rows - r < kGemmQuantRows ? call.rows - r : kGemmQuantRows;
    const uint8_t* w[kGemmQuantRows];
    for (uint32_t i = 0; i < kGemmQuantRows; ++i) {
      w[i] = call.w[r + (i < rows ? i : rows - 1)];
    }
    GemmEightRows<kKind>(call, w, codes, lanes);
    for (uint32_t t = 0; t < call.tokens; ++t) {
      alignas(32) float totals[kGemmQuantRows];
      _mm256_store_ps(totals, TotalOfRows(lanes + uint64_t{t} * 64));
      __builtin_memcpy(call.y[t] + call.first + r, totals, rows * sizeof(float));
    }
  }
}
