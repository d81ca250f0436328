// Weighted sums of quantized rows (ARITHMETIC.md 3): one block of neurons, int16 coefficients, exact sums in
// int32.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// The rounded coefficients of one token and one block of neurons. pairs[j / 2][g]: codes of neurons j (low
// half) and j + 1; scales[g]; zero_sums[g]. All [g] are padded to a multiple of 8.
struct DownFactors {
  uint32_t* pairs;
  float* scales;
  float* zero_sums;
  uint32_t padded_groups;
};

// d[j][g .. g + 8) of a neuron.
template <QuantKind kKind>
inline __m256 Coefficients(const QuantDownCall& call, uint32_t t, uint32_t j, uint32_t g, uint32_t count) {
  return _mm256_mul_ps(_mm256_set1_ps(call.c[t][j]), ScalesOf<kKind>(call.shape, call.w[j], g, count));
}

template <QuantKind kKind>
inline void RoundCoefficients(const QuantDownCall& call, uint32_t t, const DownFactors& out) {
  const uint32_t groups = call.shape.groups;
  for (uint32_t g = 0; g < groups; g += 8) {
    const uint32_t count = groups - g < 8 ? groups - g : 8;
    __m256 largest = _mm256_setzero_ps();
    for (uint32_t j = 0; j < call.neurons; ++j) {
      const __m256 d = Coefficients<kKind>(call, t, j, g, count);
      largest = _mm256_max_ps(largest, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), d));
    }
    const __m256 zero = _mm256_cmp_ps(largest, _mm256_set1_ps(1e-30f), _CMP_LT_OQ);
    const __m256 full = _mm256_set1_ps(32767.0f);
    const __m256 inverse = _mm256_andnot_ps(zero, _mm256_div_ps(full, largest));
    _mm256_storeu_ps(out.scales + g, _mm256_andnot_ps(zero, _mm256_div_ps(largest, full)));
    __m256 zero_sum = _mm256_setzero_ps();
    __m256i previous = _mm256_setzero_si256();
    for (uint32_t j = 0; j < call.neurons; ++j) {
      const __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(Coefficients<kKind>(call, t, j, g, count), inverse));
      zero_sum =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(q), ZerosOf<kKind>(call.shape, call.w[j], g, count), zero_sum);
      const __m256i low = _mm256_and_si256(j % 2 == 0 ? q : previous, _mm256_set1_epi32(0xffff));
      const __m256i high = j % 2 == 0 ? _mm256_setzero_si256() : _mm256_slli_epi32(q, 16);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.pairs + uint64_t{j / 2} * out.padded_groups + g),
                          _mm256_or_si256(low, high));
      previous = q;
    }
    _mm256_storeu_ps(out.zero_sums + g, _mm256_add_ps(zero_sum, _mm256_setzero_ps()));
  }
}

// Adds two rows' units times their codes to sixteen int32 sums, which hold the columns in the order of
// unpacking: 0-3 8-11, 4-7 12-15.
inline void AddPair(__m256i a, __m256i b, uint32_t pair, __m256i* sums) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int32_t>(pair));
  sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), factor));
  sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), factor));
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

// Neurons [j, j + 4) (fewer at the end) into sums [cols rounded up to 16]; `first` starts them.
template <QuantKind kKind>
void AddFourRows(const QuantDownCall& call, const DownFactors& f, uint32_t j, bool first, int32_t* sums) {
  const uint32_t last = call.neurons - 1;
  const uint8_t* w[4];
  const uint8_t* ahead[4];
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = j + i < last ? j + i : last;  // beyond the end the codes are 0
    w[i] = call.w[row];
    ahead[i] = KindOf(call.prefetch) == Prefetch::kNone ? nullptr : RowAhead(call.w, row, call.prefetch);
  }
  const uint32_t steps = (call.shape.cols + 63) / 64;
  LinesAhead lines[4] = {{ahead[0], call.shape.bytes, steps},
                         {ahead[1], call.shape.bytes, steps},
                         {ahead[2], call.shape.bytes, steps},
                         {ahead[3], call.shape.bytes, steps}};
  const uint32_t* pairs0 = f.pairs + uint64_t{j / 2} * f.padded_groups;
  const bool second = j + 2 < call.neurons;
  const uint32_t* pairs1 = second ? pairs0 + f.padded_groups : pairs0;
  GroupWalk groups(call.shape.group);
  for (uint32_t u = 0; u * 16 < call.shape.cols; ++u) {
    if (u % 4 == 0) {
      for (LinesAhead& of_row : lines) {
        of_row.Step();
      }
    }
    const uint32_t g = groups.Next();
    __m256i* place = reinterpret_cast<__m256i*>(sums + uint64_t{u} * 16);
    __m256i s[2];
    for (int i = 0; i < 2; ++i) {
      s[i] = first ? _mm256_setzero_si256() : _mm256_loadu_si256(place + i);
    }
    AddPair(UnitOf<kKind>(call.shape, w[0], u), UnitOf<kKind>(call.shape, w[1], u), pairs0[g], s);
    if (second) {
      AddPair(UnitOf<kKind>(call.shape, w[2], u), UnitOf<kKind>(call.shape, w[3], u), pairs1[g], s);
    }
    for (int i = 0; i < 2; ++i) {
      _mm256_storeu_si256(place + i, s[i]);
    }
  }
}

// y (+)= scale * (S - Z), closed, sixteen columns from k on; s are their two registers.
inline void FinishUnit(const QuantDownCall& call, const DownFactors& f, uint32_t k, uint32_t g,
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
  const uint32_t n = call.shape.cols - k < 16 ? call.shape.cols - k : 16;
  if (call.add) {
    Accumulate(values, n, y + k);
  } else {
    __builtin_memcpy(y + k, values, n * sizeof(float));
  }
}

template <QuantKind kKind>
void QuantDown(const QuantDownCall& call) {
  DownFactors f;
  f.padded_groups = RoundUp(call.shape.groups, 8);
  f.pairs = call.scratch;
  f.scales = reinterpret_cast<float*>(f.pairs + uint64_t{32} * f.padded_groups);
  f.zero_sums = f.scales + f.padded_groups;
  int32_t* sums = reinterpret_cast<int32_t*>(f.zero_sums + f.padded_groups);
  for (uint32_t t = 0; t < call.tokens; ++t) {
    RoundCoefficients<kKind>(call, t, f);
    for (uint32_t j = 0; j < call.neurons; j += 4) {
      AddFourRows<kKind>(call, f, j, j == 0, sums);
    }
    GroupWalk groups(call.shape.group);
    for (uint32_t k = 0; k < call.shape.cols; k += 16) {
      const __m256i* s = reinterpret_cast<const __m256i*>(sums + k);
      const __m256i pair[2] = {_mm256_loadu_si256(s), _mm256_loadu_si256(s + 1)};
      FinishUnit(call, f, k, groups.Next(), pair, call.y[t]);
    }
  }
}
