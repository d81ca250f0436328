// Weighted sums of quantized rows for many tokens (ARITHMETIC.md 3): a block's codes are unpacked once for
// all of them, four neurons' codes of a column in its lane. Every token then costs one multiplication for
// four neurons and a register of columns. The sums are exact, so the bits are those of quant_down-inl.h.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.

#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

inline constexpr uint32_t kUnitRegisters = 16 / kNative;
inline constexpr uint32_t kDownQuads = 16;    // quads of neurons
inline constexpr uint32_t kRoundGroups = 16;  // groups rounded together

// Data shared by the tokens of a call, and their rounded coefficients for kRoundGroups groups.
struct ManySums {
  int32_t*
      codes;  // [unit of a block][register of kWidth][quad][kWidth columns, in the order of NIntInOrder()]
  float* meta_scales;  // [neuron][kRoundGroups]: scales of the rows
  float* meta_zeros;
  int32_t* quads;    // [group][token][quad]
  float* scales;     // [token][group]
  float* zero_sums;  // [token][group]
  float* sums;       // [token][group]: sums of the coefficients, if kByteBias needs them
};

// Loads the scales and zeros of `count` groups from g on, for all neurons.
template <QuantKind kKind>
void DecodeMeta(const QuantDownCall& call, uint32_t g, uint32_t count, const ManySums& m) {
  for (uint32_t j = 0; j < call.neurons; ++j) {
    for (uint32_t o = 0; o < count; o += 8) {
      const uint32_t n = count - o < 8 ? count - o : 8;
      const uint32_t place = j * kRoundGroups + o;
      _mm256_store_ps(m.meta_scales + place, ScalesOf<kKind>(call.shape, call.w[j], g + o, n));
      _mm256_store_ps(m.meta_zeros + place, ZerosOf<kKind>(call.shape, call.w[j], g + o, n));
    }
  }
}

// Rounds a token's coefficients c for kNative groups from `o` of these on. quads: [quad][kNative].
template <QuantKind kKind>
inline void RoundForToken(const float* c, uint32_t neurons, uint32_t o, uint32_t t, const ManySums& m,
                          int32_t* quads) {
  const auto scaled = [&](uint32_t j) {
    return NMul(NSet1(c[j]), NLoad(m.meta_scales + j * kRoundGroups + o));
  };
  N largest = NZero();
  for (uint32_t j = 0; j < neurons; ++j) {
    largest = NMax(largest, NAbs(scaled(j)));
  }
  const N full = NSet1(127.0f);
  const N tiny = NSet1(1e-30f);
  const N inverse = NIfLess(largest, tiny, NZero(), NDiv(full, largest));
  N zero_sum = NZero();
  N sum = NZero();
  const auto round = [&](uint32_t j) {
    const NInt q = NToInt(NMul(scaled(j), inverse));
    const N value = NFromInt(q);
    zero_sum = NFma(value, NLoad(m.meta_zeros + j * kRoundGroups + o), zero_sum);
    if constexpr (kByteBias<kKind> != 0) {
      sum = NAdd(sum, value);
    }
    return q;
  };
  for (uint32_t j = 0; j < neurons; j += 4) {
    NInt q[4];
    for (uint32_t i = 0; i < 4; ++i) {
      q[i] = j + i < neurons ? round(j + i) : NIntZero();
    }
    NIntStore(quads + j / 4 * kNative, NFourBytes(q[0], q[1], q[2], q[3]));
  }
  const uint32_t place = t * kRoundGroups + o;
  NStore(m.scales + place, NIfLess(largest, tiny, NZero(), NDiv(largest, full)));
  NStore(m.zero_sums + place, NAdd(zero_sum, NZero()));
  if constexpr (kByteBias<kKind> != 0) {
    NStore(m.sums + place, sum);
  }
}

