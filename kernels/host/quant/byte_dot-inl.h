// Dot products of q2, q3 and q4 rows by bytes (byte_codes-inl.h), for groups of 64 and 128, with AVX2;
// byte_dot_avx512-inl.h is its twin.
//
// A block of a 2-bit plane has two groups of 64: the even bytes hold one, the odd bytes the other. They are
// moved to the halves of each 128-bit lane. A block of a 4-bit plane lies in one group, so its bytes stay
// side by side, and two neighbouring blocks' quarters are put into the halves. The activations lie in the
// same orders (QuantRow::bytes).
//
// Included by kernels_avx2.cc and, with SLUICE_VNNI, by kernels_avx2vnni.cc.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_avx2*.cc only"
#endif

// Whether rows of a kind with groups of kUnits units are multiplied so.
template <QuantKind kKind, uint32_t kUnits>
inline constexpr bool kByBytes = (kKind == QuantKind::kQ2 || kKind == QuantKind::kQ3 ||
                                  kKind == QuantKind::kQ4) &&
                                 (kUnits == 4 || kUnits == 8);

// So many rows at once, which share what they load of x. Without AVX-VNNI two need more registers than there
// are.
inline constexpr int kRowsOfBytes = kVnni ? 2 : 1;

// KernelTable::in_halves.
template <QuantKind kKind>
inline constexpr bool kInHalves = kKind != QuantKind::kMxfp4;

// Codes [0, cols rounded up to kCodeAlign) of a rounded row as bytes: for each 128 codes and each field f of
// four, 32 high and 32 low bytes of the codes of units f and f + 4, in the order of EvenOdd().
inline void SplitCodes(const int16_t* codes, uint32_t cols, uint8_t* bytes) {
  const __m256i low_mask = _mm256_set1_epi16(0xff);
  for (uint32_t k = 0; k < cols; k += 128) {
    for (uint32_t f = 0; f < 4; ++f, bytes += 64) {
      const __m256i a = LoadCodes16(codes + k + 16 * f);
      const __m256i b = LoadCodes16(codes + k + 16 * (f + 4));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes),
                          _mm256_packs_epi16(_mm256_srai_epi16(a, 8), _mm256_srai_epi16(b, 8)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + 32),
                          _mm256_packus_epi16(_mm256_and_si256(a, low_mask), _mm256_and_si256(b, low_mask)));
    }
  }
}

// The same for 4-bit planes: for each 128 codes and each of four steps 32 high and 32 low bytes. Step f, and
// f + 2 for the other quarters: of two blocks the codes of units f and f + 2 in turn. kUnits: any.
template <uint32_t kUnits>
inline void SplitNibbleCodes(const int16_t* codes, uint32_t cols, uint8_t* bytes) {
  const __m256i low_mask = _mm256_set1_epi16(0xff);
  for (uint32_t k = 0; k < cols; k += 128, bytes += 256) {
    for (uint32_t f = 0; f < 2; ++f) {
      __m256i high[2];
      __m256i low[2];
      for (uint32_t i = 0; i < 2; ++i) {
        const __m256i a = LoadCodes16(codes + k + 64 * i + 16 * f);
        const __m256i b = LoadCodes16(codes + k + 64 * i + 16 * f + 32);
        high[i] = _mm256_or_si256(_mm256_srli_epi16(a, 8), _mm256_andnot_si256(low_mask, b));
        low[i] = _mm256_or_si256(_mm256_and_si256(a, low_mask), _mm256_slli_epi16(b, 8));
      }
      __m256i* first = reinterpret_cast<__m256i*>(bytes + f * 64);
      __m256i* second = reinterpret_cast<__m256i*>(bytes + (f + 2) * 64);
      _mm256_storeu_si256(first, _mm256_unpacklo_epi64(high[0], high[1]));
      _mm256_storeu_si256(first + 1, _mm256_unpacklo_epi64(low[0], low[1]));
      _mm256_storeu_si256(second, _mm256_unpackhi_epi64(high[0], high[1]));
      _mm256_storeu_si256(second + 1, _mm256_unpackhi_epi64(low[0], low[1]));
    }
  }
}

