// Weighted sums of quantized rows (ARITHMETIC.md 3): one block of neurons, int8 coefficients, exact sums in
// int32.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.

#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// One in this many of a call's fetched lines is fetched while coefficients are rounded, about rounding's
// share of the time.
inline constexpr uint32_t kRoundingShare = 8;

// The lines to fetch in one of `parts` parts of the rounding, a step for each neuron. lines: lines of a row;
// 0: none.
inline LinesAhead FetchWhileRounding(const QuantDownCall& call, uint32_t lines, uint32_t parts) {
  LinesAhead ahead;
  if (lines > 0) {
    call.fetch->Start(lines / kRoundingShare * call.neurons / parts, call.neurons, &ahead);
  }
  return ahead;
}

// The pairs of rows 2 p and 2 p + 1 that are read together at row j, a multiple of 4: neighbours, or one of
// each half of the rows.
inline void PairsAt(const QuantDownCall& call, uint32_t j, uint32_t* pairs) {
  pairs[0] = call.in_halves ? j / 4 : j / 2;
  pairs[1] = call.in_halves ? j / 4 + (call.neurons + 3) / 4 : j / 2 + 1;
}

// The rounded coefficients of one token and one block of neurons. pairs[j / 2][g]: codes of neurons j (low
// half) and j + 1 as int16, or in the form of the way of adding rows; scales[g]; zero_sums[g]. All [g] are
// padded to a multiple of 8.
struct DownFactors {
  uint32_t* pairs;
  uint32_t pair_words;  // words from one pair to the next
  float* scales;
  float* zero_sums;
};

// Rounds kOctets times eight groups from g on, of which `count` exist. Octets are rounded side by side
// because each depends on its last neuron's largest value and sum of zeros. `lines` are fetched meanwhile.
// Way::StorePairs() stores the pairs of eight groups.
template <QuantKind kKind, class Way, int kOctets>
inline void RoundOctets(const QuantDownCall& call, uint32_t t, uint32_t g, uint32_t count, LinesAhead lines,
                        const DownFactors& out) {
  const uint32_t pairs = (call.neurons + 1) / 2;
  const auto there = [&](uint32_t o) { return count - 8 * o < 8 ? count - 8 * o : 8; };
  __m256 d[64][kOctets];
  __m256 largest[kOctets];
  __m256 zero_sum[kOctets];
  for (int o = 0; o < kOctets; ++o) {
    largest[o] = zero_sum[o] = _mm256_setzero_ps();
  }
  for (uint32_t j = 0; j < call.neurons; ++j) {
    const __m256 c = _mm256_set1_ps(call.c[t][j]);
    SLUICE_UNROLL
    for (int o = 0; o < kOctets; ++o) {
      d[j][o] = _mm256_mul_ps(c, ScalesOf<kKind>(call.shape, call.w[j], g + 8 * o, there(o)));
      largest[o] = _mm256_max_ps(largest[o], _mm256_andnot_ps(_mm256_set1_ps(-0.0f), d[j][o]));
    }
    lines.Step();
  }
  const __m256 full = _mm256_set1_ps(127.0f);
  __m256 inverse[kOctets];
  for (int o = 0; o < kOctets; ++o) {
    const __m256 zero = _mm256_cmp_ps(largest[o], _mm256_set1_ps(1e-30f), _CMP_LT_OQ);
    inverse[o] = _mm256_andnot_ps(zero, _mm256_div_ps(full, largest[o]));
    _mm256_storeu_ps(out.scales + g + 8 * o, _mm256_andnot_ps(zero, _mm256_div_ps(largest[o], full)));
  }
  const auto round = [&](uint32_t j, int o) {
    const __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(d[j][o], inverse[o]));
    zero_sum[o] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(q),
                                  ZerosOf<kKind>(call.shape, call.w[j], g + 8 * o, there(o)), zero_sum[o]);
    return q;
  };
  for (uint32_t j = 0; j < call.neurons; j += 2) {
    uint32_t* place = out.pairs + uint64_t{j / 2} * out.pair_words;
    SLUICE_UNROLL
    for (int o = 0; o < kOctets; ++o) {
      const __m256i low = round(j, o);
      const __m256i high =
          j + 1 < call.neurons ? _mm256_slli_epi32(round(j + 1, o), 16) : _mm256_setzero_si256();
      Way::StorePairs(_mm256_blend_epi16(low, high, 0xaa), g + 8 * o, place);
    }
  }
  for (int o = 0; o < kOctets; ++o) {
    if (pairs % 2 != 0) {  // rows come in fours
      Way::StorePairs(_mm256_setzero_si256(), g + 8 * o, out.pairs + uint64_t{pairs} * out.pair_words);
    }
    _mm256_storeu_ps(out.zero_sums + g + 8 * o, _mm256_add_ps(zero_sum[o], _mm256_setzero_ps()));
  }
}

