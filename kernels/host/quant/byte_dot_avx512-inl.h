// Dot products of q2, q3 and q4 rows by bytes (byte_codes-inl.h), for groups of 64 and 128, with AVX-512: 256
// codes at a time; byte_dot-inl.h is its twin.
//
// A block of a 2-bit plane has two groups of 64: the even bytes hold one, the odd bytes the other. They are
// moved to the halves of each 128-bit lane. A block of a 4-bit plane lies in one group, so its bytes stay
// side by side, and two blocks' quarters are put into the halves. The activations lie in the same orders
// (QuantRow::bytes).
//
// Included by kernels_avx512.cc only.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_avx512.cc only"
#endif

// Whether rows of a kind with groups of kUnits units are multiplied so.
template <QuantKind kKind, uint32_t kUnits>
inline constexpr bool kByBytes = (kKind == QuantKind::kQ2 || kKind == QuantKind::kQ3 ||
                                  kKind == QuantKind::kQ4) &&
                                 (kUnits == 4 || kUnits == 8);

// So many rows at once, which share what they load of x.
inline constexpr int kRowsOfBytes = 2;

// KernelTable::in_halves. Experts of q2 lost two to four hundredths by it.
template <QuantKind kKind>
inline constexpr bool kInHalves = !(kKind == QuantKind::kQ2 || kKind == QuantKind::kMxfp4);

SLUICE_INLINE __m512i LoadBlocks(const uint8_t* p) { return _mm512_loadu_si512(p); }
SLUICE_INLINE __m512i InEveryLane(__m128i lane) { return _mm512_broadcast_i32x4(lane); }

// A unit and the one a block later.
SLUICE_INLINE __m512i TwoUnits(const int16_t* codes) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(LoadCodes16(codes)), LoadCodes16(codes + 128), 1);
}

// Codes [0, cols rounded up to kCodeAlign) of a rounded row as bytes: for each 256 codes and each field f of
// four, 64 high and 64 low bytes of the codes of units f, f + 4, f + 8 and f + 12, in the order of EvenOdd().
inline void SplitCodes(const int16_t* codes, uint32_t cols, uint8_t* bytes) {
  const __m512i low_mask = _mm512_set1_epi16(0xff);
  for (uint32_t k = 0; k < cols; k += 256) {
    for (uint32_t f = 0; f < 4; ++f, bytes += 128) {
      const __m512i a = TwoUnits(codes + k + 16 * f);
      const __m512i b = TwoUnits(codes + k + 16 * (f + 4));
      _mm512_storeu_si512(bytes, _mm512_packs_epi16(_mm512_srai_epi16(a, 8), _mm512_srai_epi16(b, 8)));
      _mm512_storeu_si512(bytes + 64,
                          _mm512_packus_epi16(_mm512_and_si512(a, low_mask), _mm512_and_si512(b, low_mask)));
    }
  }
}

// The same for 4-bit planes: for each 256 codes and each of four steps 64 high and 64 low bytes, in the order
// of NibbleFields(), for groups of kUnits units.
template <uint32_t kUnits>
inline void SplitNibbleCodes(const int16_t* codes, uint32_t cols, uint8_t* bytes) {
  const __m512i low_mask = _mm512_set1_epi16(0xff);
  // Unit i of two blocks.
  const auto two = [&](const int16_t* block, uint32_t next) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(LoadCodes16(block)), LoadCodes16(block + next), 1);
  };
  constexpr uint32_t kNext = kUnits == 4 ? 64 : 128;  // from a block to the one in the upper half
  constexpr uint32_t kSecond = 192 - kNext;
  for (uint32_t k = 0; k < cols; k += 256, bytes += 512) {
    for (uint32_t f = 0; f < 2; ++f) {
      __m512i high[2];
      __m512i low[2];
      for (uint32_t i = 0; i < 2; ++i) {
        const int16_t* block = codes + k + i * kSecond + 16 * f;
        const __m512i a = two(block, kNext);
        const __m512i b = two(block + 32, kNext);
        high[i] = _mm512_or_si512(_mm512_srli_epi16(a, 8), _mm512_andnot_si512(low_mask, b));
        low[i] = _mm512_or_si512(_mm512_and_si512(a, low_mask), _mm512_slli_epi16(b, 8));
      }
      uint8_t* first = bytes + f * 128;
      _mm512_storeu_si512(first, _mm512_unpacklo_epi64(high[0], high[1]));
      _mm512_storeu_si512(first + 64, _mm512_unpacklo_epi64(low[0], low[1]));
      _mm512_storeu_si512(first + 256, _mm512_unpackhi_epi64(high[0], high[1]));
      _mm512_storeu_si512(first + 320, _mm512_unpackhi_epi64(low[0], low[1]));
    }
  }
}

