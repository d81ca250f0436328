// Dot products of quantized rows (ARITHMETIC.md 2 b): int8 activations, exact group sums in int32, eight
// groups at a time.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.

#ifndef SLUICE_ISA
#error "included by isa_table-inl.h only"
#endif

#if defined(SLUICE_AVX512)

// Register operations for dot products by bytes with 512 bits.

// Rows at once, which share loads of x, or tokens at once, which share unpacked codes.
inline constexpr int kRowsOfBytes = 2;
inline constexpr int kTokensOfBytes = 4;
// StreamAhead (below).
inline constexpr bool kStreamsAhead = false;

// ThirdBits() of low blocks 2i and 2i + 1 of a run.
SLUICE_INLINE B NThirdBits(const uint8_t* third, uint32_t i) {
  const __m256i even =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14));
  const __m256i odd =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m512i order = _mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1);
  const __m512i bits = _mm512_shuffle_epi8(_mm512_broadcast_i64x4(LoadBlock(third + i * 32)), order);
  return _mm512_and_si512(_mm512_mask_srli_epi16(bits, 0xf0f0f0f0, bits, 4), _mm512_set1_epi8(0x0f));
}

// UpperBits() of low blocks 2i and 2i + 1 of a run, which share a block of upper bits.
template <QuantKind kKind>
SLUICE_INLINE B NUpperBits(const uint8_t* high, uint32_t i) {
  constexpr uint32_t kBits = kHighBits<kKind>;
  constexpr uint32_t kPairs = 2 / kBits;  // pairs of low blocks that share one
  const __m512i both = _mm512_broadcast_i64x4(LoadBlock(high + uint64_t{i / kPairs} * 32));
  const __m512i apart = _mm512_mask_srli_epi16(both, 0xffff0000, both, 2 * kBits);
  return _mm512_srl_epi16(apart, _mm_cvtsi32_si128(static_cast<int>(4 * kBits * (i % kPairs))));
}

// Adds the first two 128-bit quarters of a and of b, and their last two.
SLUICE_INLINE __m512i AddQuarters(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}

// The sums of eight groups, each in its lane. kOrder: order of the groups in a register of codes
// (quant_dot-inl.h). 3: one group; otherwise the first block's groups are in the lower half.
template <int kCount, uint32_t kLeaves, int kOrder>
SLUICE_INLINE void JoinLanes(const B* a, const B* b, __m256i* out) {
  constexpr bool kWhole = kOrder == 3;
  static_assert(kWhole == (kLeaves == 8));
  const __m512i order = kOrder == 0 ? _mm512_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15)
                        : kOrder == 1
                            ? _mm512_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15)
                            : _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  SLUICE_UNROLL
  for (int i = 0; i < kCount; i += 2) {
    const int j = i + 1 < kCount ? i + 1 : i;
    __m512i both;  // eight groups of each
    if constexpr (kWhole) {
      both = AddQuarters(AddQuarters(a[i], b[i]), AddQuarters(a[j], b[j]));
    } else {
      both = _mm512_permutexvar_epi32(order, AddQuarters(a[i], a[j]));
    }
    out[i] = _mm512_castsi512_si256(both);
    if (j != i) {
      out[j] = _mm512_extracti64x4_epi64(both, 1);
    }
  }
}

#else  // SLUICE_AVX512

// Register operations for dot products by bytes with 256 bits.

// Rows at once, which share loads of x, or tokens at once, which share unpacked codes. Without AVX-VNNI two
// rows need more registers than there are.
inline constexpr int kRowsOfBytes = kVnni ? 2 : 1;
inline constexpr int kTokensOfBytes = 2;
// StreamAhead (below).
inline constexpr bool kStreamsAhead = !kVnni;

// ThirdBits() of low block i of a run.
SLUICE_INLINE B NThirdBits(const uint8_t* third, uint32_t i) {
  return ThirdBits(LoadBlock(third + i / 2 * 32), i % 2 != 0);
}

// UpperBits() of low block i of a run.
template <QuantKind kKind>
SLUICE_INLINE B NUpperBits(const uint8_t* high, uint32_t i) {
  return UpperBits<kKind>(high, i);
}

