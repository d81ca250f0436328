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
