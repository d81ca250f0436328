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
// (byte_dot-inl.h). 3: one group; otherwise the first block's groups are in the lower half.
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
