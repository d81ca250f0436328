// Registers of AVX2 with FMA and F16C: eight floats in one. Included by isa_avx2-inl.h, and by
// isa_avx2vnni-inl.h with SLUICE_VNNI, inside the instruction set's namespace and target attribute;
// native_avx512-inl.h is the AVX-512 version.
//
// Thread safety: pure functions.

#ifndef SLUICE_ISA
#error "included by isa/avx2*-inl.h only"
#endif

using N = __m256;
#define SLUICE_IN_REGISTER(x) "+x"(x)
inline constexpr int kNative = 8;  // floats in N
#ifdef SLUICE_VNNI
inline constexpr bool kVnni = true;
#else
inline constexpr bool kVnni = false;
#endif

inline N NZero() { return _mm256_setzero_ps(); }
inline N NSet1(float x) { return _mm256_set1_ps(x); }
inline N NLoad(const float* p) { return _mm256_loadu_ps(p); }
inline void NStore(float* p, N a) { _mm256_storeu_ps(p, a); }
inline N NFma(N a, N b, N c) { return _mm256_fmadd_ps(a, b, c); }
inline N NOr(N a, N b) { return _mm256_or_ps(a, b); }
inline N NNegFma(N a, N b, N c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
inline N NAdd(N a, N b) { return _mm256_add_ps(a, b); }
inline N NSub(N a, N b) { return _mm256_sub_ps(a, b); }
inline N NMul(N a, N b) { return _mm256_mul_ps(a, b); }
inline N NDiv(N a, N b) { return _mm256_div_ps(a, b); }
inline N NMax(N a, N b) { return _mm256_max_ps(a, b); }
inline N NMin(N a, N b) { return _mm256_min_ps(a, b); }
inline N NAbs(N a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline N NNeg(N a) { return _mm256_xor_ps(_mm256_set1_ps(-0.0f), a); }
inline N NRound(N a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x < limit ? a : b; false for NaN.
inline N NIfLess(N x, N limit, N a, N b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, limit, _CMP_LT_OQ));
}
inline N NIfNan(N x, N a, N b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }
// 2^n for integral n in -126..127.
inline N NPow2(N n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}

// Bit i: not x < limit (set for NaN).
inline uint32_t NMaskNotLess(N x, N limit) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ)));
}
// All ones in the lanes whose bits are set.
inline __m256i LanesOf(uint32_t bits) {
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(bits)), each), each);
}
// Lanes whose bits are set; the others +0.
inline N NKeep(N x, uint32_t bits) { return _mm256_and_ps(x, _mm256_castsi256_ps(LanesOf(bits))); }

// For every set of eight bits: the numbers of its set bits, ascending, then lanes that are cleared.
struct LaneTable {
  uint8_t lanes[256][8];
  constexpr LaneTable() : lanes() {
    for (uint32_t bits = 0; bits < 256; ++bits) {
      uint32_t count = 0;
      for (uint32_t i = 0; i < 8; ++i) {
        if ((bits >> i & 1) != 0) {
          lanes[bits][count++] = static_cast<uint8_t>(i);
        }
      }
    }
  }
};
inline constexpr LaneTable kLaneTable;

inline __m256i CompressedLanes(uint32_t bits) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLaneTable.lanes[bits])));
}
inline __m256i FirstLanes(uint32_t bits) {
  return LanesOf((uint32_t{1} << static_cast<uint32_t>(__builtin_popcount(bits))) - 1);
}
// Moves the set lanes together; zeros after them.
inline N NCompress(N x, uint32_t bits) {
  return _mm256_and_ps(_mm256_permutevar8x32_ps(x, CompressedLanes(bits)),
                       _mm256_castsi256_ps(FirstLanes(bits)));
}
// Stores first + i for each set bit i; zeros after them.
inline void NStoreIndices(uint32_t* p, uint32_t first, uint32_t bits) {
  const __m256i lanes =
      _mm256_add_epi32(_mm256_set1_epi32(static_cast<int32_t>(first)), CompressedLanes(bits));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_and_si256(lanes, FirstLanes(bits)));
}

