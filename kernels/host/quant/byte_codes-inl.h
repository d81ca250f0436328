// Codes of two to four bits as unsigned bytes, for byte multiplications, which take twice as many at a time
// as 16-bit ones. The int16 values that they meet are cut into their high (signed) and low (unsigned) bytes:
// q = 256 high + low. The sums are exact, so the bits are those of 16-bit multiplications.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure functions.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// Fields in each byte of a row's first plane.
template <QuantKind kKind>
inline constexpr int kByteFields = kKind == QuantKind::kQ4 ? 2 : 4;

// For four third bits: bits 0 and 2 as the third bits of two nibbles; bits 1 and 3.
SLUICE_INLINE __m128i EvenThirdBits() {
  return _mm_setr_epi8(0, 0x04, 0, 0x04, 0x40, 0x44, 0x40, 0x44, 0, 0x04, 0, 0x04, 0x40, 0x44, 0x40, 0x44);
}
SLUICE_INLINE __m128i OddThirdBits() {
  return _mm_setr_epi8(0, 0, 0x04, 0x04, 0, 0, 0x04, 0x04, 0x40, 0x40, 0x44, 0x44, 0x40, 0x40, 0x44, 0x44);
}

// The fields of every byte, the lowest first. q3: the low four bits of each byte of `third` are the fields'
// third bits, its high four bits are 0.
template <QuantKind kKind>
SLUICE_INLINE void ByteFields(__m256i bytes, __m256i third, __m256i* out) {
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  if constexpr (kKind == QuantKind::kQ4) {
    out[0] = _mm256_and_si256(bytes, nibble);
    out[1] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
    return;
  }
  if constexpr (kKind == QuantKind::kQ2) {
    const __m256i two = _mm256_set1_epi8(3);
    out[0] = _mm256_and_si256(bytes, two);
    out[1] = _mm256_and_si256(_mm256_srli_epi16(bytes, 2), two);
    out[2] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), two);
    out[3] = _mm256_and_si256(_mm256_srli_epi16(bytes, 6), two);
    return;
  }
  // Fields 0 and 2 with their third bits in the nibbles of one register, 1 and 3 in another's.
  const __m256i pairs = _mm256_set1_epi8(0x33);
  const __m256i even_bits = _mm256_broadcastsi128_si256(EvenThirdBits());
  const __m256i odd_bits = _mm256_broadcastsi128_si256(OddThirdBits());
  const __m256i even = _mm256_or_si256(_mm256_and_si256(bytes, pairs), _mm256_shuffle_epi8(even_bits, third));
  const __m256i odd = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(bytes, 2), pairs),
                                      _mm256_shuffle_epi8(odd_bits, third));
  out[0] = _mm256_and_si256(even, nibble);
  out[1] = _mm256_and_si256(odd, nibble);
  out[2] = _mm256_and_si256(_mm256_srli_epi16(even, 4), nibble);
  out[3] = _mm256_and_si256(_mm256_srli_epi16(odd, 4), nibble);
}