// Rounds `count` groups from g on, for the tokens [first, first + tokens).
template <QuantKind kKind>
void RoundForMany(const QuantDownCall& call, uint32_t first, uint32_t tokens, uint32_t g, uint32_t count,
                  const ManySums& m) {
  DecodeMeta<kKind>(call, g, count, m);
  alignas(64) int32_t quads[kDownQuads * kNative] = {};
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t o = 0; o < count; o += kNative) {
      RoundForToken<kKind>(call.c[first + t], call.neurons, o, t, m, quads);
      for (uint32_t part = 0; part < kNative; part += 8) {
        for (uint32_t q = 0; q < kDownQuads; q += 8) {
          __m256i rows[8];
          __m256i groups[8];
          for (uint32_t i = 0; i < 8; ++i) {
            rows[i] = LoadBlock(reinterpret_cast<const uint8_t*>(quads + (q + i) * kNative + part));
          }
          Transpose8(rows, groups);
          for (uint32_t i = 0; i < 8; ++i) {
            int32_t* place = m.quads + (uint64_t{o + part + i} * kManyDownTokens + t) * kDownQuads + q;
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(place), groups[i]);
          }
        }
      }
    }
  }
}

// Interleaves bytes 0-3, 4-7, 8-11 and 12-15 of each 128 bits of four rows: the four rows' bytes of a column
// lie together.
SLUICE_INLINE void InterleaveFour(const __m256i* rows, __m256i* out) {
  const __m256i ab_low = _mm256_unpacklo_epi8(rows[0], rows[1]);
  const __m256i ab_high = _mm256_unpackhi_epi8(rows[0], rows[1]);
  const __m256i cd_low = _mm256_unpacklo_epi8(rows[2], rows[3]);
  const __m256i cd_high = _mm256_unpackhi_epi8(rows[2], rows[3]);
  out[0] = _mm256_unpacklo_epi16(ab_low, cd_low);
  out[1] = _mm256_unpackhi_epi16(ab_low, cd_low);
  out[2] = _mm256_unpacklo_epi16(ab_high, cd_high);
  out[3] = _mm256_unpackhi_epi16(ab_high, cd_high);
}

// Unpacks the codes of block b. Prefetches the line after the next of each row, since no hardware prefetcher
// follows 64 rows.
template <QuantKind kKind, uint32_t kWidth>
void UnpackForMany(const QuantDownCall& call, uint32_t b, int32_t* out) {
  constexpr uint32_t kFields = kByteFields<kKind>;
  constexpr uint32_t kAhead = 128;
  const uint64_t offset = uint64_t{b} * 32;
  const uint32_t last = call.neurons - 1;
  for (uint32_t j = 0; j < call.neurons; j += 4) {
    __m256i rows[4];
    __m256i thirds[4];
    for (uint32_t i = 0; i < 4; ++i) {
      const uint8_t* w = call.w[j + i < last ? j + i : last];  // beyond the end the coefficients are 0
      if (offset % 64 == 0 && offset + kAhead < call.shape.bytes) {
        _mm_prefetch(reinterpret_cast<const char*>(w + offset + kAhead), _MM_HINT_T0);
      }
      rows[i] = EvenOdd(LoadBlock(w + offset));
      if constexpr (kKind == QuantKind::kQ3) {
        thirds[i] = ThirdBits(LoadBlock(w + call.shape.high_plane + uint64_t{b / 2} * 32), b % 2 != 0);
      }
    }
    // Columns 0-3 and 8-11, then 4-7 and 12-15 of the first unit of each field, then of the second one.
    __m256i quads[4];
    __m256i third_quads[4];
    InterleaveFour(rows, quads);
    if constexpr (kKind == QuantKind::kQ3) {
      InterleaveFour(thirds, third_quads);
    }
    SLUICE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      __m256i fields[kFields];
      ByteFields<kKind>(quads[i], kKind == QuantKind::kQ3 ? third_quads[i] : quads[i], fields);
      SLUICE_UNROLL
      for (uint32_t f = 0; f < kFields; ++f) {
        const uint32_t unit = f + i / 2 * kFields;
        const uint32_t column = i % 2 * 8;
        int32_t* place =
            out + ((unit * (16 / kWidth) + column / kWidth) * kDownQuads + j / 4) * kWidth + column % kWidth;
        _mm256_store_si256(reinterpret_cast<__m256i*>(place), fields[f]);
      }
    }
  }
}