// The sums of eight groups, each in its lane. Each 128 bits of a and b have two or four groups' halves.
// kOrder: number of groups that share a register of codes (quant_dot-inl.h); 0: the second half of four comes
// before the first one of the next.
template <int kCount, uint32_t kLeaves, int kOrder>
SLUICE_INLINE void JoinLanes(const B* a, const B* b, __m256i* out) {
  SLUICE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    out[i] = _mm256_add_epi32(_mm256_permute2x128_si256(a[i], b[i], 0x20),
                              _mm256_permute2x128_si256(a[i], b[i], 0x31));
    if constexpr (kOrder == 0) {
      out[i] = _mm256_permutevar8x32_epi32(out[i], _mm256_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7));
    }
  }
}

#endif  // SLUICE_AVX512

// Dot products by bytes (quant_codes-inl.h): the sums of eight groups at a time, for groups that are made of
// whole fields. A leaf is a register of partial sums of one group, or of up to four that lie in it; leaves
// are added up in pairs, as they come, so that few are alive.

// True if rows of a kind with groups of kUnits units are multiplied this way: at least half of a block's
// fields.
template <QuantKind kKind, uint32_t kUnits>
inline constexpr bool kByBytes = kUnits > 0 && 2 * kUnits >= kByteFields<kKind>;

// KernelTable::in_halves. With AVX-512, experts of q2 lost 2 to 4 % by it.
template <QuantKind kKind>
inline constexpr bool kInHalves = kKind != QuantKind::kMxfp4 && (kNative == 8 || kKind != QuantKind::kQ2);

// Number of orders of activations: one each for planes of 8, 4 and 2 bits.
inline constexpr uint32_t kWovenOrders = 3;
template <QuantKind kKind>
inline constexpr uint32_t kOrderOf = kByteFields<kKind> / 2;
// True if the two units of a field lie split, not woven. Always for two-bit planes, whose groups of 64 need
// it.
inline constexpr bool IsSplit(uint32_t fields, uint32_t units) { return fields == 4 || units <= fields; }

// Writes `cols` codes, a multiple of kCodeAlign, in an order: for each two blocks and each field 32 bytes of
// the first block and 32 of the second.
inline void WeaveCodes(const int8_t* codes, uint32_t cols, uint32_t fields, bool split, int8_t* out) {
  const auto put = [&out](__m128i low, __m128i high) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), high);
    out += 32;
  };
  for (uint32_t k = 0; k < cols; k += 64 * fields) {
    for (uint32_t f = 0; f < fields; ++f) {
      for (uint32_t block = 0; block < 2; ++block) {
        const int8_t* unit = codes + k + block * 32 * fields + 16 * f;
        const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(unit));
        const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(unit + 16 * fields));
        split ? put(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b))
              : put(_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b));
      }
    }
  }
}

// Writes the orders that rows of a group size need; out: [kWovenOrders][cols].
inline void WeaveForGroup(const int8_t* codes, uint32_t cols, uint32_t group, int8_t* out) {
  const uint32_t units = group / 16;
  for (uint32_t order = 0; order < kWovenOrders; ++order, out += cols) {
    const uint32_t fields = 1u << order;
    if (2 * units >= fields) {
      WeaveCodes(codes, cols, fields, IsSplit(fields, units), out);
    }
  }
}

// The cut of eight groups of kUnits units into leaves.
template <QuantKind kKind, uint32_t kUnits>
struct Leaves {
  static constexpr uint32_t kFields = kByteFields<kKind>;
  static constexpr uint32_t kRegisters = 4 * kUnits / (kFields * kBlocksOfB);  // of codes, in eight groups
  static constexpr bool kHalves = 2 * kUnits == kFields;  // a register's fields are in two leaves
  static constexpr uint32_t kCount = kHalves ? 2 * kRegisters : kRegisters < 8 ? kRegisters : 8;
  static constexpr uint32_t kOfLeaf = kHalves ? 1 : kRegisters / kCount;  // registers
  static constexpr uint32_t kFieldsOfLeaf = kHalves ? kFields / 2 : kFields;
  static constexpr bool kSplit = IsSplit(kFields, kUnits);
  static_assert(kOfLeaf * kFieldsOfLeaf <= kMaxAdds<kKind>);
  // Maximum of a leaf's lane.
  static constexpr int kLargest =
      static_cast<int>(4 * kOfLeaf * kFieldsOfLeaf) * kLargestByte * kLargestCode<kKind>;
};