// Prefetches all scales and zeros at once. In a block longer than the fetch distance they have not all
// arrived when coefficients are rounded, and those of long rows lie in a page each; requested together, their
// latencies overlap.
SLUICE_INLINE void FetchScales(const QuantDownCall& call) {
  if (uint64_t{call.neurons} * call.shape.bytes <= call.fetch->distance()) {
    return;
  }
  for (uint32_t j = 0; j < call.neurons; ++j) {
    for (uint32_t at = call.shape.scales; at < call.shape.bytes; at += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(call.w[j]) + at, _MM_HINT_T0);
    }
  }
}

template <QuantKind kKind, class Way>
inline void RoundCoefficients(const QuantDownCall& call, uint32_t t, uint32_t fetch_lines,
                              const DownFactors& out) {
  const uint32_t groups = call.shape.groups;
  const uint32_t parts = groups / 16 + (groups % 16 + 7) / 8;
  uint32_t g = 0;
  if (fetch_lines > 0) {
    FetchScales(call);
  }
  for (; g + 16 <= groups; g += 16) {
    RoundOctets<kKind, Way, 2>(call, t, g, 16, FetchWhileRounding(call, fetch_lines, parts), out);
  }
  for (; g < groups; g += 8) {
    RoundOctets<kKind, Way, 1>(call, t, g, groups - g, FetchWhileRounding(call, fetch_lines, parts), out);
  }
}

// Walks the units of a row and returns the group of each, without a division.
class GroupWalk {
 public:
  explicit GroupWalk(uint32_t group) : units_(group / 16) {}
  // Returns the group of the current unit and moves to the next unit.
  uint32_t Next() {
    const uint32_t group = group_;
    if (++unit_ == units_) {
      unit_ = 0;
      ++group_;
    }
    return group;
  }

 private:
  const uint32_t units_;
  uint32_t unit_ = 0;
  uint32_t group_ = 0;
};

// A block of 32 bytes of four rows, with the words of each two rows interleaved: 0-3 8-11 and 4-7 12-15.
struct FourBlocks {
  __m256i low[2];
  __m256i high[2];
};
SLUICE_INLINE FourBlocks Interleave(const uint8_t* const* w, uint64_t offset) {
  FourBlocks out;
  for (int i = 0; i < 2; ++i) {
    const __m256i a = LoadBlock(w[2 * i] + offset);
    const __m256i b = LoadBlock(w[2 * i + 1] + offset);
    out.low[i] = _mm256_unpacklo_epi16(a, b);
    out.high[i] = _mm256_unpackhi_epi16(a, b);
  }
  return out;
}

// Distance in bytes at which the line of each row is prefetched to the first-level cache. Sums by bytes gain
// nothing from it.
inline constexpr uint32_t kNearInFours = 512;

