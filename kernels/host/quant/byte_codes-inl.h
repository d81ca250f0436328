// Codes as unsigned bytes, for multiplications of bytes, and the orders in which rounded activations lie
// beside them.
//
// A plane's blocks of 32 bytes have 2 h units of sixteen codes, h = 1, 2 or 4 for planes of 8, 4 and 2 bits:
// field f of the even bytes is unit f, of the odd bytes unit f + h. Rows of activations lie *woven* likewise,
// or *split* where the two units must not meet in one sum: EvenOdd() moves the even bytes of each 128 bits to
// the lower half and the odd ones to the upper half.

// Fields of each byte of a plane: h.
template <QuantKind kKind>
inline constexpr uint32_t kByteFields = kBlockUnits<kKind> / 2;

template <QuantKind kKind>
inline constexpr int kLargestCode = kKind == QuantKind::kQ8      ? 255
                                    : kKind == QuantKind::kMxfp4 ? 24
                                    : kKind == QuantKind::kIq4   ? 241
                                    : kKind == QuantKind::kQ6    ? 63
                                    : kKind == QuantKind::kQ5    ? 31
                                    : kKind == QuantKind::kQ4    ? 15
                                    : kKind == QuantKind::kQ3    ? 7
                                                                 : 3;
inline constexpr int kLargestByte = 127;  // of rounded values

SLUICE_INLINE __m256i BSet1(char x, __m256i) { return _mm256_set1_epi8(x); }
SLUICE_INLINE __m256i BAnd(__m256i a, __m256i b) { return _mm256_and_si256(a, b); }
SLUICE_INLINE __m256i BOr(__m256i a, __m256i b) { return _mm256_or_si256(a, b); }
// Looks up each byte of `index` in the table; 0 where its highest bit is set.
SLUICE_INLINE __m256i BLookUp(__m128i table, __m256i index) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index);
}
// Permutes the bytes of each 128 bits by `order`.
SLUICE_INLINE __m256i BShuffle(__m256i bytes, __m128i order) {
  return _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order));
}
template <int kBits>
SLUICE_INLINE __m256i BShift(__m256i a) {
  return _mm256_srli_epi16(a, kBits);
}
template <int kBits>
SLUICE_INLINE __m256i BShiftLeft(__m256i a) {
  return _mm256_slli_epi16(a, kBits);
}
#ifdef SLUICE_AVX512
SLUICE_INLINE __m512i BSet1(char x, __m512i) { return _mm512_set1_epi8(x); }
SLUICE_INLINE __m512i BAnd(__m512i a, __m512i b) { return _mm512_and_si512(a, b); }
SLUICE_INLINE __m512i BOr(__m512i a, __m512i b) { return _mm512_or_si512(a, b); }
SLUICE_INLINE __m512i BLookUp(__m128i table, __m512i index) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index);
}
SLUICE_INLINE __m512i BShuffle(__m512i bytes, __m128i order) {
  return _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(order));
}
template <int kBits>
SLUICE_INLINE __m512i BShift(__m512i a) {
  return _mm512_srli_epi16(a, kBits);
}
template <int kBits>
SLUICE_INLINE __m512i BShiftLeft(__m512i a) {
  return _mm512_slli_epi16(a, kBits);
}
#endif