// The fields of register i of a run of codes.
template <QuantKind kKind, bool kSplit>
SLUICE_INLINE void FieldsAt(const GroupsAt& w, uint32_t i, B* out) {
  B bytes = BLoad(w.codes + i * sizeof(B));
  if constexpr (kSplit) {
    bytes = EvenOdd(bytes);
  }
  B third = bytes;
  if constexpr (kKind == QuantKind::kQ3) {
    third = NThirdBits(w.third, i);
  } else if constexpr (kHighBits<kKind> != 0) {
    third = NUpperBits<kKind>(w.third, i);
    if constexpr (kSplit) {
      third = EvenOdd(third);
    }
  }
  ByteFields<kKind>(bytes, third, out);
}

// Computes leaf kLeaf of each of kRows rows with each of kTokens tokens, whose codes for these groups begin
// at x.
template <QuantKind kKind, uint32_t kUnits, int kRows, int kTokens, uint32_t kLeaf>
SLUICE_INLINE void LeafOf(const GroupsAt* w, const int8_t* const* x, LinesAhead* lines, B* out) {
  using L = Leaves<kKind, kUnits>;
  SLUICE_UNROLL
  for (uint32_t i = 0; i < kFetchSteps<kKind>; ++i) {  // kFetchSteps in total
    if (i * L::kCount / kFetchSteps<kKind> == kLeaf) {
      lines->Step();
    }
  }
  constexpr uint32_t kFirst = L::kHalves ? kLeaf / 2 : kLeaf * L::kOfLeaf;
  constexpr uint32_t kFirstField = L::kHalves ? kLeaf % 2 * L::kFieldsOfLeaf : 0;
  ByteSum<kKind> sums[kRows * kTokens];
  SLUICE_UNROLL
  for (uint32_t i = kFirst; i < kFirst + L::kOfLeaf; ++i) {
    B fields[kRows][L::kFields];
    SLUICE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      FieldsAt<kKind, L::kSplit>(w[r], i, fields[r]);
    }
    SLUICE_UNROLL
    for (uint32_t f = kFirstField; f < kFirstField + L::kFieldsOfLeaf; ++f) {
      // Two blocks' bytes of a field lie together.
      const uint32_t place = (i * kBlocksOfB / 2 * L::kFields + f) * 64 + i * kBlocksOfB % 2 * 32;
      SLUICE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const B values = BLoad(x[t] + place);
        SLUICE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          ByteSum<kKind>& sum = sums[r * kTokens + t];
          i == kFirst&& f == kFirstField ? sum.Start(fields[r][f], values) : sum.Add(fields[r][f], values);
        }
      }
    }
  }
  SLUICE_UNROLL
  for (int i = 0; i < kRows * kTokens; ++i) {
    out[i] = sums[i].Total();
  }
}

// Adds two leaves from kLeaf on; each 128 bits of a sum hold two lanes of each.
template <QuantKind kKind, uint32_t kUnits, int kRows, int kTokens, uint32_t kLeaf>
SLUICE_INLINE void TwoLeaves(const GroupsAt* w, const int8_t* const* x, LinesAhead* lines, B* out) {
  B a[kRows * kTokens];
  B b[kRows * kTokens];
  LeafOf<kKind, kUnits, kRows, kTokens, kLeaf>(w, x, lines, a);
  LeafOf<kKind, kUnits, kRows, kTokens, kLeaf + 1>(w, x, lines, b);
  SLUICE_UNROLL
  for (int i = 0; i < kRows * kTokens; ++i) {
    out[i] = Leaves<kKind, kUnits>::kLargest <= 32767 ? NAddShortNeighbours(a[i], b[i])
                                                      : NAddNeighbours(a[i], b[i]);
  }
}

// Adds four leaves: one lane of each.
template <QuantKind kKind, uint32_t kUnits, int kRows, int kTokens, uint32_t kLeaf>
SLUICE_INLINE void FourLeaves(const GroupsAt* w, const int8_t* const* x, LinesAhead* lines, B* out) {
  B a[kRows * kTokens];
  B b[kRows * kTokens];
  TwoLeaves<kKind, kUnits, kRows, kTokens, kLeaf>(w, x, lines, a);
  TwoLeaves<kKind, kUnits, kRows, kTokens, kLeaf + 2>(w, x, lines, b);
  SLUICE_UNROLL
  for (int i = 0; i < kRows * kTokens; ++i) {
    out[i] = 2 * Leaves<kKind, kUnits>::kLargest <= 32767 ? NAddShortNeighbours(a[i], b[i])
                                                          : NAddNeighbours(a[i], b[i]);
  }
}