// Adds the four neurons of PairsAt() (fewer at the end) to sums [cols rounded up to kCodeAlign], which hold
// the columns of a unit in the order of interleaving; kFirst starts them. kUnits: units in a group if they
// fill whole blocks or blocks whole groups, else 0. Only codes are prefetched: the scales were needed before.
template <QuantKind kKind, uint32_t kUnits, bool kFirst>
void AddFourRows(const QuantDownCall& call, const DownFactors& f, uint32_t j, bool prefetch,
                 LinesAhead* lines, int32_t* sums) {
  constexpr uint32_t kPer = kBlockUnits<kKind>;
  const uint32_t last = call.neurons - 1;
  uint32_t read[2];
  PairsAt(call, j, read);
  const uint8_t* w[4];
  const uint8_t* ahead[4];
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t wanted = 2 * read[i / 2] + i % 2;
    const uint32_t row = wanted < last ? wanted : last;  // beyond the end the coefficients are 0
    w[i] = call.w[row];
    ahead[i] = RowAhead(call.w, row, call.prefetch);
  }
  const uint32_t* pairs[2] = {f.pairs + uint64_t{read[0]} * f.pair_words,
                              f.pairs + uint64_t{read[1]} * f.pair_words};
  GroupWalk walk(call.shape.group);
  for (uint32_t u = 0; u * 16 < call.shape.cols; u += kPer) {
    const uint64_t offset = uint64_t{u / kPer} * 32;
    for (uint32_t i = 0; i < 4 && prefetch && u / kPer % 2 == 0; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead[i]) + offset, _MM_HINT_T1);
    }
    lines->Step();
    if constexpr (kKind == QuantKind::kQ8) {
      const bool near = u / kPer % 2 == 0 && offset + kNearInFours < call.shape.bytes;
      for (uint32_t i = 0; i < 4 && near; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(w[i]) + offset + kNearInFours, _MM_HINT_T0);
      }
    }
    const FourBlocks blocks = Interleave(w, offset);
    FourBlocks third = blocks;
    if constexpr (kKind == QuantKind::kQ3) {
      third = Interleave(w, call.shape.high_plane + uint64_t{u / 16} * 32);
      if (u % 16 != 0) {
        for (int i = 0; i < 2; ++i) {
          third.low[i] = _mm256_srli_epi16(third.low[i], 8);
          third.high[i] = _mm256_srli_epi16(third.high[i], 8);
        }
      }
    }
    SLUICE_UNROLL
    for (uint32_t i = 0; i < kPer; ++i) {
      const uint32_t g = kUnits > 0 ? (u + i) / kUnits : walk.Next();
      const __m256i factor0 = _mm256_set1_epi32(static_cast<int32_t>(pairs[0][g]));
      const __m256i factor1 = _mm256_set1_epi32(static_cast<int32_t>(pairs[1][g]));
      __m256i* place = reinterpret_cast<__m256i*>(sums + (uint64_t{u} + i) * 16);
      const __m256i low = FieldOf<kKind>(blocks.low[0], i, third.low[0], i);
      const __m256i high = FieldOf<kKind>(blocks.high[0], i, third.high[0], i);
      __m256i s0 =
          kFirst ? _mm256_madd_epi16(low, factor0) : AddProducts(_mm256_loadu_si256(place), low, factor0);
      __m256i s1 = kFirst ? _mm256_madd_epi16(high, factor0)
                          : AddProducts(_mm256_loadu_si256(place + 1), high, factor0);
      s0 = AddProducts(s0, FieldOf<kKind>(blocks.low[1], i, third.low[1], i), factor1);
      s1 = AddProducts(s1, FieldOf<kKind>(blocks.high[1], i, third.high[1], i), factor1);
      _mm256_storeu_si256(place, s0);
      _mm256_storeu_si256(place + 1, s1);
    }
  }
}

