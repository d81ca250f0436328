// Weighted sums of quantized rows by bytes (byte_codes-inl.h), for codes of two to four bits: the bytes of
// two neurons are interleaved, multiplied with the high and the low bytes of their coefficients and added up
// in 16 bits. Of the fields of a block with the same number the even bytes hold one unit, the odd bytes the
// one half a block later, so each 16-bit lane is a column.
//
// 16 bits hold the sums of kNeuronsAtOnce neurons: of the high bytes at most 128 * kLargest each, signed; of
// the low ones at most 255 * kLargest each, unsigned. Then they are added to the 32-bit sums.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// Of the lines that a call has fetched, one in so many while coefficients are rounded, about what that takes
// of the time.
inline constexpr uint32_t kRoundingShare = 8;

// These, in one of so many parts of the rounding, a step a neuron. lines: a row's; 0: none.
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

// Whether rows of a kind with groups of kUnits units are added so: the units of a block that share a field
// lie in one group or in two neighbours.
template <QuantKind kKind, uint32_t kUnits>
inline constexpr bool kDownByBytes = kKind == QuantKind::kQ4
                                         ? kUnits == 2 || kUnits == 4 || kUnits == 8
                                         : (kKind == QuantKind::kQ2 || kKind == QuantKind::kQ3) &&
                                               (kUnits == 4 || kUnits == 8);

// Whether they lie in two groups.
template <QuantKind kKind, uint32_t kUnits>
inline constexpr bool kTwoGroups = kUnits * 2 == kBlockUnits<kKind>;

template <QuantKind kKind>
inline constexpr uint32_t kNeuronsAtOnce = kKind == QuantKind::kQ2   ? 64
                                           : kKind == QuantKind::kQ3 ? 32
                                                                     : 16;

template <QuantKind kKind>
inline constexpr uint32_t kLargestCode = kKind == QuantKind::kQ2   ? 3
                                         : kKind == QuantKind::kQ3 ? 7
                                                                   : 15;
static_assert(kNeuronsAtOnce<QuantKind::kQ2> * 128 * kLargestCode<QuantKind::kQ2> <= 32767);
static_assert(kNeuronsAtOnce<QuantKind::kQ3> * 128 * kLargestCode<QuantKind::kQ3> <= 32767);
static_assert(kNeuronsAtOnce<QuantKind::kQ4> * 128 * kLargestCode<QuantKind::kQ4> <= 32767);
static_assert(kNeuronsAtOnce<QuantKind::kQ2> * 255 * kLargestCode<QuantKind::kQ2> <= 65535);
static_assert(kNeuronsAtOnce<QuantKind::kQ3> * 255 * kLargestCode<QuantKind::kQ3> <= 65535);
static_assert(kNeuronsAtOnce<QuantKind::kQ4> * 255 * kLargestCode<QuantKind::kQ4> <= 65535);

// Pairs of coefficients of eight groups, as 16-bit values of two neurons, to what is broadcast: for each slot
// (two neighbouring groups, or one group) four high bytes and then four low ones, of both neurons for the
// even bytes and for the odd ones.
template <bool kTwo>
SLUICE_INLINE void StoreBytePairs(__m256i pairs, uint32_t* out) {
  const __m256i order =
      _mm256_broadcastsi128_si256(kTwo ? _mm_setr_epi8(1, 3, 5, 7, 0, 2, 4, 6, 9, 11, 13, 15, 8, 10, 12, 14)
                                       : _mm_setr_epi8(1, 3, 1, 3, 0, 2, 0, 2, 9, 11, 9, 11, 8, 10, 8, 10));
  __m256i* place = reinterpret_cast<__m256i*>(out);
  if constexpr (kTwo) {
    _mm256_storeu_si256(place, _mm256_shuffle_epi8(pairs, order));
  } else {
    _mm256_storeu_si256(place,
                        _mm256_shuffle_epi8(_mm256_cvtepu32_epi64(_mm256_castsi256_si128(pairs)), order));
    _mm256_storeu_si256(
        place + 1, _mm256_shuffle_epi8(_mm256_cvtepu32_epi64(_mm256_extracti128_si256(pairs, 1)), order));
  }
}

// The third bits of a q3 block's codes: of words whose low (or high) bytes hold them for a low block, bits 0
// to 3 of each byte become those of fields 0 to 3 of the same byte of the low block.
SLUICE_INLINE __m256i ThirdBitsOfWords(__m256i words, bool odd_block) {
  const __m256i even = odd_block ? _mm256_srli_epi16(words, 8) : words;
  const __m256i odd = odd_block ? _mm256_srli_epi16(words, 4) : _mm256_slli_epi16(words, 4);
  return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(0x000f)),
                         _mm256_and_si256(odd, _mm256_set1_epi16(0x0f00)));
}

// What four rows' bytes of a block are multiplied with: of each pair of rows.
struct ByteFactors {
  __m256i high[2];
  __m256i low[2];
};