// Sums eight groups of kUnits units for kRows rows with kTokens tokens, one group in each lane of out[row *
// kTokens + token]; for q8 less kByteBias times the activations' sums.
template <QuantKind kKind, uint32_t kUnits, int kRows, int kTokens>
SLUICE_INLINE void EightGroups(const GroupsAt* w, const int8_t* const* x, LinesAhead* lines, __m256i* out) {
  constexpr uint32_t kLeaves = Leaves<kKind, kUnits>::kCount;
  B a[kRows * kTokens];
  B b[kRows * kTokens];
  if constexpr (kLeaves == 2) {
    TwoLeaves<kKind, kUnits, kRows, kTokens, 0>(w, x, lines, a);
  } else if constexpr (kLeaves == 4 && kBlocksOfB == 1) {
    TwoLeaves<kKind, kUnits, kRows, kTokens, 0>(w, x, lines, a);
    TwoLeaves<kKind, kUnits, kRows, kTokens, 2>(w, x, lines, b);
  } else {
    FourLeaves<kKind, kUnits, kRows, kTokens, 0>(w, x, lines, a);
    if constexpr (kLeaves == 8) {
      FourLeaves<kKind, kUnits, kRows, kTokens, 4>(w, x, lines, b);
    }
  }
  constexpr int kOrder = Leaves<kKind, kUnits>::kHalves                 ? 0
                         : kUnits == Leaves<kKind, kUnits>::kFields     ? 1
                         : kUnits == 2 * Leaves<kKind, kUnits>::kFields ? 2
                                                                        : 3;
  JoinLanes<kRows * kTokens, kLeaves, kOrder>(a, b, out);
}

// Adds neighbouring pairs of 16-bit words: two lanes of a, then two of b, in each 128 bits.
SLUICE_INLINE __m256i FoldWords(__m256i a, __m256i b) {
  const __m256 x = _mm256_castsi256_ps(a);
  const __m256 y = _mm256_castsi256_ps(b);
  return _mm256_add_epi16(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)),
                          _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)));
}

// Adds the eight lanes of v[i] into lane i.
SLUICE_INLINE __m256i FoldEight(const __m256i* v) {
  const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
  const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

// The tree over eight lanes and the closing +0.
SLUICE_INLINE float TotalOfEight(__m256 a) {
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

// Sixteen values times `factor`, rounded and saturated to signed bytes in 16-bit lanes.
inline __m256i SixteenCodes(const float* x, __m256 factor) {
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor));
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  return _mm256_max_epi16(_mm256_min_epi16(words, _mm256_set1_epi16(127)), _mm256_set1_epi16(-128));
}

inline int32_t SumOfCodes(__m256i codes) {
  const __m256i pairs = _mm256_madd_epi16(codes, _mm256_set1_epi16(1));
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// One group's codes, n <= 128; returns their sum. Writes up to a multiple of 16, zeros behind the n.
inline int32_t StoreCodes(const float* x, float inverse, uint32_t n, int8_t* codes) {
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
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + k), bytes);
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
    const int32_t sum = StoreCodes(call.x + k, zero ? 0.0f : 127.0f / largest, n, call.codes + k);
    call.scales[g] = zero ? 0.0f : largest / 127.0f;
    call.sums[g] = static_cast<float>(sum);
  }
  for (; g % 8 != 0; ++g) {
    call.scales[g] = 0.0f;
    call.sums[g] = 0.0f;
  }
  // Groups are multiples of 16, so only whole units can be missing in the last block.
  const uint32_t end = (call.cols + 15) / 16 * 16;
  const uint32_t padded = RoundUp(end, kCodeAlign);
  __builtin_memset(call.codes + end, 0, padded - end);
  if (call.woven != nullptr) {
    WeaveForGroup(call.codes, padded, call.group, call.woven);
  }
}

// Partial sums of the units [first, last) of a row.
template <QuantKind kKind>
inline __m256i GroupOfUnits(const RowShape& shape, const uint8_t* w, const int8_t* x, uint32_t first,
                            uint32_t last) {
  __m256i sum = _mm256_setzero_si256();
  for (uint32_t u = first; u < last; ++u) {
    sum = _mm256_add_epi32(sum,
                           _mm256_madd_epi16(UnitOf<kKind>(shape, w, u), LoadCodes16(x + uint64_t{u} * 16)));
  }
  return sum;
}