// Even bytes of each 128-bit lane to its lower half, odd ones to its upper half.
SLUICE_INLINE __m512i EvenOdd(__m512i blocks) {
  return _mm512_shuffle_epi8(
      blocks, InEveryLane(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)));
}

// The third bits for two low blocks: bits 0 to 3 of each byte are those of fields 0 to 3.
SLUICE_INLINE __m512i ThirdBits(const uint8_t* high) {
  const __m256i even =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14));
  const __m256i odd =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m512i order = _mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1);
  const __m512i bits = _mm512_shuffle_epi8(_mm512_broadcast_i64x4(LoadBlock(high)), order);
  return _mm512_and_si512(_mm512_mask_srli_epi16(bits, 0xf0f0f0f0, bits, 4), _mm512_set1_epi8(0x0f));
}

// q3: the codes in the nibbles of each byte, fields 0 and 2 in the one, 1 and 3 in the other. `third`: as
// ByteFields() of byte_codes-inl.h.
struct ThirdPairs {
  __m512i even;
  __m512i odd;
};
SLUICE_INLINE ThirdPairs WithThirdBits(__m512i bytes, __m512i third) {
  constexpr int kBothAndOr = 0xea;  // (a & b) | c
  const __m512i pairs = _mm512_set1_epi8(0x33);
  const __m512i even_bits = _mm512_shuffle_epi8(InEveryLane(EvenThirdBits()), third);
  const __m512i odd_bits = _mm512_shuffle_epi8(InEveryLane(OddThirdBits()), third);
  return {_mm512_ternarylogic_epi32(bytes, pairs, even_bits, kBothAndOr),
          _mm512_ternarylogic_epi32(_mm512_srli_epi16(bytes, 2), pairs, odd_bits, kBothAndOr)};
}

// The four fields of every byte, as ByteFields() of byte_codes-inl.h.
template <QuantKind kKind>
SLUICE_INLINE void WideFields(__m512i bytes, __m512i third, __m512i* out) {
  if constexpr (kKind == QuantKind::kQ2) {
    const __m512i two = _mm512_set1_epi8(3);
    out[0] = _mm512_and_si512(bytes, two);
    out[1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 2), two);
    out[2] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), two);
    out[3] = _mm512_and_si512(_mm512_srli_epi16(bytes, 6), two);
    return;
  }
  const __m512i nibble = _mm512_set1_epi8(0x0f);
  const ThirdPairs pairs = WithThirdBits(bytes, third);
  out[0] = _mm512_and_si512(pairs.even, nibble);
  out[1] = _mm512_and_si512(pairs.odd, nibble);
  out[2] = _mm512_and_si512(_mm512_srli_epi16(pairs.even, 4), nibble);
  out[3] = _mm512_and_si512(_mm512_srli_epi16(pairs.odd, 4), nibble);
}

// Lanes 2i and 2i + 1 of each 128 bits added: a's sums in lanes 0 and 1, b's in 2 and 3.
SLUICE_INLINE __m512i AddNeighbours(__m512i a, __m512i b) {
  const __m512 x = _mm512_castsi512_ps(a);
  const __m512 y = _mm512_castsi512_ps(b);
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                          _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}

// The four fields of q4's four blocks at p. Groups of 64: the first and the third block's in lanes 0 and 1,
// the others' in 2 and 3; of 128: the first two, the others.
template <uint32_t kUnits>
SLUICE_INLINE void NibbleFields(const uint8_t* p, __m512i* out) {
  __m512i a;
  __m512i b;
  if constexpr (kUnits == 4) {
    a = LoadBlocks(p);
    b = LoadBlocks(p + 64);
  } else {
    a = _mm512_inserti64x4(_mm512_castsi256_si512(LoadBlock(p)), LoadBlock(p + 64), 1);
    b = _mm512_inserti64x4(_mm512_castsi256_si512(LoadBlock(p + 32)), LoadBlock(p + 96), 1);
  }
  const __m512i low = _mm512_unpacklo_epi64(a, b);
  const __m512i high = _mm512_unpackhi_epi64(a, b);
  const __m512i nibble = _mm512_set1_epi8(0x0f);
  out[0] = _mm512_and_si512(low, nibble);
  out[1] = _mm512_and_si512(_mm512_srli_epi16(low, 4), nibble);
  out[2] = _mm512_and_si512(high, nibble);
  out[3] = _mm512_and_si512(_mm512_srli_epi16(high, 4), nibble);
}

