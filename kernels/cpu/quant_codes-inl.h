// Access to the elements of a quantized row (pack/row_layout.h): sixteen consecutive codes, a "unit", in
// 16-bit lanes; the scales and zeros of eight groups as floats. 256-bit code in both instruction sets.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.

#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

SLUICE_INLINE __m256i LoadBlock(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
// Sixteen signed bytes in 16-bit lanes.
SLUICE_INLINE __m256i LoadCodes16(const int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Bits of a code in the row's first plane.
template <QuantKind kKind>
inline constexpr uint32_t kPlaneBits = kKind == QuantKind::kQ8                              ? 8
                                       : kKind == QuantKind::kQ3 || kKind == QuantKind::kQ2 ? 2
                                                                                            : 4;
// Bits of a code in its second plane.
template <QuantKind kKind>
inline constexpr uint32_t kHighBits = kKind == QuantKind::kQ6                              ? 2
                                      : kKind == QuantKind::kQ5 || kKind == QuantKind::kQ3 ? 1
                                                                                           : 0;
template <QuantKind kKind>
inline constexpr uint32_t kBlockUnits = 16 / kPlaneBits<kKind>;  // units in a block of 32 bytes

// Field `i` of each word, i a constant after unrolling. q3: two bits here, the third is bit `high_bit` of the
// words of `high`. REQUIRES q8, q4, q3 or q2.
template <QuantKind kKind>
SLUICE_INLINE __m256i FieldOf(__m256i words, uint32_t i, __m256i high, uint32_t high_bit) {
  constexpr uint32_t kBits = kPlaneBits<kKind>;
  const __m256i moved = i == 0 ? words : _mm256_srli_epi16(words, static_cast<int>(i * kBits));
  const __m256i field =
      (i + 1) * kBits == 16 ? moved : _mm256_and_si256(moved, _mm256_set1_epi16((1 << kBits) - 1));
  if constexpr (kKind == QuantKind::kQ3) {
    const __m256i third = high_bit < 2 ? _mm256_slli_epi16(high, static_cast<int>(2 - high_bit))
                                       : _mm256_srli_epi16(high, static_cast<int>(high_bit - 2));
    return _mm256_or_si256(field, _mm256_and_si256(third, _mm256_set1_epi16(4)));
  }
  return field;
}

// Steps of LinesAhead in eight groups of a row, or of a pair of rows: each step fetches a few lines.
template <QuantKind kKind>
inline constexpr uint32_t kFetchSteps = kKind == QuantKind::kQ8 || kKind == QuantKind::kMxfp4 ? 4 : 2;

// The addresses of eight groups of a row.
struct GroupsAt {
  const uint8_t* codes;
  const uint8_t* third;  // the block of the second plane, if there is one
};

// Codes [16 u, 16 u + 16) of a plane of kBits-bit codes.
template <uint32_t kBits>
inline __m256i PlaneUnit(const uint8_t* plane, uint32_t u) {
  constexpr uint32_t kUnits = 16 / kBits;  // units in a block
  const __m256i block = LoadBlock(plane + uint64_t{u / kUnits} * 32);
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(u % kUnits * kBits));
  return _mm256_and_si256(_mm256_srl_epi16(block, shift), _mm256_set1_epi16((1 << kBits) - 1));
}

// Codes are unsigned in these kernels: mxfp4's are twice the E2M1 values and kMxfp4Zero, which is their zero.
// Sums of them are exact, so that changes no bit.
inline constexpr float kMxfp4Zero = 12.0f;
SLUICE_INLINE __m128i Mxfp4Codes() {
  return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
}

// IQ4's values plus 128, by index.
SLUICE_INLINE __m128i Iq4Codes() { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Codes)); }

// Codes [16 u, 16 u + 16) of the second plane of a row whose first one has 4 bits a code (LocateHighCode).
template <uint32_t kBits>
inline __m256i HighUnit(const uint8_t* plane, uint32_t u) {
  constexpr uint32_t kBlocks = 4 / kBits;  // blocks of the first plane
  const uint32_t block = u / 4;
  const uint32_t nibble = u % 4;
  const __m256i words = LoadBlock(plane + uint64_t{block / kBlocks} * 32);
  const __m128i shift =
      _mm_cvtsi32_si128(static_cast<int>(8 * (nibble / 2) + kBits * (2 * (block % kBlocks) + nibble % 2)));
  return _mm256_and_si256(_mm256_srl_epi16(words, shift), _mm256_set1_epi16((1 << kBits) - 1));
}

// Looks sixteen 16-bit codes up in a table of bytes.
SLUICE_INLINE __m256i LookUpWords(__m128i table, __m256i words) {
  // The index in the high bytes looks up 0.
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table),
                             _mm256_or_si256(words, _mm256_set1_epi16(-0x8000)));
}