// y[t] (+)= scale * (S - Z), closed, of the n columns from k on; s: a unit's sums, less kBias times `sum`,
// that of the coefficients.
template <QuantKind kKind, int kBias = kByteBias<kKind>>
SLUICE_INLINE void FinishForMany(const QuantDownCall& call, const NInt* s, float sum, float scale,
                                 float zero_sum, uint32_t k, uint32_t n, float* y) {
  NInt ordered[kUnitRegisters];
  NIntInOrder(s, ordered);
  N sums[kUnitRegisters];
  for (uint32_t i = 0; i < kUnitRegisters; ++i) {
    const N whole = kBias == 0 ? NFromInt(ordered[i]) : FloatSum<kKind>(ordered[i], NSet1(sum));
    sums[i] = NAdd(NMul(NSet1(scale), NSub(whole, NSet1(zero_sum))), NZero());
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

// Adds whole units of columns to y: sums[register * T + token] for `tokens` of T tokens; scales etc.:
// [token][kRoundGroups].
template <QuantKind kKind, uint32_t T, uint32_t kUnits>
__attribute__((noinline)) void AddUnits(uint32_t tokens, const NInt* sums, const float* scales,
                                        const float* zero_sums, const float* c_sums, float* const* y,
                                        uint32_t k) {
  for (uint32_t i = 0; i < tokens; ++i) {
    const N scale = NSet1(scales[i * kRoundGroups]);
    const N zero_sum = NSet1(zero_sums[i * kRoundGroups]);
    const N c_sum = kByteBias<kKind> != 0 ? NSet1(c_sums[i * kRoundGroups]) : NZero();
    float* place = y[i] + k;
    SLUICE_UNROLL
    for (uint32_t u = 0; u < kUnits; ++u) {
      NInt unit[kUnitRegisters];
      NInt ordered[kUnitRegisters];
      SLUICE_UNROLL
      for (uint32_t r = 0; r < kUnitRegisters; ++r) {
        unit[r] = sums[(u * kUnitRegisters + r) * T + i];
      }
      NIntInOrder(unit, ordered);
      SLUICE_UNROLL
      for (uint32_t r = 0; r < kUnitRegisters; ++r) {
        const N whole = FloatSum<kKind>(ordered[r], c_sum);
        const N sum = NAdd(NMul(scale, NSub(whole, zero_sum)), NZero());
        NStore(place, NAdd(NLoad(place), sum));
        place += kNative;
      }
    }
  }
}

// Computes kUnits units of columns from k on, for `tokens` of T tokens from `first` on; t rounded tokens
// precede them. Missing tokens are computed from arbitrary values and dropped.
template <QuantKind kKind, uint32_t T, uint32_t kUnits>
void SumUnits(uint32_t tokens, const QuantDownCall& call, const int32_t* codes, const ManySums& m,
              uint32_t group, uint32_t first, uint32_t t, uint32_t k) {
  constexpr uint32_t kRegisters = kUnits * kUnitRegisters;
  constexpr uint32_t kAtOnce = kRegisters < kQuadRegisters ? kRegisters : kQuadRegisters;
  constexpr uint32_t kRegisterWords = kDownQuads * kNative;
  constexpr QuadLayout kLayout = {kNative, kRegisterWords, 4 * kDownQuads, 4};
  const int32_t* quads = m.quads + (uint64_t{group} * kManyDownTokens + t) * kDownQuads;
  alignas(64) NInt sums[kRegisters * T];
  SLUICE_UNROLL
  for (uint32_t r = 0; r < kRegisters; r += kAtOnce) {
    SumQuads<kKind, T, kAtOnce, kLayout>(codes + r * kRegisterWords, (call.neurons + 3) / 4,
                                         reinterpret_cast<const int8_t*>(quads), sums + r * T);
  }
  const uint32_t place = t * kRoundGroups + group;
  if (call.add && k + kUnits * 16 <= call.shape.cols) {
    return AddUnits<kKind, T, kUnits>(tokens, sums, m.scales + place, m.zero_sums + place, m.sums + place,
                                      call.y + first + t, k);
  }
  for (uint32_t i = 0; i < tokens; ++i) {
    for (uint32_t u = 0; u < kUnits; ++u) {
      const uint32_t column = k + u * 16;
      const uint32_t n = call.shape.cols - column < 16 ? call.shape.cols - column : 16;
      NInt unit[kUnitRegisters];
      for (uint32_t r = 0; r < kUnitRegisters; ++r) {
        unit[r] = sums[(u * kUnitRegisters + r) * T + i];
      }
      const uint32_t at = place + i * kRoundGroups;
      FinishForMany<kKind>(call, unit, m.sums[at], m.scales[at], m.zero_sums[at], column, n,
                           call.y[first + t + i]);
    }
  }
}

// Computes `units` units of 16 columns from k on, one or kSumUnits, for the tokens [first, first + tokens).
inline constexpr uint32_t kSumUnits = kQuadRegisters;
template <QuantKind kKind>
void SumInPasses(const QuantDownCall& call, const int32_t* codes, const ManySums& m, uint32_t group,
                 uint32_t first, uint32_t tokens, uint32_t k, uint32_t units) {
  const uint32_t passes = (tokens + kQuadTokens - 1) / kQuadTokens;
  for (uint32_t pass = 0; pass < passes; ++pass) {  // as equal as possible
    const uint32_t t = tokens * pass / passes;
    const uint32_t count = tokens * (pass + 1) / passes - t;
    WithTokens(count, [&]<uint32_t T>() {
      units == 1 ? SumUnits<kKind, T, 1>(count, call, codes, m, group, first, t, k)
                 : SumUnits<kKind, T, kSumUnits>(count, call, codes, m, group, first, t, k);
    });
  }
}

// Computes the tokens [first, first + tokens), at most kManyDownTokens, with sum_units(call, codes, m, index
// of the rounded group, first, tokens, first column, units) for one or kSumUnits units of a group, whose
// codes lie in registers of kWidth columns.
template <QuantKind kKind, uint32_t kWidth, class SumUnitsFunction>
void SumTokens(const QuantDownCall& call, uint32_t first, uint32_t tokens, const ManySums& m,
               const SumUnitsFunction& sum_units) {
  constexpr uint32_t kPer = kBlockUnits<kKind>;
  const uint32_t per_group = call.shape.group / 16;
  const uint32_t units = (call.shape.cols + 15) / 16;
  for (uint32_t g = 0; g < call.shape.groups; g += kRoundGroups) {
    const uint32_t count = call.shape.groups - g < kRoundGroups ? call.shape.groups - g : kRoundGroups;
    RoundForMany<kKind>(call, first, tokens, g, count, m);
    const uint32_t end = (g + count) * per_group < units ? (g + count) * per_group : units;
    for (uint32_t u = g * per_group; u < end; u += kPer) {
      UnpackForMany<kKind, kWidth>(call, u / kPer, m.codes);
      const uint32_t block_end = u + kPer < end ? u + kPer : end;
      for (uint32_t i = u; i < block_end;) {
        const uint32_t of_group = (i / per_group + 1) * per_group - i;
        const uint32_t count = of_group >= kSumUnits && block_end - i >= kSumUnits ? kSumUnits : 1;
        sum_units(call, m.codes + (i - u) * kDownQuads * 16, m, i / per_group - g, first, tokens, i * 16,
                  count);
        i += count;
      }
    }
  }
}

template <QuantKind kKind, uint32_t kWidth, class SumUnitsFunction>
void ManyDownBy(const QuantDownCall& call, const SumUnitsFunction& sum_units) {
  uint32_t* rest = call.scratch + QuantDownWords(call.shape.cols) - kManyDownWords;
  ManySums m;
  m.codes = reinterpret_cast<int32_t*>((reinterpret_cast<uintptr_t>(rest) + 63) / 64 * 64);
  m.quads = m.codes + 8 * kDownQuads * 16;
  m.meta_scales = reinterpret_cast<float*>(m.quads + kRoundGroups * kManyDownTokens * kDownQuads);
  m.meta_zeros = m.meta_scales + 64 * kRoundGroups;
  m.scales = m.meta_zeros + 64 * kRoundGroups;
  m.zero_sums = m.scales + kManyDownTokens * kRoundGroups;
  m.sums = m.zero_sums + kManyDownTokens * kRoundGroups;
  for (uint32_t first = 0; first < call.tokens; first += kManyDownTokens) {
    const uint32_t tokens = call.tokens - first < kManyDownTokens ? call.tokens - first : kManyDownTokens;
    SumTokens<kKind, kWidth>(call, first, tokens, m, sum_units);
  }
}

template <QuantKind kKind>
void ManyDown(const QuantDownCall& call) {
  ManyDownBy<kKind, kNative>(call, SumInPasses<kSumKind<kKind>>);
}
