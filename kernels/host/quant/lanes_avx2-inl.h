#else  // SLUICE_AVX512

// Register operations for dot products by bytes with 256 bits.

// Rows at once, which share loads of x, or tokens at once, which share unpacked codes. Without AVX-VNNI two
// rows need more registers than there are.
inline constexpr int kRowsOfBytes = kVnni ? 2 : 1;
inline constexpr int kTokensOfBytes = 2;

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
// kOrder: number of groups that share a register of codes (byte_dot-inl.h); 0: the second half of four comes
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
