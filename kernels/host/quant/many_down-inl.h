// Weighted sums of quantized rows for many tokens (ARITHMETIC.md 3): a block's codes are unpacked once for
// all of them, interleaved in pairs of neurons, sixteen columns side by side. Every token then costs one
// multiplication for a pair and its columns. The sums are exact, so the bits are those of quant_down-inl.h.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// Tokens of one pass over unpacked codes: their sums, the codes and some more fill the registers.
inline constexpr uint32_t kSumTokens = kNative == 16 ? 12 : 6;
static_assert(kManyDownTokens % kSumTokens == 0);
inline constexpr uint32_t kUnitRegisters = 16 / kNative;
inline constexpr uint32_t kDownPairs = 32;    // of neurons
inline constexpr uint32_t kRoundGroups = 16;  // that are rounded together

// What the tokens of a call share, and their rounded coefficients for kRoundGroups groups.
struct ManySums {
  int32_t* codes;    // [unit of a block][pair][16 columns, in the order of Interleave()]
  uint32_t* pairs;   // [group][token][pair]
  float* scales;     // [token][group]
  float* zero_sums;  // [token][group]
};

// Of `count` groups from g on, for the tokens [first, first + tokens).
template <QuantKind kKind>
void RoundForMany(const QuantDownCall& call, uint32_t first, uint32_t tokens, uint32_t g, uint32_t count,
                  const DownFactors& f, const ManySums& out) {
  for (uint32_t t = 0; t < tokens; ++t) {
    count > 8 ? RoundOctets<kKind, PairForm::kWords, 2>(call, first + t, g, count, LinesAhead(), f)
              : RoundOctets<kKind, PairForm::kWords, 1>(call, first + t, g, count, LinesAhead(), f);
    for (uint32_t o = 0; o < count; o += 8) {
      for (uint32_t p = 0; p < (call.neurons + 1) / 2; p += 8) {
        __m256i rows[8];
        __m256i groups[8];
        for (uint32_t i = 0; i < 8; ++i) {
          rows[i] =
              LoadBlock(reinterpret_cast<const uint8_t*>(f.pairs + uint64_t{p + i} * f.pair_words + g + o));
        }
        Transpose8(rows, groups);
        for (uint32_t i = 0; i < 8; ++i) {
          uint32_t* place = out.pairs + (uint64_t{o + i} * kManyDownTokens + t) * kDownPairs + p;
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(place), groups[i]);
        }
      }
      _mm256_storeu_ps(out.scales + t * kRoundGroups + o, _mm256_loadu_ps(f.scales + g + o));
      _mm256_storeu_ps(out.zero_sums + t * kRoundGroups + o, _mm256_loadu_ps(f.zero_sums + g + o));
    }
  }
}

// The codes of the block that begins at unit u. The line after the next of each row is moved nearer: nothing
// follows 64 rows.
template <QuantKind kKind>
void UnpackForMany(const QuantDownCall& call, uint32_t u, int32_t* out) {
  constexpr uint32_t kPer = kBlockUnits<kKind>;
  constexpr uint32_t kAhead = 128;
  const uint64_t offset = uint64_t{u / kPer} * 32;
  const uint32_t last = call.neurons - 1;
  const auto put = [out](__m256i codes, uint32_t unit, uint32_t pair, uint32_t half) {
    int32_t* place = out + (unit * kDownPairs + pair) * 16 + half * 8;
    _mm256_store_si256(reinterpret_cast<__m256i*>(place), codes);
  };
  for (uint32_t j = 0; j < call.neurons; j += 2) {
    const uint8_t* a = call.w[j];
    const uint8_t* b = call.w[j < last ? j + 1 : last];  // beyond the end the coefficient is 0
    if (offset % 64 == 0 && offset + kAhead < call.shape.bytes) {
      _mm_prefetch(reinterpret_cast<const char*>(a + offset + kAhead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + offset + kAhead), _MM_HINT_T0);
    }
    const __m256i x = LoadBlock(a + offset);
    const __m256i y = LoadBlock(b + offset);
    const __m256i low = _mm256_unpacklo_epi16(x, y);
    const __m256i high = _mm256_unpackhi_epi16(x, y);
    __m256i third_low = low;
    __m256i third_high = high;
    if constexpr (kKind == QuantKind::kQ3) {
      const uint64_t at = call.shape.high_plane + uint64_t{u / 16} * 32;
      const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(u % 16));
      const __m256i p = _mm256_srl_epi16(LoadBlock(a + at), shift);
      const __m256i q = _mm256_srl_epi16(LoadBlock(b + at), shift);
      third_low = _mm256_unpacklo_epi16(p, q);
      third_high = _mm256_unpackhi_epi16(p, q);
    }
    SLUICE_UNROLL
    for (uint32_t i = 0; i < kPer; ++i) {
      put(CodesOf<kKind>(low, i, third_low, i), i, j / 2, 0);
      put(CodesOf<kKind>(high, i, third_high, i), i, j / 2, 1);
    }
  }
}