// Even bytes of each 128-bit lane to its lower half, odd ones to its upper half.
SLUICE_INLINE __m256i EvenOdd(__m256i block) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  return _mm256_shuffle_epi8(block, order);
}

// The third bits for low block b of a high block: bits 0 to 3 of each byte are those of fields 0 to 3.
SLUICE_INLINE __m256i ThirdBits(__m256i high, bool odd_block) {
  const __m256i even =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14));
  const __m256i odd =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m256i bits = _mm256_shuffle_epi8(high, odd_block ? odd : even);
  return _mm256_and_si256(_mm256_blend_epi16(bits, _mm256_srli_epi16(bits, 4), 0xf0), _mm256_set1_epi8(0x0f));
}

// Lanes 2i and 2i + 1 of each 128 bits added: a's sums in lanes 0 and 1, b's in 2 and 3.
SLUICE_INLINE __m256i AddNeighbours(__m256i a, __m256i b) {
  const __m256 x = _mm256_castsi256_ps(a);
  const __m256 y = _mm256_castsi256_ps(b);
  return _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)),
                          _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)));
}

// Sums of bytes times high and low bytes of int16 values. `fields` are at most 15. Of two neighbours in 16
// bits, with AVX-VNNI of four in 32.
struct ByteSums {
  __m256i high;
  __m256i low;
};
#ifdef SLUICE_VNNI
SLUICE_INLINE ByteSums AddBytes(const ByteSums& sums, bool first, __m256i fields, __m256i high, __m256i low) {
  const __m256i none = _mm256_setzero_si256();
  return {_mm256_dpbusd_avx_epi32(first ? none : sums.high, fields, high),
          _mm256_dpbusd_avx_epi32(first ? none : sums.low, low, fields)};
}
SLUICE_INLINE __m256i JoinBytes(const ByteSums& sums) {
  return _mm256_add_epi32(_mm256_slli_epi32(sums.high, 8), sums.low);
}
#else
SLUICE_INLINE ByteSums AddBytes(const ByteSums& sums, bool first, __m256i fields, __m256i high, __m256i low) {
  const __m256i h = _mm256_maddubs_epi16(fields, high);
  const __m256i l = _mm256_maddubs_epi16(low, fields);
  return first ? ByteSums{h, l} : ByteSums{_mm256_add_epi16(sums.high, h), _mm256_add_epi16(sums.low, l)};
}
// REQUIRES at most four additions: 4 * 2 * 255 * 15 fits 16 bits.
SLUICE_INLINE __m256i JoinBytes(const ByteSums& sums) {
  return _mm256_add_epi32(_mm256_madd_epi16(sums.high, _mm256_set1_epi16(256)),
                          _mm256_madd_epi16(sums.low, _mm256_set1_epi16(1)));
}
#endif

// The bytes of a block, of which one field after the other is taken: 0, 1, 2, 3 of q2, 0, 2, 1, 3 of q3.
template <QuantKind kKind>
struct FieldBytes {
  __m256i bytes;
  __m256i third;  // q3; q4: the odd bytes of two blocks, `bytes` are the even ones
  __m256i pairs;  // q3: two fields with their third bits in the nibbles of each byte
};

template <QuantKind kKind>
inline constexpr int FieldAt(int step) {
  return kKind == QuantKind::kQ3 && (step == 1 || step == 2) ? 3 - step : step;
}

template <QuantKind kKind>
SLUICE_INLINE __m256i TakeField(int step, FieldBytes<kKind>* from) {
  if constexpr (kKind == QuantKind::kQ2) {
    const __m256i field = _mm256_and_si256(from->bytes, _mm256_set1_epi8(3));
    from->bytes = _mm256_srli_epi16(from->bytes, 2);
    return field;
  }
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  if constexpr (kKind == QuantKind::kQ4) {
    const __m256i bytes = step < 2 ? from->bytes : from->third;
    return _mm256_and_si256(step % 2 == 0 ? bytes : _mm256_srli_epi16(bytes, 4), nibble);
  }
  if (step % 2 == 1) {
    return _mm256_and_si256(_mm256_srli_epi16(from->pairs, 4), nibble);
  }
  const __m256i bits = _mm256_broadcastsi128_si256(step == 0 ? EvenThirdBits() : OddThirdBits());
  const __m256i two = step == 0 ? from->bytes : _mm256_srli_epi16(from->bytes, 2);
  from->pairs =
      _mm256_or_si256(_mm256_and_si256(two, _mm256_set1_epi8(0x33)), _mm256_shuffle_epi8(bits, from->third));
  return _mm256_and_si256(from->pairs, nibble);
}

