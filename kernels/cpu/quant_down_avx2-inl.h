// Weighted sums of quantized rows by bytes (quant_codes-inl.h) with 256-bit registers, for codes of up to 24:
// the bytes of two neurons are interleaved, multiplied with their coefficients and added up in 16 bits. In
// fields of the same number, the even bytes of a block hold one unit and the odd bytes the unit half a block
// later, so each 16-bit lane is a column.
//
// 16-bit lanes hold the sums of kNeuronsAtOnce neurons, which are then added to the 32-bit sums.
//
// Included by isa_avx2-inl.h and isa_avx2vnni-inl.h.
//
// Thread safety: pure but for the memory that the calls name.

#ifndef SLUICE_ISA
#error "included by isa/avx2*-inl.h only"
#endif

// True if rows of a kind with groups of kUnits units are added this way: the units of a block that share a
// field lie in one group or in two neighbours.
template <QuantKind kKind, uint32_t kUnits>
inline constexpr bool kDownByBytes = kKind != QuantKind::kQ8&& kUnits > 0 && kUnits >= kByteFields<kKind>;

// True if they lie in two groups.
template <QuantKind kKind, uint32_t kUnits>
inline constexpr bool kTwoGroups = kUnits * 2 == kBlockUnits<kKind>;

// Neurons added in 16 bits: a multiple of the four that are read at once.
template <QuantKind kKind>
inline constexpr uint32_t kNeuronsAtOnce = std::min<uint32_t>(64, 32767 /
                                                                      (kLargestByte * kLargestCode<kKind>) /
                                                                      4 * 4);

// The third bits of a q3 block's codes. The low (or high) bytes of `words` hold them for a low block; bits 0
// to 3 of each result byte belong to fields 0 to 3 of the same byte of the low block.
SLUICE_INLINE __m256i ThirdBitsOfWords(__m256i words, bool odd_block) {
  const __m256i even = odd_block ? _mm256_srli_epi16(words, 8) : words;
  const __m256i odd = odd_block ? _mm256_srli_epi16(words, 4) : _mm256_slli_epi16(words, 4);
  return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(0x000f)),
                         _mm256_and_si256(odd, _mm256_set1_epi16(0x0f00)));
}

// Multiplies the fields of half a block of four rows, interleaved in pairs, by the factors of each pair, and
// adds them to (kFirst: stores them in) the sums of kByteFields registers.
template <QuantKind kKind, bool kFirst>
SLUICE_INLINE void AddHalfBlock(const __m256i* bytes, const __m256i* third, const __m256i* factors,
                                __m256i* sums) {
  constexpr uint32_t kFields = kByteFields<kKind>;
  __m256i a[kFields];
  __m256i b[kFields];
  ByteFields<kKind>(bytes[0], third[0], a);
  ByteFields<kKind>(bytes[1], third[1], b);
  SLUICE_UNROLL
  for (uint32_t f = 0; f < kFields; ++f) {
    __m256i sum =
        _mm256_add_epi16(_mm256_maddubs_epi16(a[f], factors[0]), _mm256_maddubs_epi16(b[f], factors[1]));
    if (!kFirst) {
      sum = _mm256_add_epi16(sum, _mm256_load_si256(sums + f));
    }
    _mm256_store_si256(sums + f, sum);
  }
}

// Prefetches block b of the rows ahead. Two blocks are a line; for the third bits, four.
template <QuantKind kKind>
SLUICE_INLINE void FetchAhead(const uint8_t* const* rows, uint32_t high_plane, uint32_t b) {
  for (uint32_t i = 0; i < 4; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(rows[i]) + b * 32, _MM_HINT_T1);
    if (kKind == QuantKind::kQ3 && b % 4 == 0) {
      _mm_prefetch(reinterpret_cast<const char*>(rows[i]) + high_plane + b * 16, _MM_HINT_T1);
    }
  }
}