// y (+)= scale * (S - Z), closed, sixteen columns from k on; s are their two registers.
SLUICE_INLINE void FinishUnit(const QuantDownCall& call, const DownFactors& f, uint32_t k, uint32_t g,
                              const __m256i* s, float* y) {
  const __m256 scale = _mm256_set1_ps(f.scales[g]);
  const __m256 zero = _mm256_set1_ps(f.zero_sums[g]);
  const __m256i ordered[2] = {_mm256_permute2x128_si256(s[0], s[1], 0x20),
                              _mm256_permute2x128_si256(s[0], s[1], 0x31)};
  __m256 sums[2];
  for (int i = 0; i < 2; ++i) {
    const __m256 block = _mm256_mul_ps(scale, _mm256_sub_ps(_mm256_cvtepi32_ps(ordered[i]), zero));
    sums[i] = _mm256_add_ps(block, _mm256_setzero_ps());
  }
  if (call.shape.cols - k >= 16) {
    for (int i = 0; i < 2; ++i) {
      float* place = y + k + 8 * i;
      _mm256_storeu_ps(place, call.add ? _mm256_add_ps(_mm256_loadu_ps(place), sums[i]) : sums[i]);
    }
    return;
  }
  alignas(64) float values[kLanes] = {};
  _mm256_store_ps(values, sums[0]);
  _mm256_store_ps(values + 8, sums[1]);
  const uint32_t n = call.shape.cols - k;
  if (call.add) {
    Accumulate(values, n, y + k);
  } else {
    __builtin_memcpy(y + k, values, n * sizeof(float));
  }
}

// The lines that the call fetches while the rows [j, j + 4) are read, in a step for each block of them.
template <QuantKind kKind>
LinesAhead FetchWhile(const QuantDownCall& call, uint32_t j, uint32_t fetch_lines) {
  LinesAhead lines;
  if (fetch_lines > 0) {
    constexpr uint32_t kColumns = kBlockUnits<kKind> * 16;
    const uint32_t rows = call.neurons - j < 4 ? call.neurons - j : 4;
    fetch_lines -= fetch_lines / kRoundingShare;
    call.fetch->Start(fetch_lines * rows, (call.shape.cols + kColumns - 1) / kColumns, &lines);
  }
  return lines;
}

// Adds a block of neurons to y. Way: the method of adding four rows.
template <QuantKind kKind, class Way>
void DownByPairs(const QuantDownCall& call) {
  DownFactors f;
  f.pair_words = RoundUp(call.shape.groups, 8);
  f.pairs = call.scratch;
  f.scales = reinterpret_cast<float*>(f.pairs + uint64_t{34} * f.pair_words);
  f.zero_sums = f.scales + f.pair_words;
  int32_t* sums = reinterpret_cast<int32_t*>(f.zero_sums + f.pair_words);
  const bool prefetch = KindOf(call.prefetch) != Prefetch::kNone;
  for (uint32_t t = 0; t < call.tokens; ++t) {
    const uint32_t fetch_lines = t == 0 && call.fetch != nullptr ? call.fetch_lines : 0;
    RoundCoefficients<kKind, Way>(call, t, fetch_lines, f);
    Way::Sum(call, f, fetch_lines, prefetch && t == 0, sums);
    GroupWalk groups(call.shape.group);
    for (uint32_t k = 0; k < call.shape.cols; k += 16) {
      const __m256i* s = reinterpret_cast<const __m256i*>(sums + k);
      const __m256i pair[2] = {_mm256_loadu_si256(s), _mm256_loadu_si256(s + 1)};
      FinishUnit(call, f, k, groups.Next(), pair, call.y[t]);
    }
  }
}

// Adds rows by 16-bit words.
template <QuantKind kKind, uint32_t kUnits>
struct ByWords {
  static void StorePairs(__m256i pairs, uint32_t g, uint32_t* out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + g), pairs);
  }
  static void Sum(const QuantDownCall& call, const DownFactors& f, uint32_t fetch_lines, bool prefetch,
                  int32_t* sums) {
    for (uint32_t j = 0; j < call.neurons; j += 4) {
      LinesAhead lines = FetchWhile<kKind>(call, j, fetch_lines);
      j == 0 ? AddFourRows<kKind, kUnits, true>(call, f, j, prefetch, &lines, sums)
             : AddFourRows<kKind, kUnits, false>(call, f, j, prefetch, &lines, sums);
    }
  }
};