// Unit u of a row. A unit beyond the row's end lies in padding; its value must not be used.
template <QuantKind kKind>
inline __m256i UnitOf(const RowShape& shape, const uint8_t* w, uint32_t u) {
  switch (kKind) {
    case QuantKind::kQ8:
      return PlaneUnit<8>(w, u);
    case QuantKind::kQ4:
      return PlaneUnit<4>(w, u);
    case QuantKind::kQ3:
      return _mm256_or_si256(PlaneUnit<2>(w, u), _mm256_slli_epi16(PlaneUnit<1>(w + shape.high_plane, u), 2));
    case QuantKind::kQ2:
      return PlaneUnit<2>(w, u);
    case QuantKind::kMxfp4:
      return LookUpWords(Mxfp4Codes(), PlaneUnit<4>(w, u));
    case QuantKind::kIq4:
      return LookUpWords(Iq4Codes(), PlaneUnit<4>(w, u));
    case QuantKind::kFile:  // expanded rows are kQ8's
      return _mm256_setzero_si256();
    case QuantKind::kQ5:
      return _mm256_or_si256(PlaneUnit<4>(w, u), _mm256_slli_epi16(HighUnit<1>(w + shape.high_plane, u), 4));
    case QuantKind::kQ6:
      return _mm256_or_si256(PlaneUnit<4>(w, u), _mm256_slli_epi16(HighUnit<2>(w + shape.high_plane, u), 4));
  }
}

// Loads eight f16 values of which n exist; zeros after them.
SLUICE_INLINE __m256 LoadHalves(const uint8_t* p, uint32_t n) {
  if (n >= 8) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  alignas(16) uint8_t bytes[16] = {};
  __builtin_memcpy(bytes, p, n * 2);
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// Loads eight floats of which n exist; zeros after them.
SLUICE_INLINE __m256 LoadFloats(const uint8_t* p, uint32_t n) {
  if (n >= 8) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  alignas(32) float values[8] = {};
  __builtin_memcpy(values, p, n * sizeof(float));
  return _mm256_load_ps(values);
}

// Loads eight bytes of which n exist, as int32.
SLUICE_INLINE __m256i LoadBytes(const uint8_t* p, uint32_t n) {
  if (n >= 8) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  alignas(8) uint8_t bytes[8] = {};
  __builtin_memcpy(bytes, p, n);
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
}

// Powers of two: 2^(e - 128), the factor of twice an E2M1 value; NaN for e = 255.
SLUICE_INLINE __m256 HalfE8m0(__m256i exponents) {
  // 2^(e - 127) first: its bits are e << 23, but for e = 0 a denormal.
  const __m256i bits = _mm256_max_epi32(_mm256_slli_epi32(exponents, 23), _mm256_set1_epi32(0x00400000));
  const __m256i nan = _mm256_srli_epi32(_mm256_cmpeq_epi32(exponents, _mm256_set1_epi32(255)), 1);
  return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(bits, nan)), _mm256_set1_ps(0.5f));
}

// f16 value `index` of the quadruple of super-group `super`, in all lanes.
SLUICE_INLINE __m256 SuperValue(const RowShape& shape, const uint8_t* w, uint32_t index, uint32_t super) {
  uint16_t half = 0;
  __builtin_memcpy(&half, w + shape.super_groups + uint64_t{super} * 8 + index * 2, 2);
  return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(half)));
}

// The f16 value `index` of the quadruples, for each of the groups [g, g + n), n <= 8, of several
// super-groups.
__attribute__((noinline)) inline __m256 SuperValues(const RowShape& shape, const uint8_t* w, uint32_t index,
                                                    uint32_t g, uint32_t n) {
  alignas(32) float values[8] = {};
  for (uint32_t i = 0; i < n; ++i) {
    values[i] = _mm256_cvtss_f32(SuperValue(shape, w, index, (g + i) / shape.super_group));
  }
  return _mm256_load_ps(values);
}

// Scales (or zeros, which lie at `offset` and whose super-groups' numbers begin at `index`) of the groups [g,
// g + 8) of which n exist; zeros after them.
SLUICE_INLINE __m256 MetaOf(const RowShape& shape, const uint8_t* w, uint32_t offset, uint32_t index,
                            uint32_t g, uint32_t n) {
  if (shape.super_group == 0) {
    return LoadHalves(w + offset + uint64_t{g} * 2, n);
  }
  const __m256 codes = _mm256_cvtepi32_ps(LoadBytes(w + offset + g, n));
  // Nearly always all eight groups have one super-group.
  const uint32_t super = static_cast<uint32_t>(g * shape.super_inverse >> 32);
  if ((super + 1) * shape.super_group >= g + n) {
    return _mm256_mul_ps(_mm256_sub_ps(codes, SuperValue(shape, w, index + 1, super)),
                         SuperValue(shape, w, index, super));
  }
  return _mm256_mul_ps(_mm256_sub_ps(codes, SuperValues(shape, w, index + 1, g, n)),
                       SuperValues(shape, w, index, g, n));
}