// Of kRows rows: partial sums of the four groups of 64 in the codes [256 kPair, 256 (kPair + 1)) of a run
// that begins at unit `first`. Each 128-bit lane has two sums of one group and then two of the next; the
// first two lanes are the first two groups'.
template <QuantKind kKind, uint32_t kUnits, uint32_t kPair, int kRows>
SLUICE_INLINE void PairOfBlocks(const GroupsAt* w, const uint8_t* x, LinesAhead* lines, __m512i* out) {
  __m512i fields[kRows][4];
  SLUICE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kKind == QuantKind::kQ4) {
      NibbleFields<kUnits>(w[r].codes + 4 * kPair * 32, fields[r]);
    } else {
      const __m512i bytes = EvenOdd(LoadBlocks(w[r].codes + 2 * kPair * 32));
      __m512i third = bytes;
      if constexpr (kKind == QuantKind::kQ3) {
        third = ThirdBits(w[r].third + kPair * 32);
      }
      WideFields<kKind>(bytes, third, fields[r]);
    }
  }
  SLUICE_UNROLL
  for (uint32_t i = 0; i < kFetchSteps<kKind>; ++i) {  // kFetchSteps in all
    if (i * kUnits / 2 / kFetchSteps<kKind> == kPair) {
      lines->Step();
    }
  }
  x += kPair * 512;
  __m512i high[kRows];
  __m512i low[kRows];
  SLUICE_UNROLL
  for (int f = 0; f < 4; ++f) {
    const __m512i h = LoadBlocks(x + f * 128);
    const __m512i l = LoadBlocks(x + f * 128 + 64);
    SLUICE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      high[r] = _mm512_dpbusd_epi32(f == 0 ? _mm512_setzero_si512() : high[r], fields[r][f], h);
      low[r] = _mm512_dpbusd_epi32(f == 0 ? _mm512_setzero_si512() : low[r], l, fields[r][f]);
    }
  }
  SLUICE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    out[r] = _mm512_add_epi32(_mm512_slli_epi32(high[r], 8), low[r]);
  }
}

template <QuantKind kKind, uint32_t kUnits, uint32_t kPair, int kRows>
SLUICE_INLINE void TwoPairsOfBlocks(const GroupsAt* w, const uint8_t* x, LinesAhead* lines, __m512i* out) {
  __m512i a[kRows];
  __m512i b[kRows];
  PairOfBlocks<kKind, kUnits, kPair, kRows>(w, x, lines, a);
  PairOfBlocks<kKind, kUnits, kPair + 1, kRows>(w, x, lines, b);
  for (int r = 0; r < kRows; ++r) {
    out[r] = AddNeighbours(a[r], b[r]);
  }
}

// Of kRows <= 2 rows: the exact sums of eight groups of kUnits units, one in each lane.
template <QuantKind kKind, uint32_t kUnits, int kRows>
SLUICE_INLINE void EightGroupsOfBytes(const GroupsAt* w, const uint8_t* x, LinesAhead* lines, __m256i* out) {
  __m512i sums[kRows];
  TwoPairsOfBlocks<kKind, kUnits, 0, kRows>(w, x, lines, sums);
  if constexpr (kUnits == 8) {
    __m512i more[kRows];
    TwoPairsOfBlocks<kKind, kUnits, 2, kRows>(w, x, lines, more);
    for (int r = 0; r < kRows; ++r) {
      sums[r] = AddNeighbours(sums[r], more[r]);
    }
  }
  // The lanes of each block added; then in the low half the first row's, the first blocks' before the second
  // ones', in the high half the last row's.
  const __m512i last = sums[kRows - 1];
  const __m512i both =
      _mm512_add_epi32(_mm512_shuffle_i64x2(sums[0], last, 0x88), _mm512_shuffle_i64x2(sums[0], last, 0xdd));
  const __m512i order = kUnits == 4 && kKind != QuantKind::kQ4
                            ? _mm512_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15)
                            : _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  const __m512i ordered = _mm512_permutexvar_epi32(order, both);
  out[0] = _mm512_castsi512_si256(ordered);
  if constexpr (kRows == 2) {
    out[1] = _mm512_extracti64x4_epi64(ordered, 1);
  }
}
