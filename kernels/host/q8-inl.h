// q8 rows (ARITHMETIC.md 2 b and 3): int16 activations or coefficients, exact group sums in int32. 256-bit
// code in both instruction sets: the sums are exact, so the width changes nothing, and memory is the limit.
//
// A row's codes come in blocks of 32 bytes: word i holds code i in its low and code i + 16 in its high byte,
// so a mask or a shift gives sixteen consecutive codes, a "unit".
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

inline __m256i LoadBlock(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m256i LoadCodes16(const int16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m256i LowUnit(__m256i block) { return _mm256_and_si256(block, _mm256_set1_epi16(0xff)); }
inline __m256i HighUnit(__m256i block) { return _mm256_srli_epi16(block, 8); }

// Eight f16 values of which n are there; zeros behind them.
inline __m256 LoadHalves(const uint8_t* p, uint32_t n) {
  if (n >= 8) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  alignas(16) uint8_t bytes[16] = {};
  __builtin_memcpy(bytes, p, n * 2);
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// v[i]'s eight lanes added to lane i.
inline __m256i FoldEight(const __m256i* v) {
  const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
  const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

// The tree over eight lanes and the closing +0.
inline float TotalOfEight(__m256 a) {
  const __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 u = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(_mm_add_ss(u, _mm_movehdup_ps(u)), _mm_setzero_ps()));
}

// The largest magnitude of n values.
inline float LargestMagnitudeOf(const float* x, uint32_t n) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 largest = _mm256_setzero_ps();
  uint32_t k = 0;
  for (; k + 8 <= n; k += 8) {
    largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + k)));
  }
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  float out = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  for (; k < n; ++k) {
    const float magnitude = __builtin_fabsf(x[k]);
    out = magnitude > out ? magnitude : out;
  }
  return out;
}

// Sixteen values times `factor` as saturated int16.
inline __m256i SixteenCodes(const float* x, __m256 factor) {
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor));
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}

inline int32_t SumOfCodes(__m256i codes) {
  const __m256i pairs = _mm256_madd_epi16(codes, _mm256_set1_epi16(1));
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// One group's codes, n <= 128; returns their sum. Writes up to a multiple of 16, zeros behind the n.
inline int32_t StoreCodes(const float* x, float inverse, uint32_t n, int16_t* codes) {
  int32_t sum = 0;
  const __m256 factor = _mm256_set1_ps(inverse);
  for (uint32_t k = 0; k < n; k += 16) {
    __m256i out;
    if (n - k >= 16) {
      out = SixteenCodes(x + k, factor);
    } else {
      alignas(32) float values[16] = {};
      __builtin_memcpy(values, x + k, (n - k) * sizeof(float));
      out = SixteenCodes(values, factor);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + k), out);
    sum += SumOfCodes(out);
  }
  return sum;
}

inline void Quantize(const QuantizeCall& call) {
  uint32_t g = 0;
  for (uint32_t k = 0; k < call.cols; k += call.group, ++g) {
    const uint32_t n = call.cols - k < call.group ? call.cols - k : call.group;
    const float largest = LargestMagnitudeOf(call.x + k, n);
    const bool zero = largest < 1e-30f;
    const int32_t sum = StoreCodes(call.x + k, zero ? 0.0f : 32767.0f / largest, n, call.codes + k);
    call.scales[g] = zero ? 0.0f : largest / 32767.0f;
    call.sums[g] = static_cast<float>(sum);
  }
  for (; g % 8 != 0; ++g) {
    call.scales[g] = 0.0f;
    call.sums[g] = 0.0f;
  }
  // Groups are multiples of 16, so only a whole unit can be missing in the last block.
  for (uint32_t k = (call.cols + 15) / 16 * 16; k % 32 != 0; ++k) {
    call.codes[k] = 0;
  }
}

// Partial sums of whole blocks: one group of kBlocks * 32 codes.
template <int kBlocks>
inline __m256i GroupOfBlocks(const uint8_t* w, const int16_t* x) {
  __m256i sum = _mm256_setzero_si256();
  for (int b = 0; b < kBlocks; ++b) {
    const __m256i block = LoadBlock(w + b * 32);
    const __m256i low = _mm256_madd_epi16(LowUnit(block), LoadCodes16(x + b * 32));
    const __m256i high = _mm256_madd_epi16(HighUnit(block), LoadCodes16(x + b * 32 + 16));
    sum = _mm256_add_epi32(sum, _mm256_add_epi32(low, high));
  }
  return sum;
}