// y[t] (+)= scale * (S - Z), closed, of the n columns from k on; s: a unit's sums.
SLUICE_INLINE void FinishForMany(const QuantDownCall& call, const NInt* s, float scale, float zero_sum,
                                 uint32_t k, uint32_t n, float* y) {
  NInt ordered[kUnitRegisters];
  NIntInOrder(s, ordered);
  N sums[kUnitRegisters];
  for (uint32_t i = 0; i < kUnitRegisters; ++i) {
    sums[i] = NAdd(NMul(NSet1(scale), NSub(NFromInt(ordered[i]), NSet1(zero_sum))), NZero());
  }
  if (n == 16) {
    for (uint32_t i = 0; i < kUnitRegisters; ++i) {
      float* place = y + k + i * kNative;
      NStore(place, call.add ? NAdd(NLoad(place), sums[i]) : sums[i]);
    }
    return;
  }
  alignas(64) float values[16];
  for (uint32_t i = 0; i < kUnitRegisters; ++i) {
    NStore(values + i * kNative, sums[i]);
  }
  for (uint32_t i = 0; i < n; ++i) {
    y[k + i] = call.add ? y[k + i] + values[i] : values[i];
  }
}

// The columns from k on, a unit of them, for T tokens from `first` on; t of them are rounded before these.
template <uint32_t T>
void SumUnit(const QuantDownCall& call, const int32_t* codes, const ManySums& m, uint32_t group,
             uint32_t first, uint32_t t, uint32_t k) {
  const uint32_t* pairs = m.pairs + (uint64_t{group} * kManyDownTokens + t) * kDownPairs;
  NInt sums[T][kUnitRegisters];
  for (uint32_t i = 0; i < T; ++i) {
    for (uint32_t r = 0; r < kUnitRegisters; ++r) {
      sums[i][r] = NIntZero();
    }
  }
  const uint32_t count = (call.neurons + 1) / 2;
  SLUICE_UNROLL_BY_8
  for (uint32_t p = 0; p < count; ++p) {
    NInt columns[kUnitRegisters];
    for (uint32_t r = 0; r < kUnitRegisters; ++r) {
      columns[r] = NIntLoad(codes + p * 16 + r * kNative);
    }
    SLUICE_UNROLL
    for (uint32_t i = 0; i < T; ++i) {
      const NInt factor = NIntSet1(static_cast<int32_t>(pairs[i * kDownPairs + p]));
      for (uint32_t r = 0; r < kUnitRegisters; ++r) {
        sums[i][r] = NAddProducts(sums[i][r], columns[r], factor);
      }
    }
  }
  const uint32_t n = call.shape.cols - k < 16 ? call.shape.cols - k : 16;
  for (uint32_t i = 0; i < T; ++i) {
    const uint32_t place = (t + i) * kRoundGroups + group;
    FinishForMany(call, sums[i], m.scales[place], m.zero_sums[place], k, n, call.y[first + t + i]);
  }
}

// The same for `tokens` of them, 1 to T.
template <uint32_t T>
void SumUnitUpTo(uint32_t tokens, const QuantDownCall& call, const int32_t* codes, const ManySums& m,
                 uint32_t group, uint32_t first, uint32_t t, uint32_t k) {
  if constexpr (T > 1) {
    if (tokens < T) {
      SumUnitUpTo<T - 1>(tokens, call, codes, m, group, first, t, k);
      return;
    }
  }
  SumUnit<T>(call, codes, m, group, first, t, k);
}

// The tokens [first, first + tokens), at most kManyDownTokens.
template <QuantKind kKind>
void SumTokens(const QuantDownCall& call, uint32_t first, uint32_t tokens, const DownFactors& f,
               const ManySums& m) {
  constexpr uint32_t kPer = kBlockUnits<kKind>;
  const uint32_t per_group = call.shape.group / 16;
  const uint32_t units = (call.shape.cols + 15) / 16;
  const uint32_t passes = (tokens + kSumTokens - 1) / kSumTokens;
  for (uint32_t g = 0; g < call.shape.groups; g += kRoundGroups) {
    const uint32_t count = call.shape.groups - g < kRoundGroups ? call.shape.groups - g : kRoundGroups;
    RoundForMany<kKind>(call, first, tokens, g, count, f, m);
    const uint32_t end = (g + count) * per_group < units ? (g + count) * per_group : units;
    for (uint32_t u = g * per_group; u < end; u += kPer) {
      UnpackForMany<kKind>(call, u, m.codes);
      for (uint32_t i = u; i < u + kPer && i < end; ++i) {
        const int32_t* codes = m.codes + (i - u) * kDownPairs * 16;
        for (uint32_t pass = 0; pass < passes; ++pass) {  // as equal as they can be
          const uint32_t t = tokens * pass / passes;
          SumUnitUpTo<kSumTokens>(tokens * (pass + 1) / passes - t, call, codes, m, i / per_group - g, first,
                                  t, i * 16);
        }
      }
    }
  }
}

template <QuantKind kKind>
void ManyDown(const QuantDownCall& call) {
  DownFactors f;
  f.pair_words = RoundUp(call.shape.groups, 8);
  f.pairs = call.scratch;
  f.scales = reinterpret_cast<float*>(f.pairs + uint64_t{34} * f.pair_words);
  f.zero_sums = f.scales + f.pair_words;
  uint32_t* rest = call.scratch + QuantDownWords(call.shape.cols) - kManyDownWords;
  ManySums m;
  m.codes = reinterpret_cast<int32_t*>((reinterpret_cast<uintptr_t>(rest) + 63) / 64 * 64);
  m.pairs = reinterpret_cast<uint32_t*>(m.codes + 8 * kDownPairs * 16);
  m.scales = reinterpret_cast<float*>(m.pairs + kRoundGroups * kManyDownTokens * kDownPairs);
  m.zero_sums = m.scales + kManyDownTokens * kRoundGroups;
  for (uint32_t first = 0; first < call.tokens; first += kManyDownTokens) {
    SumTokens<kKind>(call, first,
                     call.tokens - first < kManyDownTokens ? call.tokens - first : kManyDownTokens, f, m);
  }
}