// The numbers of the groups [g, g + 8), of which n exist, of block encodings in super-groups, which eight
// groups never leave: bytes at `offset` times the super-group's number `index`.
template <bool kSigned>
SLUICE_INLINE __m256 SuperProducts(const RowShape& shape, const uint8_t* w, uint32_t offset, uint32_t index,
                                   uint32_t numbers, uint32_t g, uint32_t n) {
  __m256i bytes = LoadBytes(w + offset + g, n);
  if constexpr (kSigned) {
    bytes = _mm256_srai_epi32(_mm256_slli_epi32(bytes, 24), 24);
  }
  const uint32_t super = static_cast<uint32_t>(g * shape.super_inverse >> 32);
  uint16_t half = 0;
  __builtin_memcpy(&half, w + shape.super_groups + uint64_t{super} * numbers * 2 + index * 2, 2);
  return _mm256_mul_ps(_mm256_cvtepi32_ps(bytes),
                       _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(half))));
}

template <QuantKind kKind>
SLUICE_INLINE __m256 ScalesOf(const RowShape& shape, const uint8_t* w, uint32_t g, uint32_t n) {
  if constexpr (kKind == QuantKind::kMxfp4) {
    return HalfE8m0(LoadBytes(w + shape.scales + g, n));
  }
  switch (shape.meta) {
    case RowMeta::kSuperScale:
      return SuperProducts<true>(shape, w, shape.scales, 0, 1, g, n);
    case RowMeta::kSuperScaleMin:
      return SuperProducts<false>(shape, w, shape.scales, 0, 2, g, n);
    default:
      if (kKind == QuantKind::kQ8 && shape.float_scales) {
        return LoadFloats(w + shape.scales + uint64_t{g} * 4, n);
      }
      return MetaOf(shape, w, shape.scales, 0, g, n);
  }
}

// Zeros, or the mins of encodings that have them.
template <QuantKind kKind>
SLUICE_INLINE __m256 ZerosOf(const RowShape& shape, const uint8_t* w, uint32_t g, uint32_t n) {
  if constexpr (kKind == QuantKind::kMxfp4) {
    return _mm256_set1_ps(kMxfp4Zero);
  }
  switch (shape.meta) {
    case RowMeta::kScale:
    case RowMeta::kSuperScale:
      return _mm256_set1_ps(shape.zero);
    case RowMeta::kSuperScaleMin:
      return SuperProducts<false>(shape, w, shape.zeros, 1, 2, g, n);
    default:
      return MetaOf(shape, w, shape.zeros, 2, g, n);
  }
}

template <QuantKind kKind>
void QuantDecode(const RowShape& shape, const uint8_t* w, float factor, float* y) {
  alignas(32) float scales[8];
  alignas(32) float zeros[8];
  for (uint32_t g = 0; g < shape.groups; ++g) {
    if (g % 8 == 0) {
      const uint32_t n = shape.groups - g < 8 ? shape.groups - g : 8;
      _mm256_store_ps(scales, ScalesOf<kKind>(shape, w, g, n));
      _mm256_store_ps(zeros, ZerosOf<kKind>(shape, w, g, n));
    }
    const uint32_t end = (g + 1) * shape.group < shape.cols ? (g + 1) * shape.group : shape.cols;
    for (uint32_t k = g * shape.group; k < end; k += 16) {
      const __m256i unit = UnitOf<kKind>(shape, w, k / 16);
      const __m128i halves[2] = {_mm256_castsi256_si128(unit), _mm256_extracti128_si256(unit, 1)};
      alignas(32) float values[16];
      for (int i = 0; i < 2; ++i) {
        const __m256 code = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(halves[i]));
        const __m256 zero = _mm256_set1_ps(zeros[g % 8]);
        const __m256 scale = _mm256_set1_ps(scales[g % 8]);
        const __m256 value = HasMins(shape.meta) ? _mm256_sub_ps(_mm256_mul_ps(scale, code), zero)
                                                 : _mm256_mul_ps(_mm256_sub_ps(code, zero), scale);
        _mm256_store_ps(values + 8 * i, _mm256_mul_ps(_mm256_set1_ps(factor), value));
      }
      __builtin_memcpy(y + k, values, (end - k < 16 ? end - k : 16) * sizeof(float));
    }
  }
}

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