// The same for any group: units [first, last) counted from the row's beginning.
inline __m256i GroupOfUnits(const uint8_t* w, const int16_t* x, uint32_t first, uint32_t last) {
  __m256i sum = _mm256_setzero_si256();
  for (uint32_t u = first; u < last; ++u) {
    const __m256i block = LoadBlock(w + uint64_t{u / 2} * 32);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(u % 2 == 0 ? LowUnit(block) : HighUnit(block),
                                                  LoadCodes16(x + uint64_t{u} * 16)));
  }
  return sum;
}

// kBlocks: blocks in a group, 0 for groups that are not whole blocks.
template <int kBlocks>
float DotQ8Row(const uint8_t* w, const QuantRow& x, uint32_t cols, uint32_t group, uint32_t prefetch) {
  const uint32_t groups = (cols + group - 1) / group;
  const uint64_t code_bytes = uint64_t{(cols + 31) / 32} * 32;
  const uint8_t* scales = w + code_bytes;
  const uint8_t* zeros = scales + uint64_t{groups} * 2;
  const uint32_t units = (cols + 15) / 16;
  __m256 lanes = _mm256_setzero_ps();
  for (uint32_t g = 0; g < groups; g += 8) {
    const uint32_t count = groups - g < 8 ? groups - g : 8;
    __m256i v[8];
    if (kBlocks > 0 && (g + 8) * group <= cols) {
      for (uint32_t i = 0; i < 8; ++i) {
        const uint8_t* p = w + uint64_t{g + i} * kBlocks * 32;
        if (prefetch != 0) {
          _mm_prefetch(reinterpret_cast<const char*>(p) + prefetch, _MM_HINT_T0);
        }
        v[i] = GroupOfBlocks<kBlocks>(p, x.codes + uint64_t{g + i} * kBlocks * 32);
      }
    } else {
      const uint32_t per_group = group / 16;
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t first = (g + i) * per_group;
        const uint32_t last = first + per_group < units ? first + per_group : units;
        v[i] = GroupOfUnits(w, x.codes, first, i < count ? last : first);
      }
    }
    const __m256 s = _mm256_cvtepi32_ps(FoldEight(v));
    const __m256 t =
        _mm256_fnmadd_ps(LoadHalves(zeros + uint64_t{g} * 2, count), _mm256_loadu_ps(x.sums + g), s);
    const __m256 scale =
        _mm256_mul_ps(LoadHalves(scales + uint64_t{g} * 2, count), _mm256_loadu_ps(x.scales + g));
    lanes = _mm256_fmadd_ps(scale, t, lanes);
  }
  return TotalOfEight(lanes);
}

// A row's scales and zeros lie behind its codes and are wanted with the first of them: they are fetched while
// the rows before it are computed, or every row would begin with a wait.
inline void PrefetchScales(const uint8_t* w, uint32_t cols, uint32_t group) {
  const uint32_t code_bytes = (cols + 31) / 32 * 32;
  const uint32_t bytes = (cols + group - 1) / group * 4;
  for (uint32_t at = 0; at < bytes; at += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w) + code_bytes + at, _MM_HINT_T0);
  }
  _mm_prefetch(reinterpret_cast<const char*>(w) + code_bytes + bytes - 1, _MM_HINT_T0);
}

template <int kBlocks>
void DotQ8Rows(const DotQ8Call& call) {
  constexpr uint32_t kAhead = 2;  // rows
  for (uint32_t r = 0; r < call.rows; ++r) {
    if (r + kAhead < call.rows) {
      PrefetchScales(call.w[r + kAhead], call.cols, call.group);
    }
    for (uint32_t t = 0; t < call.tokens; ++t) {
      call.y[t][call.first + r] =
          DotQ8Row<kBlocks>(call.w[r], call.x[t], call.cols, call.group, t == 0 ? call.prefetch : 0);
    }
  }
}