// The fields of half a block of four rows, interleaved in pairs, times the factors: added to (kFirst: stored
// in) the high and low sums of kByteFields registers each, which alternate.
template <QuantKind kKind, bool kFirst>
SLUICE_INLINE void AddHalfBlock(const __m256i* bytes, const __m256i* third, const ByteFactors& factors,
                                __m256i* sums) {
  __m256i a[4];
  __m256i b[4];
  ByteFields<kKind>(bytes[0], third[0], a);
  ByteFields<kKind>(bytes[1], third[1], b);
  SLUICE_UNROLL
  for (int f = 0; f < kByteFields<kKind>; ++f) {
    __m256i high = _mm256_add_epi16(_mm256_maddubs_epi16(a[f], factors.high[0]),
                                    _mm256_maddubs_epi16(b[f], factors.high[1]));
    __m256i low = _mm256_add_epi16(_mm256_maddubs_epi16(factors.low[0], a[f]),
                                   _mm256_maddubs_epi16(factors.low[1], b[f]));
    if (!kFirst) {
      high = _mm256_add_epi16(high, _mm256_load_si256(sums + 2 * f));
      low = _mm256_add_epi16(low, _mm256_load_si256(sums + 2 * f + 1));
    }
    _mm256_store_si256(sums + 2 * f, high);
    _mm256_store_si256(sums + 2 * f + 1, low);
  }
}

// Of the rows that are prefetched: what lies where block b does. Two blocks are a line, or four of the third
// bits.
template <QuantKind kKind>
SLUICE_INLINE void FetchAhead(const uint8_t* const* rows, uint32_t high_plane, uint32_t b) {
  for (uint32_t i = 0; i < 4; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(rows[i]) + b * 32, _MM_HINT_T1);
    if (kKind == QuantKind::kQ3 && b % 4 == 0) {
      _mm_prefetch(reinterpret_cast<const char*>(rows[i]) + high_plane + b * 16, _MM_HINT_T1);
    }
  }
}

// The four neurons of PairsAt() (fewer at the end) into 16-bit sums: for each block, half and field a
// register of high and one of low sums. The rows ahead are prefetched.
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
  for (uint32_t b = 0; b < blocks; ++b, sums += 4 * kByteFields<kKind>) {
    if (prefetch && b % 2 == 0) {
      FetchAhead<kKind>(ahead, call.shape.high_plane, b);
    }
    lines->Step();
    const uint32_t slot = 2 * (kTwoGroups<kKind, kUnits> ? b : b * kPer / kUnits);
    ByteFactors f;
    __m256i low[2];
    __m256i high[2];
    __m256i third_low[2] = {};
    __m256i third_high[2] = {};
    for (int i = 0; i < 2; ++i) {
      f.high[i] = _mm256_set1_epi32(static_cast<int32_t>(pairs[i][slot]));
      f.low[i] = _mm256_set1_epi32(static_cast<int32_t>(pairs[i][slot + 1]));
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
    AddHalfBlock<kKind, kFirst>(low, third_low, f, sums);
    AddHalfBlock<kKind, kFirst>(high, third_high, f, sums + 2 * kByteFields<kKind>);
  }
  for (uint32_t at = call.shape.scales; prefetch && at < call.shape.bytes; at += 64) {
    for (const uint8_t* row : ahead) {
      _mm_prefetch(reinterpret_cast<const char*>(row) + at, _MM_HINT_T1);
    }
  }
}

// 16-bit sums to 32-bit ones [unit][16], whose units hold the columns 0-3 8-11 4-7 12-15; kFirst starts them.
template <QuantKind kKind, bool kFirst>
void WidenSums(uint32_t cols, const __m256i* sums, int32_t* out) {
  constexpr uint32_t kPer = kBlockUnits<kKind>;
  const auto put = [](int32_t* place, __m256i value) {
    __m256i* p = reinterpret_cast<__m256i*>(place);
    _mm256_storeu_si256(p, kFirst ? value : _mm256_add_epi32(_mm256_loadu_si256(p), value));
  };
  for (uint32_t u = 0; u * 16 < cols; u += kPer, out += kPer * 16) {
    for (int half = 0; half < 2; ++half) {
      for (int f = 0; f < kByteFields<kKind>; ++f, sums += 2) {
        const __m256i high = _mm256_load_si256(sums);
        const __m256i low = _mm256_load_si256(sums + 1);
        const __m256i even = _mm256_add_epi32(_mm256_srai_epi32(_mm256_slli_epi32(high, 16), 8),
                                              _mm256_and_si256(low, _mm256_set1_epi32(0xffff)));
        const __m256i odd =
            _mm256_add_epi32(_mm256_slli_epi32(_mm256_srai_epi32(high, 16), 8), _mm256_srli_epi32(low, 16));
        put(out + f * 16 + half * 8, even);
        put(out + (f + kByteFields<kKind>)*16 + half * 8, odd);
      }
    }
  }
}