template <class R>
SLUICE_INLINE R EvenOdd(R bytes) {
  return BShuffle(bytes, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
}

// Tables for four third bits: bits 0 and 2 as the third bits of two nibbles; bits 1 and 3.
SLUICE_INLINE __m128i EvenThirdBits() {
  return _mm_setr_epi8(0, 0x04, 0, 0x04, 0x40, 0x44, 0x40, 0x44, 0, 0x04, 0, 0x04, 0x40, 0x44, 0x40, 0x44);
}
SLUICE_INLINE __m128i OddThirdBits() {
  return _mm_setr_epi8(0, 0, 0x04, 0x04, 0, 0, 0x04, 0x04, 0x40, 0x40, 0x44, 0x44, 0x40, 0x40, 0x44, 0x44);
}

// q3: the codes in the nibbles of each byte, fields 0 and 2 in the one, 1 and 3 in the other.
template <class R>
struct ThirdPairs {
  R even;
  R odd;
};
template <class R>
SLUICE_INLINE ThirdPairs<R> WithThirdBits(R bytes, R third) {
  const R pairs = BSet1(0x33, bytes);
  return {BOr(BAnd(bytes, pairs), BLookUp(EvenThirdBits(), third)),
          BOr(BAnd(BShift<2>(bytes), pairs), BLookUp(OddThirdBits(), third))};
}

// The fields of every byte, the lowest first: kByteFields registers. q3: the low four bits of each byte of
// `third` are the fields' third bits, its high four bits are 0. q5 and q6: the lowest bits of each byte of
// `third` are the upper bits of the first field, then those of the second.
template <QuantKind kKind, class R>
SLUICE_INLINE void ByteFields(R bytes, R third, R* out) {
  const R nibble = BSet1(0x0f, bytes);
  if constexpr (kKind == QuantKind::kQ8) {
    out[0] = bytes;
  } else if constexpr (kKind == QuantKind::kQ4) {
    out[0] = BAnd(bytes, nibble);
    out[1] = BAnd(BShift<4>(bytes), nibble);
  } else if constexpr (kKind == QuantKind::kMxfp4) {
    out[0] = BLookUp(Mxfp4Codes(), BAnd(bytes, nibble));
    out[1] = BLookUp(Mxfp4Codes(), BAnd(BShift<4>(bytes), nibble));
  } else if constexpr (kKind == QuantKind::kIq4) {
    out[0] = BLookUp(Iq4Codes(), BAnd(bytes, nibble));
    out[1] = BLookUp(Iq4Codes(), BAnd(BShift<4>(bytes), nibble));
  } else if constexpr (kKind == QuantKind::kQ5 || kKind == QuantKind::kQ6) {
    constexpr int kBits = kHighBits<kKind>;
    const R upper = BSet1(((1 << kBits) - 1) << 4, bytes);
    out[0] = BOr(BAnd(bytes, nibble), BAnd(BShiftLeft<4>(third), upper));
    out[1] = BOr(BAnd(BShift<4>(bytes), nibble), BAnd(BShiftLeft<4 - kBits>(third), upper));
  } else if constexpr (kKind == QuantKind::kQ2) {
    const R two = BSet1(3, bytes);
    out[0] = BAnd(bytes, two);
    out[1] = BAnd(BShift<2>(bytes), two);
    out[2] = BAnd(BShift<4>(bytes), two);
    out[3] = BAnd(BShift<6>(bytes), two);
  } else {
    const ThirdPairs<R> pairs = WithThirdBits(bytes, third);
    out[0] = BAnd(pairs.even, nibble);
    out[1] = BAnd(pairs.odd, nibble);
    out[2] = BAnd(BShift<4>(pairs.even), nibble);
    out[3] = BAnd(BShift<4>(pairs.odd), nibble);
  }
}

// q3: the third bits for low block b of a high block, in the order of EvenOdd(): bits 0 to 3 of each byte are
// those of fields 0 to 3.
SLUICE_INLINE __m256i ThirdBits(__m256i high, bool odd_block) {
  const __m128i even = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
  const __m128i odd = _mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15);
  const __m256i bits = _mm256_shuffle_epi8(high, _mm256_broadcastsi128_si256(odd_block ? odd : even));
  return _mm256_and_si256(_mm256_blend_epi16(bits, _mm256_srli_epi16(bits, 4), 0xf0), _mm256_set1_epi8(0x0f));
}

// q5 and q6: the upper bits for low block b of the row, in the order of its bytes.
template <QuantKind kKind>
SLUICE_INLINE __m256i UpperBits(const uint8_t* high_plane, uint32_t b) {
  constexpr uint32_t kBlocks = 4 / kHighBits<kKind>;
  return _mm256_srli_epi16(LoadBlock(high_plane + uint64_t{b / kBlocks} * 32),
                           static_cast<int>(2 * kHighBits<kKind> * (b % kBlocks)));
}

// Sums of bytes times signed bytes, of four neighbours in 32 bits, as they come: unsigned codes of a kind,
// with at most kMaxAdds additions. Every product and sum is exact: without the byte products of AVX-VNNI
// and AVX-512 two neighbours are added up in 16 bits, and kMaxAdds times two products fit these.
#if defined(SLUICE_AVX512) || defined(SLUICE_VNNI)
template <QuantKind kKind>
inline constexpr uint32_t kMaxAdds = UINT32_MAX;
template <QuantKind kKind>
inline constexpr int kByteBias = 0;