inline void DotQ8(const DotQ8Call& call) {
  switch (call.group) {
    case 32:
      return DotQ8Rows<1>(call);
    case 64:
      return DotQ8Rows<2>(call);
    case 128:
      return DotQ8Rows<4>(call);
    default:
      return DotQ8Rows<0>(call);
  }
}

// The rounded coefficients of one token and one block of neurons. pairs[j / 2][g]: codes of neurons j (low
// half) and j + 1; scales[g]; zero_sums[g]. All [g] are padded to a multiple of 8.
struct DownQ8Factors {
  uint32_t* pairs;
  float* scales;
  float* zero_sums;
  uint32_t padded_groups;
};

// d[j][g .. g + 8) of a neuron.
inline __m256 Coefficients(const DownQ8Call& call, uint32_t t, uint32_t j, uint64_t scale_offset, uint32_t g,
                           uint32_t count) {
  return _mm256_mul_ps(_mm256_set1_ps(call.c[t][j]),
                       LoadHalves(call.w[j] + scale_offset + uint64_t{g} * 2, count));
}

inline void RoundCoefficients(const DownQ8Call& call, uint32_t t, const DownQ8Factors& out) {
  const uint32_t groups = (call.cols + call.group - 1) / call.group;
  const uint64_t scale_offset = uint64_t{(call.cols + 31) / 32} * 32;
  const uint64_t zero_offset = scale_offset + uint64_t{groups} * 2;
  for (uint32_t g = 0; g < groups; g += 8) {
    const uint32_t count = groups - g < 8 ? groups - g : 8;
    __m256 largest = _mm256_setzero_ps();
    for (uint32_t j = 0; j < call.neurons; ++j) {
      const __m256 d = Coefficients(call, t, j, scale_offset, g, count);
      largest = _mm256_max_ps(largest, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), d));
    }
    const __m256 zero = _mm256_cmp_ps(largest, _mm256_set1_ps(1e-30f), _CMP_LT_OQ);
    const __m256 full = _mm256_set1_ps(32767.0f);
    const __m256 inverse = _mm256_andnot_ps(zero, _mm256_div_ps(full, largest));
    _mm256_storeu_ps(out.scales + g, _mm256_andnot_ps(zero, _mm256_div_ps(largest, full)));
    __m256 zero_sum = _mm256_setzero_ps();
    __m256i previous = _mm256_setzero_si256();
    for (uint32_t j = 0; j < call.neurons; ++j) {
      const __m256i q =
          _mm256_cvtps_epi32(_mm256_mul_ps(Coefficients(call, t, j, scale_offset, g, count), inverse));
      zero_sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(q),
                                 LoadHalves(call.w[j] + zero_offset + uint64_t{g} * 2, count), zero_sum);
      const __m256i low = _mm256_and_si256(j % 2 == 0 ? q : previous, _mm256_set1_epi32(0xffff));
      const __m256i high = j % 2 == 0 ? _mm256_setzero_si256() : _mm256_slli_epi32(q, 16);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.pairs + uint64_t{j / 2} * out.padded_groups + g),
                          _mm256_or_si256(low, high));
      previous = q;
    }
    _mm256_storeu_ps(out.zero_sums + g, _mm256_add_ps(zero_sum, _mm256_setzero_ps()));
  }
}

// Adds two rows times their codes to the int32 sums of one block of 32 columns. The words of the two rows are
// interleaved before they are split into codes. sums hold the columns in the order of unpacking: 0-3 8-11,
// 4-7 12-15, and the same from 16 on.
inline void AddPair(__m256i a, __m256i b, __m256i low_factor, __m256i high_factor, __m256i* sums) {
  const __m256i low = _mm256_unpacklo_epi16(a, b);
  const __m256i high = _mm256_unpackhi_epi16(a, b);
  sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(LowUnit(low), low_factor));
  sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(LowUnit(high), low_factor));
  sums[2] = _mm256_add_epi32(sums[2], _mm256_madd_epi16(HighUnit(low), high_factor));
  sums[3] = _mm256_add_epi32(sums[3], _mm256_madd_epi16(HighUnit(high), high_factor));
}