// Adds eight groups of a row from g on to the eight lanes; s: their sums, less kBias times those of x. Groups
// beyond the row's end have scales and zeros of 0.
template <int kBias>
SLUICE_INLINE __m256 AddGroups(bool mins, __m256 scales, __m256 zeros, const QuantRow& x, uint32_t g,
                               __m256i s, __m256 lanes) {
  const __m256 x_sums = _mm256_loadu_ps(x.sums + g);
  __m256 sums = _mm256_cvtepi32_ps(s);
  if constexpr (kBias != 0) {
    sums = _mm256_fmadd_ps(_mm256_set1_ps(kBias), x_sums, sums);
  }
  if (mins) {
    const __m256 t = _mm256_fnmadd_ps(zeros, x_sums, _mm256_mul_ps(scales, sums));
    return _mm256_fmadd_ps(_mm256_loadu_ps(x.scales + g), t, lanes);
  }
  const __m256 t = _mm256_fnmadd_ps(zeros, x_sums, sums);
  return _mm256_fmadd_ps(_mm256_mul_ps(scales, _mm256_loadu_ps(x.scales + g)), t, lanes);
}

// Adds the groups from g on of a row and a token to the lanes, unit by unit: the rest after the last eight
// whole groups, or all of a row whose groups are not multiplied by bytes. One function per kind: inlined for
// every number of rows and tokens it was most of these kernels' code.
template <QuantKind kKind>
__attribute__((noinline)) __m256 AddGroupsByUnits(const RowShape& shape, const uint8_t* w, const QuantRow& x,
                                                  uint32_t g, LinesAhead lines, __m256 lanes) {
  const uint32_t units = (shape.cols + 15) / 16;
  const uint32_t per_group = shape.group / 16;
  for (; g < shape.groups; g += 8) {
    const uint32_t count = shape.groups - g < 8 ? shape.groups - g : 8;
    for (uint32_t i = 0; i < kFetchSteps<kKind>; ++i) {
      lines.Step();
    }
    __m256i v[8];
    for (uint32_t j = 0; j < 8; ++j) {
      const uint32_t first = (g + j) * per_group;
      const uint32_t last = first + per_group < units ? first + per_group : units;
      v[j] = GroupOfUnits<kKind>(shape, w, x.codes, first, j < count ? last : first);
    }
    lanes = AddGroups<0>(HasMins(shape.meta), ScalesOf<kKind>(shape, w, g, count),
                         ZerosOf<kKind>(shape, w, g, count), x, g, FoldEight(v), lanes);
  }
  return lanes;
}

// Distance in bytes at which lines are prefetched to the first-level cache. The hardware prefetches lines
// too, but late: most of a core's 16 lines in flight are fetched from memory.
inline constexpr uint32_t kNearBytes = 1024;

// True if all rows but two, the ends of two streams, are followed by one of the next two; the distance above
// often reaches beyond the row.
inline bool AreNear(const QuantDotCall& call) {
  uint32_t followed = 0;
  for (uint32_t r = 0; r + 1 < call.rows; ++r) {
    const uint8_t* end = call.w[r] + call.shape.bytes;
    const uint8_t* second = call.w[r + 2 < call.rows ? r + 2 : r + 1];
    followed += static_cast<uint64_t>(call.w[r + 1] - end) < 64 || static_cast<uint64_t>(second - end) < 64;
  }
  return call.rows > 2 && followed + 2 >= call.rows;
}

template <uint32_t kBytes>
SLUICE_INLINE void MoveNear(const uint8_t* p) {
  SLUICE_UNROLL
  for (uint32_t i = 0; i < kBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p) + i + kNearBytes, _MM_HINT_T0);
  }
}