// Adds the four neurons of PairsAt() (fewer at the end) to 16-bit sums: a register for each block, half and
// field. The rows ahead are prefetched.
template <QuantKind kKind, uint32_t kUnits, bool kFirst>
void AddFourRowsOfBytes(const QuantDownCall& call, const uint32_t* factors, uint32_t pair_words, uint32_t j,
                        bool prefetch, LinesAhead* lines, __m256i* sums) {
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
  const uint32_t* pairs[2] = {factors + uint64_t{read[0]} * pair_words,
                              factors + uint64_t{read[1]} * pair_words};
  const uint32_t blocks = (call.shape.cols + kPer * 16 - 1) / (kPer * 16);
  for (uint32_t b = 0; b < blocks; ++b, sums += 2 * kByteFields<kKind>) {
    if (prefetch && b % 2 == 0) {
      FetchAhead<kKind>(ahead, call.shape.high_plane, b);
    }
    lines->Step();
    const uint32_t slot = kTwoGroups<kKind, kUnits> ? b : b * kPer / kUnits;
    __m256i factors_of[2];
    __m256i low[2];
    __m256i high[2];
    __m256i third_low[2] = {};
    __m256i third_high[2] = {};
    for (int i = 0; i < 2; ++i) {
      factors_of[i] = _mm256_set1_epi32(static_cast<int32_t>(pairs[i][slot]));
      const __m256i x = LoadBlock(w[2 * i] + uint64_t{b} * 32);
      const __m256i y = LoadBlock(w[2 * i + 1] + uint64_t{b} * 32);
      low[i] = _mm256_unpacklo_epi8(x, y);
      high[i] = _mm256_unpackhi_epi8(x, y);
      if constexpr (kKind == QuantKind::kQ3) {
        const uint64_t at = call.shape.high_plane + uint64_t{b / 2} * 32;
        const __m256i p = ThirdBitsOfWords(LoadBlock(w[2 * i] + at), b % 2 != 0);
        const __m256i q = ThirdBitsOfWords(LoadBlock(w[2 * i + 1] + at), b % 2 != 0);
        third_low[i] = _mm256_unpacklo_epi8(p, q);
        third_high[i] = _mm256_unpackhi_epi8(p, q);
      }
    }
    AddHalfBlock<kKind, kFirst>(low, third_low, factors_of, sums);
    AddHalfBlock<kKind, kFirst>(high, third_high, factors_of, sums + kByteFields<kKind>);
  }
  for (uint32_t at = call.shape.scales; prefetch && at < call.shape.bytes; at += 64) {
    for (const uint8_t* row : ahead) {
      _mm_prefetch(reinterpret_cast<const char*>(row) + at, _MM_HINT_T1);
    }
  }
}

// Adds 16-bit sums to 32-bit ones [unit][16], whose units hold the columns 0-3 8-11 4-7 12-15; kFirst starts
// them.
template <QuantKind kKind, bool kFirst>
void WidenSums(uint32_t cols, const __m256i* sums, int32_t* out) {
  constexpr uint32_t kPer = kBlockUnits<kKind>;
  const auto put = [](int32_t* place, __m256i value) {
    __m256i* p = reinterpret_cast<__m256i*>(place);
    _mm256_storeu_si256(p, kFirst ? value : _mm256_add_epi32(_mm256_loadu_si256(p), value));
  };
  for (uint32_t u = 0; u * 16 < cols; u += kPer, out += kPer * 16) {
    for (uint32_t half = 0; half < 2; ++half) {
      for (uint32_t f = 0; f < kByteFields<kKind>; ++f, ++sums) {
        const __m256i sum = _mm256_load_si256(sums);
        const __m256i even = _mm256_srai_epi32(_mm256_slli_epi32(sum, 16), 16);
        const __m256i odd = _mm256_srai_epi32(sum, 16);
        put(out + f * 16 + half * 8, even);
        put(out + (f + kByteFields<kKind>)*16 + half * 8, odd);
      }
    }
  }
}

template <QuantKind kKind, uint32_t kUnits>
struct ByBytes {
  // Converts pairs of coefficients of eight groups, as 16-bit values of two neurons, to the broadcast form:
  // for each slot (two neighbouring groups, or one group) two bytes for the even bytes and two for the odd
  // ones.
  static void StorePairs(__m256i pairs, uint32_t g, uint32_t* out) {
    if constexpr (kTwoGroups<kKind, kUnits>) {
      const __m256i bytes =
          BShuffle(pairs, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, -1, -1, -1, -1, -1, -1, -1, -1));
      const __m256i together = _mm256_permute4x64_epi64(bytes, 0x08);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + g / 2), _mm256_castsi256_si128(together));
    } else {
      const __m256i bytes =
          BShuffle(pairs, _mm_setr_epi8(0, 2, 0, 2, 4, 6, 4, 6, 8, 10, 8, 10, 12, 14, 12, 14));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + g), bytes);
    }
  }
  static void Sum(const QuantDownCall& call, const DownFactors& f, uint32_t fetch_lines, bool prefetch,
                  int32_t* sums) {
    constexpr uint32_t kAtOnce = kNeuronsAtOnce<kKind>;
    __m256i* sums16 = reinterpret_cast<__m256i*>(sums + RoundUp(call.shape.cols, kCodeAlign));
    for (uint32_t j = 0; j < call.neurons; j += 4) {
      LinesAhead lines = FetchWhile<kKind>(call, j, fetch_lines);
      j % kAtOnce == 0
          ? AddFourRowsOfBytes<kKind, kUnits, true>(call, f.pairs, f.pair_words, j, prefetch, &lines, sums16)
          : AddFourRowsOfBytes<kKind, kUnits, false>(call, f.pairs, f.pair_words, j, prefetch, &lines,
                                                     sums16);
      const uint32_t done = j + 4;
      if (done >= call.neurons || done % kAtOnce == 0) {
        done <= kAtOnce ? WidenSums<kKind, true>(call.shape.cols, sums16, sums)
                        : WidenSums<kKind, false>(call.shape.cols, sums16, sums);
      }
    }
  }
};

template <QuantKind kKind, uint32_t kUnits>
void QuantDownRows(const QuantDownCall& call) {
  using Way = std::conditional_t<kDownByBytes<kKind, kUnits>, ByBytes<kKind, kUnits>, ByWords<kKind, kUnits>>;
  DownByPairs<kKind, Way>(call);
}