// Of kRows rows: partial sums of the two groups of 64 in low block kBlock of a run that begins at unit
// `first`, in the lanes 0 1 and 4 5 for the one, 2 3 and 6 7 for the other.
template <QuantKind kKind, uint32_t kUnits, uint32_t kBlock, int kRows>
SLUICE_INLINE void BlockOfBytes(const GroupsAt* w, const uint8_t* x, LinesAhead* lines, __m256i* out) {
  FieldBytes<kKind> from[kRows];
  SLUICE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kKind == QuantKind::kQ4) {
      const uint8_t* at = w[r].codes + 2 * kBlock * 32;
      const __m256i a = LoadBlock(at);
      const __m256i b = LoadBlock(at + 32);
      from[r].bytes = _mm256_unpacklo_epi64(a, b);
      from[r].third = _mm256_unpackhi_epi64(a, b);
    } else {
      from[r].bytes = EvenOdd(LoadBlock(w[r].codes + kBlock * 32));
    }
    if constexpr (kKind == QuantKind::kQ3) {
      from[r].third = ThirdBits(LoadBlock(w[r].third + kBlock / 2 * 32), kBlock % 2 != 0);
    }
  }
  if constexpr (kBlock % (kUnits / kFetchSteps<kKind>) == 0) {  // kFetchSteps in all
    lines->Step();
  }
  x += kBlock * 256;
  ByteSums sums[kRows];
  SLUICE_UNROLL
  for (int step = 0; step < 4; ++step) {
    const uint8_t* place = x + FieldAt<kKind>(step) * 64;
    const __m256i low = LoadBlock(place + 32);
    SLUICE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      sums[r] = AddBytes(sums[r], step == 0, TakeField<kKind>(step, &from[r]), LoadBlock(place), low);
    }
  }
  SLUICE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    out[r] = JoinBytes(sums[r]);
  }
}

template <QuantKind kKind, uint32_t kUnits, uint32_t kBlock, int kRows>
SLUICE_INLINE void TwoBlocksOfBytes(const GroupsAt* w, const uint8_t* x, LinesAhead* lines, __m256i* out) {
  __m256i a[kRows];
  __m256i b[kRows];
  BlockOfBytes<kKind, kUnits, kBlock, kRows>(w, x, lines, a);
  BlockOfBytes<kKind, kUnits, kBlock + 1, kRows>(w, x, lines, b);
  for (int r = 0; r < kRows; ++r) {
    out[r] = AddNeighbours(a[r], b[r]);
  }
}

// Of kRows rows: the exact sums of eight groups of kUnits units, one in each lane.
template <QuantKind kKind, uint32_t kUnits, int kRows>
SLUICE_INLINE void EightGroupsOfBytes(const GroupsAt* w, const uint8_t* x, LinesAhead* lines, __m256i* out) {
  __m256i a[kRows];
  __m256i b[kRows];
  TwoBlocksOfBytes<kKind, kUnits, 0, kRows>(w, x, lines, a);
  TwoBlocksOfBytes<kKind, kUnits, 2, kRows>(w, x, lines, b);
  if constexpr (kUnits == 8) {
    __m256i c[kRows];
    __m256i d[kRows];
    TwoBlocksOfBytes<kKind, kUnits, 4, kRows>(w, x, lines, c);
    TwoBlocksOfBytes<kKind, kUnits, 6, kRows>(w, x, lines, d);
    for (int r = 0; r < kRows; ++r) {
      a[r] = AddNeighbours(a[r], b[r]);
      b[r] = AddNeighbours(c[r], d[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    out[r] = _mm256_add_epi32(_mm256_permute2x128_si256(a[r], b[r], 0x20),
                              _mm256_permute2x128_si256(a[r], b[r], 0x31));
  }
}