// Fetches a row that lies some way ahead in memory, evenly over the steps of the one that is read. One stream
// with prefetches this far ahead reads as fast as memory gives (Zen 3: 99 % with Q4_K); fetched by halves to
// the second-level cache, a few rows ahead, the same rows took 1.5 times as long.
class StreamAhead {
 public:
  // `on`: other rows follow each other, so what lies ahead is read next.
  SLUICE_INLINE StreamAhead(const uint8_t* row, uint32_t bytes, uint32_t steps, bool on)
      : at_(row + kBytes), share_((bytes + steps - 1) / steps), lines_(on ? (share_ + 63) / 64 : 0) {}
  // True if a call's rows are read this way. With AVX-VNNI and AVX-512 it was not measured.
  static bool Suits(const QuantDotCall& call) { return kStreamsAhead && AreNear(call); }
  SLUICE_INLINE void Step() {
    for (uint32_t i = 0; i < lines_; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(at_) + uint64_t{i} * 64, _MM_HINT_T0);
    }
    at_ += share_;
  }

 private:
  static constexpr uint32_t kBytes = 2048;

  const uint8_t* at_;
  const uint32_t share_;
  const uint32_t lines_;
};

// Adds whole groups of kRows rows with kTokens tokens, eight at a time, to lanes[row * kTokens + token].
// Returns the first group that is left.
template <QuantKind kKind, uint32_t kUnits, int kRows, int kTokens, bool kNear>
SLUICE_INLINE uint32_t AddWholeGroups(const RowShape& shape, uint32_t whole, const uint8_t* const* w,
                                      const QuantRow* x, LinesAhead* lines, __m256* lanes) {
  constexpr uint32_t kBytesOfCodes = 8 * kUnits / kBlockUnits<kKind> * 32;
  GroupsAt at[kRows];
  SLUICE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    at[r] = {w[r], w[r] + shape.high_plane};
  }
  const int8_t* values[kTokens];
  SLUICE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    values[t] = x[t].woven + kOrderOf<kKind> * RoundUp(shape.cols, kCodeAlign);
  }
  static_assert(!kStreamsAhead || kRows == 1, "it follows one row");
  StreamAhead ahead(w[0], shape.bytes, (shape.groups + 7) / 8, kNear);
  uint32_t g = 0;
  for (; g + 8 <= whole; g += 8) {
    if constexpr (kNear && kStreamsAhead) {
      ahead.Step();
    } else if constexpr (kNear) {
      SLUICE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        MoveNear<kBytesOfCodes>(at[r].codes);
      }
    }
    __m256i sums[kRows * kTokens];
    EightGroups<kKind, kUnits, kRows, kTokens>(at, values, lines, sums);
    SLUICE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m256 scales = ScalesOf<kKind>(shape, w[r], g, 8);
      const __m256 zeros = ZerosOf<kKind>(shape, w[r], g, 8);
      SLUICE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        __m256& lane = lanes[r * kTokens + t];
        lane = AddGroups<kByteBias<kKind>>(HasMins(shape.meta), scales, zeros, x[t], g, sums[r * kTokens + t],
                                           lane);
      }
      at[r].codes += kBytesOfCodes;
      at[r].third += 16 * kUnits * kHighBits<kKind>;
    }
    SLUICE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      values[t] += 8 * kUnits * 16;
    }
  }
  return g;
}

// Multiplies kRows rows with kTokens tokens. kUnits: units in a group, 0 for groups that are not multiplied
// by bytes. whole: number of full-length groups; kNear: AreNear(). `lines`: rows to fetch meanwhile.
// y[token][row].
template <QuantKind kKind, uint32_t kUnits, int kRows, int kTokens, bool kNear>
SLUICE_INLINE void DotRowsWith(const RowShape& shape, uint32_t whole, const uint8_t* const* w,
                               const QuantRow* x, LinesAhead* lines, float* const* y, uint32_t row) {
  __m256 lanes[kRows * kTokens];
  SLUICE_UNROLL
  for (int i = 0; i < kRows * kTokens; ++i) {
    lanes[i] = _mm256_setzero_ps();
  }
  uint32_t g = 0;
  if constexpr (kUnits > 0) {
    g = AddWholeGroups<kKind, kUnits, kRows, kTokens, kNear>(shape, whole, w, x, lines, lanes);
  }
  if (g < shape.groups) {
    SLUICE_UNROLL
    for (int i = 0; i < kRows * kTokens; ++i) {
      lanes[i] = AddGroupsByUnits<kKind>(shape, w[i / kTokens], x[i % kTokens], g,
                                         i == 0 ? *lines : LinesAhead(), lanes[i]);
    }
  }
  SLUICE_UNROLL
  for (int i = 0; i < kRows * kTokens; ++i) {
    y[i % kTokens][row + static_cast<uint32_t>(i / kTokens)] = TotalOfEight(lanes[i]);
  }
}