template <QuantKind kKind>
struct ByteSum {
  B sum;
  SLUICE_INLINE void Start(B codes, B x) {
    sum = NIntZero();
    Add(codes, x);
  }
  SLUICE_INLINE void Add(B codes, B x) { sum = NAddByteProducts(sum, codes, x); }
  SLUICE_INLINE B Total() const { return sum; }
  // Adds to earlier sums: Begin(), then Add() calls, then End().
  SLUICE_INLINE void Begin(B before) { sum = before; }
  SLUICE_INLINE B End(B) const { return sum; }
};
#else
// Codes of q8 and IQ4 are multiplied as code - 128: 2 * 128 * 127 fits 16 bits, 2 * 255 * 127 does not. The
// sum lacks 128 times the sum of x.
template <QuantKind kKind>
inline constexpr int kByteBias = kLargestCode<kKind> > 127 ? 128 : 0;
template <QuantKind kKind>
inline constexpr uint32_t kMaxAdds = kByteBias<kKind> != 0 ? UINT32_MAX
                                                           : 32767 / (2 * kLargestByte * kLargestCode<kKind>);

template <QuantKind kKind>
struct ByteSum {
  B sum;
  SLUICE_INLINE static B Words(B codes, B x) {
    if constexpr (kByteBias<kKind> != 0) {
      const B code = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
      return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code)),
                               _mm256_set1_epi16(1));
    }
    return _mm256_maddubs_epi16(codes, x);
  }
  SLUICE_INLINE void Start(B codes, B x) { sum = Words(codes, x); }
  SLUICE_INLINE void Add(B codes, B x) {
    sum = kByteBias<kKind> != 0 ? _mm256_add_epi32(sum, Words(codes, x))
                                : _mm256_add_epi16(sum, Words(codes, x));
  }
  SLUICE_INLINE B Total() const {
    return kByteBias<kKind> != 0 ? sum : _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
  }
  SLUICE_INLINE void Begin(B) { sum = NIntZero(); }
  SLUICE_INLINE B End(B before) const { return NIntAdd(before, Total()); }
};
#endif

// The exact sums as floats, which they fit; x_sum: the sum of the activations.
template <QuantKind kKind>
SLUICE_INLINE N FloatSum(NInt sum, N x_sum) {
  if constexpr (kByteBias<kKind> != 0) {
    return NFma(NSet1(static_cast<float>(kByteBias<kKind>)), x_sum, NFromInt(sum));
  }
  return NFromInt(sum);
}

// Maximum number of quads added before the sums must be widened to 32 bits; 0: unlimited.
template <QuantKind kKind>
inline constexpr uint32_t kQuadPiece = kMaxAdds<kKind> == UINT32_MAX ? 0
                                       : kMaxAdds<kKind> >= 8        ? 8
                                       : kMaxAdds<kKind> >= 4        ? 4
                                                                     : 2;

// The representative kind of all kinds whose unpacked codes are summed alike, so that sums are compiled once
// for them. With byte products that add up to 32 bits these are all kinds.
template <QuantKind kKind>
inline constexpr QuantKind kSumKind = kQuadPiece<kKind> == 0   ? QuantKind::kQ8
                                      : kQuadPiece<kKind> == 8 ? QuantKind::kQ4
                                      : kQuadPiece<kKind> == 4 ? QuantKind::kQ5
                                                               : QuantKind::kQ6;
template <QuantKind kKind>
inline constexpr bool kSumsAreShared =
    kQuadPiece<kSumKind<kKind>> == kQuadPiece<kKind>&& kByteBias<kSumKind<kKind>> == kByteBias<kKind>;
static_assert(kSumsAreShared<QuantKind::kQ8> && kSumsAreShared<QuantKind::kQ4> &&
              kSumsAreShared<QuantKind::kQ3> && kSumsAreShared<QuantKind::kQ2> &&
              kSumsAreShared<QuantKind::kMxfp4> && kSumsAreShared<QuantKind::kQ5> &&
              kSumsAreShared<QuantKind::kQ6> && kSumsAreShared<QuantKind::kIq4>);