// Walks the units of a row and says which group each belongs to, without a division.
class GroupWalk {
 public:
  explicit GroupWalk(uint32_t group) : units_(group / 16) {}
  // The group of the current unit; moves to the next unit.
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

// Neurons [j, j + 4) (fewer at the end) into sums [cols rounded up to 32]; `first` starts them.
inline void AddFourRows(const DownQ8Call& call, const DownQ8Factors& f, uint32_t j, bool first,
                        int32_t* sums) {
  const uint32_t last = call.neurons - 1;
  const uint8_t* w[4];
  for (uint32_t i = 0; i < 4; ++i) {
    w[i] = call.w[j + i < last ? j + i : last];  // beyond the end the codes are 0
  }
  const uint32_t* pairs0 = f.pairs + uint64_t{j / 2} * f.padded_groups;
  const bool second = j + 2 < call.neurons;
  const uint32_t* pairs1 = second ? pairs0 + f.padded_groups : pairs0;
  GroupWalk groups(call.group);
  for (uint32_t k = 0; k < call.cols; k += 32) {
    const uint32_t g0 = groups.Next();
    // A unit that lies wholly in the padding belongs to no group; its codes are 0.
    const uint32_t g1 = k + 16 < call.cols ? groups.Next() : g0;
    __m256i* place = reinterpret_cast<__m256i*>(sums + k);
    __m256i s[4];
    for (int i = 0; i < 4; ++i) {
      s[i] = first ? _mm256_setzero_si256() : _mm256_loadu_si256(place + i);
    }
    AddPair(LoadBlock(w[0] + k), LoadBlock(w[1] + k), _mm256_set1_epi32(static_cast<int32_t>(pairs0[g0])),
            _mm256_set1_epi32(static_cast<int32_t>(pairs0[g1])), s);
    if (second) {
      AddPair(LoadBlock(w[2] + k), LoadBlock(w[3] + k), _mm256_set1_epi32(static_cast<int32_t>(pairs1[g0])),
              _mm256_set1_epi32(static_cast<int32_t>(pairs1[g1])), s);
    }
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_si256(place + i, s[i]);
    }
  }
}

// y (+)= scale * (S - Z), closed, sixteen columns from k on; s are their two registers.
inline void FinishUnit(const DownQ8Call& call, const DownQ8Factors& f, uint32_t k, uint32_t g,
                       const __m256i* s, float* y) {
  const __m256 scale = _mm256_set1_ps(f.scales[g]);
  const __m256 zero = _mm256_set1_ps(f.zero_sums[g]);
  const __m256i ordered[2] = {_mm256_permute2x128_si256(s[0], s[1], 0x20),
                              _mm256_permute2x128_si256(s[0], s[1], 0x31)};
  alignas(32) float values[16];
  for (int i = 0; i < 2; ++i) {
    const __m256 block = _mm256_mul_ps(scale, _mm256_sub_ps(_mm256_cvtepi32_ps(ordered[i]), zero));
    _mm256_store_ps(values + 8 * i, _mm256_add_ps(block, _mm256_setzero_ps()));
  }
  const uint32_t n = call.cols - k < 16 ? call.cols - k : 16;
  if (call.add) {
    Accumulate(values, n, y + k);
  } else {
    __builtin_memcpy(y + k, values, n * sizeof(float));
  }
}

inline void DownQ8(const DownQ8Call& call) {
  const uint32_t groups = (call.cols + call.group - 1) / call.group;
  DownQ8Factors f;
  f.padded_groups = (groups + 7) / 8 * 8;
  f.pairs = call.scratch;
  f.scales = reinterpret_cast<float*>(f.pairs + uint64_t{32} * f.padded_groups);
  f.zero_sums = f.scales + f.padded_groups;
  int32_t* sums = reinterpret_cast<int32_t*>(f.zero_sums + f.padded_groups);
  for (uint32_t t = 0; t < call.tokens; ++t) {
    RoundCoefficients(call, t, f);
    for (uint32_t j = 0; j < call.neurons; j += 4) {
      AddFourRows(call, f, j, j == 0, sums);
    }
    GroupWalk groups(call.group);
    for (uint32_t k = 0; k < call.cols; k += 16) {
      const __m256i* s = reinterpret_cast<const __m256i*>(sums + k);
      const __m256i pair[2] = {_mm256_loadu_si256(s), _mm256_loadu_si256(s + 1)};
      FinishUnit(call, f, k, groups.Next(), pair, call.y[t]);
    }
  }
}