// The lines to fetch of the rows ahead while the rows [r, r + kRows) are read: two rows in turn or, for one
// row of two streams, half of two rows, else two halves of one.
template <int kRows>
inline LinesAhead LinesWhile(const QuantDotCall& call, uint32_t r, uint32_t steps) {
  const uint32_t length = (call.shape.bytes + 63) / 64;
  const uint32_t half = (length + 1) / 2;
  LinesAhead lines;
  if (kRows == 2) {
    lines.Start(RowAhead(call.w, r, call.prefetch), RowAhead(call.w, r + 1, call.prefetch), length, steps);
  } else if (call.prefetch.two_streams) {
    const uint64_t from = r % 2 * uint64_t{half} * 64;
    lines.Start(RowAhead(call.w, r / 2 * 2, call.prefetch) + from,
                RowAhead(call.w, r / 2 * 2 + 1, call.prefetch) + from, half, steps);
  } else {
    const uint8_t* ahead = RowAhead(call.w, r, call.prefetch);
    lines.Start(ahead, ahead + uint64_t{half} * 64, half, steps);
  }
  return lines;
}

// Multiplies rows [r, r + kRows) of the call with kTokens tokens from t on.
template <QuantKind kKind, uint32_t kUnits, int kRows, int kTokens, bool kNear>
SLUICE_INLINE void DotRowsAt(const QuantDotCall& call, uint32_t whole, uint32_t r, uint32_t t,
                             uint32_t steps) {
  LinesAhead lines;
  if (call.fetch != nullptr && t == 0) {
    call.fetch->Start(call.fetch_lines * kRows, steps, &lines);
  } else if (KindOf(call.prefetch) != Prefetch::kNone && t == 0 && !(kNear && kStreamsAhead)) {
    lines = LinesWhile<kRows>(call, r, steps);
  }
  DotRowsWith<kKind, kUnits, kRows, kTokens, kNear>(call.shape, whole, call.w + r, call.x + t, &lines,
                                                    call.y + t, call.first + r);
}

// Multiplies each row with all tokens, some at a time.
template <QuantKind kKind, uint32_t kUnits>
__attribute__((noinline)) void DotRowByRow(const QuantDotCall& call, uint32_t whole, uint32_t steps) {
  constexpr int kTokens = kUnits > 0 ? kTokensOfBytes : 1;
  constexpr int kTwo = kTokens > 1 ? 2 : 1;
  for (uint32_t r = 0; r < call.rows; ++r) {
    uint32_t t = 0;
    for (; t + kTokens <= call.tokens; t += kTokens) {
      DotRowsAt<kKind, kUnits, 1, kTokens, false>(call, whole, r, t, steps);
    }
    for (; kTokens > 2 && t + 2 <= call.tokens; t += 2) {
      DotRowsAt<kKind, kUnits, 1, kTwo, false>(call, whole, r, t, steps);
    }
    for (; t < call.tokens; ++t) {
      DotRowsAt<kKind, kUnits, 1, 1, false>(call, whole, r, t, steps);
    }
  }
}

template <QuantKind kKind, uint32_t kUnits, bool kNear>
__attribute__((noinline)) void DotAllRows(const QuantDotCall& call) {
  constexpr int kPair = kUnits > 0 ? kRowsOfBytes : 1;
  const uint32_t steps = (call.shape.groups + 7) / 8 * kFetchSteps<kKind>;
  const uint32_t whole = call.shape.cols / call.shape.group;
  if (call.tokens > 1) {
    return DotRowByRow<kKind, kUnits>(call, whole, steps);
  }
  uint32_t r = 0;
  for (; r + kPair <= call.rows; r += kPair) {
    DotRowsAt<kKind, kUnits, kPair, 1, kNear>(call, whole, r, 0, steps);
  }
  for (; r < call.rows; ++r) {
    DotRowsAt<kKind, kUnits, 1, 1, kNear>(call, whole, r, 0, steps);
  }
}

template <QuantKind kKind, uint32_t kUnits>
void QuantDotRows(const QuantDotCall& call) {
  constexpr uint32_t kUsed = kByBytes<kKind, kUnits> ? kUnits : 0;
  kUsed > 0 && AreNear(call) ? DotAllRows<kKind, kUsed, true>(call) : DotAllRows<kKind, kUsed, false>(call);
}