inline N NLoadBf16(const uint8_t* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline N NLoadF16(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline N NLoadI8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void NStoreF16(uint8_t* p, N a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Lane r of out[c]: lane c of rows[r].
inline void NTranspose(const N* rows, N* out) {
  N quads[8];  // columns 4 i + c of rows 4 r on at 4 r + c, in the i-th 128 bits
  for (int r = 0; r < 8; r += 4) {
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(rows[r], rows[r + 1]));
    const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(rows[r], rows[r + 1]));
    const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(rows[r + 2], rows[r + 3]));
    const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(rows[r + 2], rows[r + 3]));
    quads[r] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
    quads[r + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    quads[r + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
    quads[r + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
  }
  for (int c = 0; c < 4; ++c) {
    out[c] = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x20);
    out[4 + c] = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x31);
  }
}

// Lanes i and i + 8 added.
inline __m256 FoldTo8(const N* parts) { return _mm256_add_ps(parts[0], parts[1]); }

// sum plus the products of neighbouring int16 pairs.
inline __m256i AddProducts(__m256i sum, __m256i a, __m256i b) {
#ifdef SLUICE_VNNI
  return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
#endif
}

// As many int32 as N has floats.
using NInt = __m256i;
inline NInt NIntZero() { return _mm256_setzero_si256(); }
inline NInt NIntSet1(int32_t x) { return _mm256_set1_epi32(x); }
// Reorders sixteen columns that lie as 0-3 8-11 4-7 12-15 by their numbers.
inline void NIntInOrder(const NInt* a, NInt* out) {
  out[0] = _mm256_permute2x128_si256(a[0], a[1], 0x20);
  out[1] = _mm256_permute2x128_si256(a[0], a[1], 0x31);
}
inline NInt NIntLoad(const int32_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
inline N NFromInt(NInt a) { return _mm256_cvtepi32_ps(a); }
inline void NIntStore(int32_t* p, NInt a) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), a); }
inline NInt NIntAdd(NInt a, NInt b) { return _mm256_add_epi32(a, b); }
inline NInt NToInt(N a) { return _mm256_cvtps_epi32(a); }

// 32 bytes: a block of codes.
using B = __m256i;
inline constexpr uint32_t kBlocksOfB = 1;
inline B BLoad(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

#ifdef SLUICE_VNNI
// sum plus the products of four neighbouring bytes, of a unsigned and of b signed.
inline NInt NAddByteProducts(NInt sum, B a, B b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
#endif

// Broadcasts the four bytes at p to every lane. Inline assembly: GCC 12 would load them long before their
// use, and then has no registers to keep them in.
inline NInt NFourInAll(const int8_t* p) {
  struct __attribute__((packed, may_alias)) Four {
    int32_t bytes;
  };
  NInt out;
  asm("vpbroadcastd %1, %0" : "=x"(out) : "m"(*reinterpret_cast<const Four*>(p)));
  return out;
}

// Lane i: byte 0 of a, b, c and d's lanes i, one after the other. REQUIRES values of a signed byte.
inline NInt NFourBytes(NInt a, NInt b, NInt c, NInt d) {
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  return _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(
                                        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
}

// Adds lanes 2i and 2i + 1 of each 128 bits: a's sums in lanes 0 and 1, b's in 2 and 3.
inline NInt NAddNeighbours(NInt a, NInt b) {
  const __m256 x = _mm256_castsi256_ps(a);
  const __m256 y = _mm256_castsi256_ps(b);
  return _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)),
                          _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)));
}
// NAddNeighbours() for lanes that all fit 16 bits.
inline NInt NAddShortNeighbours(NInt a, NInt b) {
  return _mm256_madd_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16(1));
}
