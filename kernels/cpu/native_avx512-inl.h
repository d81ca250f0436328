// Registers of AVX-512 (F, BW, DQ, VL, VNNI): sixteen floats in one. Included by isa_avx512-inl.h only,
// inside the instruction set's namespace and target attribute; native_avx2-inl.h is the AVX2 version.
//
// Thread safety: pure functions.

#ifndef SLUICE_ISA
#error "included by isa/avx512-inl.h only"
#endif

using N = __m512;
#define SLUICE_IN_REGISTER(x) "+v"(x)
inline constexpr int kNative = 16;  // floats in N

inline N NZero() { return _mm512_setzero_ps(); }
inline N NSet1(float x) { return _mm512_set1_ps(x); }
inline N NLoad(const float* p) { return _mm512_loadu_ps(p); }
inline void NStore(float* p, N a) { _mm512_storeu_ps(p, a); }
inline N NFma(N a, N b, N c) { return _mm512_fmadd_ps(a, b, c); }
inline N NOr(N a, N b) { return _mm512_or_ps(a, b); }
inline N NNegFma(N a, N b, N c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
inline N NAdd(N a, N b) { return _mm512_add_ps(a, b); }
inline N NSub(N a, N b) { return _mm512_sub_ps(a, b); }
inline N NMul(N a, N b) { return _mm512_mul_ps(a, b); }
inline N NDiv(N a, N b) { return _mm512_div_ps(a, b); }
inline N NMax(N a, N b) { return _mm512_max_ps(a, b); }
inline N NMin(N a, N b) { return _mm512_min_ps(a, b); }
inline N NAbs(N a) { return _mm512_abs_ps(a); }
inline N NNeg(N a) { return _mm512_xor_ps(_mm512_set1_ps(-0.0f), a); }
inline N NRound(N a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x < limit ? a : b; false for NaN.
inline N NIfLess(N x, N limit, N a, N b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), b, a);
}
inline N NIfNan(N x, N a, N b) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), b, a); }
// 2^n for integral n in -126..127.
inline N NPow2(N n) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}

// Bit i: not x < limit (set for NaN).
inline uint32_t NMaskNotLess(N x, N limit) { return _mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ); }
// Lanes whose bits are set; the others +0.
inline N NKeep(N x, uint32_t bits) { return _mm512_maskz_mov_ps(static_cast<__mmask16>(bits), x); }
// Moves the set lanes together; zeros after them.
inline N NCompress(N x, uint32_t bits) { return _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), x); }
// Stores first + i for each set bit i; zeros after them.
inline void NStoreIndices(uint32_t* p, uint32_t first, uint32_t bits) {
  const __m512i lanes =
      _mm512_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(first)),
                       _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), lanes));
}

inline N NLoadBf16(const uint8_t* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
inline N NLoadF16(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline N NLoadI8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void NStoreF16(uint8_t* p, N a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Lane r of out[c]: lane c of rows[r].
inline void NTranspose(const N* rows, N* out) {
  N quads[16];  // columns 4 i + c of rows 4 r on at 4 r + c, in the i-th 128 bits
  for (int r = 0; r < 16; r += 4) {
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(rows[r], rows[r + 1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(rows[r], rows[r + 1]));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(rows[r + 2], rows[r + 3]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(rows[r + 2], rows[r + 3]));
    quads[r] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    quads[r + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    quads[r + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    quads[r + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  for (int c = 0; c < 4; ++c) {
    const N low = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0x44);
    const N high = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0xee);
    const N next_low = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0x44);
    const N next_high = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0xee);
    out[c] = _mm512_shuffle_f32x4(low, next_low, 0x88);
    out[4 + c] = _mm512_shuffle_f32x4(low, next_low, 0xdd);
    out[8 + c] = _mm512_shuffle_f32x4(high, next_high, 0x88);
    out[12 + c] = _mm512_shuffle_f32x4(high, next_high, 0xdd);
  }
}

// Lanes i and i + 8 added.
inline __m256 FoldTo8(const N* parts) {
  return _mm256_add_ps(_mm512_castps512_ps256(parts[0]), _mm512_extractf32x8_ps(parts[0], 1));
}

// sum plus the products of neighbouring int16 pairs.
inline __m256i AddProducts(__m256i sum, __m256i a, __m256i b) { return _mm256_dpwssd_epi32(sum, a, b); }

// As many int32 as N has floats.
using NInt = __m512i;
inline NInt NIntZero() { return _mm512_setzero_si512(); }
inline NInt NIntSet1(int32_t x) { return _mm512_set1_epi32(x); }
// Reorders sixteen columns that lie as 0-3 8-11 4-7 12-15 by their numbers.
inline void NIntInOrder(const NInt* a, NInt* out) { out[0] = _mm512_shuffle_i32x4(a[0], a[0], 0xd8); }
inline NInt NIntLoad(const int32_t* p) { return _mm512_load_si512(p); }
inline N NFromInt(NInt a) { return _mm512_cvtepi32_ps(a); }
inline void NIntStore(int32_t* p, NInt a) { _mm512_store_si512(p, a); }
inline NInt NIntAdd(NInt a, NInt b) { return _mm512_add_epi32(a, b); }
inline NInt NToInt(N a) { return _mm512_cvtps_epi32(a); }

// 64 bytes: two blocks of codes.
using B = __m512i;
inline constexpr uint32_t kBlocksOfB = 2;
inline B BLoad(const void* p) { return _mm512_loadu_si512(p); }

// sum plus the products of four neighbouring bytes, of a unsigned and of b signed.
inline NInt NAddByteProducts(NInt sum, B a, B b) { return _mm512_dpbusd_epi32(sum, a, b); }

// Broadcasts the four bytes at p to every lane. Inline assembly: GCC 12 would load them long before their
// use, and then has no registers to keep them in.
inline NInt NFourInAll(const int8_t* p) {
  struct __attribute__((packed, may_alias)) Four {
    int32_t bytes;
  };
  NInt out;
  asm("vpbroadcastd %1, %0" : "=v"(out) : "m"(*reinterpret_cast<const Four*>(p)));
  return out;
}

// Lane i: byte 0 of a, b, c and d's lanes i, one after the other. REQUIRES values of a signed byte.
inline NInt NFourBytes(NInt a, NInt b, NInt c, NInt d) {
  const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
  return _mm512_shuffle_epi8(
      bytes, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
}

// Adds lanes 2i and 2i + 1 of each 128 bits: a's sums in lanes 0 and 1, b's in 2 and 3.
inline NInt NAddNeighbours(NInt a, NInt b) {
  const __m512 x = _mm512_castsi512_ps(a);
  const __m512 y = _mm512_castsi512_ps(b);
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                          _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}
// NAddNeighbours() for lanes that all fit 16 bits.
inline NInt NAddShortNeighbours(NInt a, NInt b) {
  return _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1));
}
