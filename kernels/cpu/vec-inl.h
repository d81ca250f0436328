// Thirty-two lanes on every instruction set: V is two AVX-512 registers or four AVX2 registers. Has the parts
// of ARITHMETIC.md that kernels share: lane sums, exp, loads of every encoding, tails. Included by the
// instruction sets' kernels_*.cc.
//
// Thread safety: pure functions.

#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// All kernels are one translation unit, above the size up to which GCC inlines by itself.
#define SLUICE_INLINE __attribute__((always_inline)) inline

#if defined(__clang__)
#define SLUICE_UNROLL _Pragma("clang loop unroll(full)")
#define SLUICE_UNROLL_BY_8 _Pragma("clang loop unroll_count(8)")
#else
#define SLUICE_UNROLL _Pragma("GCC unroll 64")
#define SLUICE_UNROLL_BY_8 _Pragma("GCC unroll 8")
#endif

inline constexpr uint32_t kLanes = 32;
inline constexpr int kParts = kLanes / kNative;

struct V {
  N p[kParts];
};

#define SLUICE_PARTS(expression)     \
  V out;                             \
  for (int i = 0; i < kParts; ++i) { \
    out.p[i] = (expression);         \
  }                                  \
  return out

inline V Zero() { SLUICE_PARTS(NZero()); }
inline V Set1(float x) { SLUICE_PARTS(NSet1(x)); }
inline V Load(const float* p) { SLUICE_PARTS(NLoad(p + i * kNative)); }
inline void Store(float* p, V a) {
  for (int i = 0; i < kParts; ++i) {
    NStore(p + i * kNative, a.p[i]);
  }
}
inline V Fma(V a, V b, V c) { SLUICE_PARTS(NFma(a.p[i], b.p[i], c.p[i])); }
inline V Add(V a, V b) { SLUICE_PARTS(NAdd(a.p[i], b.p[i])); }
inline V Sub(V a, V b) { SLUICE_PARTS(NSub(a.p[i], b.p[i])); }
inline V Mul(V a, V b) { SLUICE_PARTS(NMul(a.p[i], b.p[i])); }
inline V Div(V a, V b) { SLUICE_PARTS(NDiv(a.p[i], b.p[i])); }
inline V Max(V a, V b) { SLUICE_PARTS(NMax(a.p[i], b.p[i])); }
inline V Abs(V a) { SLUICE_PARTS(NAbs(a.p[i])); }

// Section 7 of ARITHMETIC.md.
inline N NExp(N x) {
  const N clamped = NMin(x, NSet1(88.0f));
  const N n = NRound(NMul(clamped, NSet1(1.44269504f)));
  N r = NNegFma(n, NSet1(0.693359375f), clamped);
  r = NNegFma(n, NSet1(-2.12194440e-4f), r);
  N p = NSet1(1.9875691500e-4f);
  p = NFma(p, r, NSet1(1.3981999507e-3f));
  p = NFma(p, r, NSet1(8.3334519073e-3f));
  p = NFma(p, r, NSet1(4.1665795894e-2f));
  p = NFma(p, r, NSet1(1.6666665459e-1f));
  p = NFma(p, r, NSet1(5.0000001201e-1f));
  p = NFma(p, NMul(r, r), r);
  p = NMul(NAdd(p, NSet1(1.0f)), NPow2(n));
  return NIfNan(x, x, NIfLess(x, NSet1(-87.0f), NZero(), p));
}
inline V Exp(V x) { SLUICE_PARTS(NExp(x.p[i])); }

// The tree over the lanes, down to four.
inline __m128 FoldTo4(V a) {
  N halves[kParts / 2];
  for (int i = 0; i < kParts / 2; ++i) {
    halves[i] = NAdd(a.p[i], a.p[i + kParts / 2]);
  }
  const __m256 s = FoldTo8(halves);
  return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

// The tree to the end, and the closing +0.
inline float Total(V a) {
  const __m128 t = FoldTo4(a);
  const __m128 u = _mm_add_ps(t, _mm_movehl_ps(t, t));
  const __m128 sum = _mm_add_ss(u, _mm_movehdup_ps(u));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_setzero_ps()));
}

// Four totals at once, the same bits.
inline __m128 Total4(V a, V b, V c, V d) {
  const __m128 ta = FoldTo4(a);
  const __m128 tb = FoldTo4(b);
  const __m128 tc = FoldTo4(c);
  const __m128 td = FoldTo4(d);
  const __m128 uab = _mm_add_ps(_mm_movelh_ps(ta, tb), _mm_movehl_ps(tb, ta));
  const __m128 ucd = _mm_add_ps(_mm_movelh_ps(tc, td), _mm_movehl_ps(td, tc));
  const __m128 even = _mm_shuffle_ps(uab, ucd, _MM_SHUFFLE(2, 0, 2, 0));
  const __m128 odd = _mm_shuffle_ps(uab, ucd, _MM_SHUFFLE(3, 1, 3, 1));
  return _mm_add_ps(_mm_add_ps(even, odd), _mm_setzero_ps());
}

inline float LargestLane(V a) {
  N largest = a.p[0];
  for (int i = 1; i < kParts; ++i) {
    largest = NMax(largest, a.p[i]);
  }
  float lanes[kNative];
  NStore(lanes, largest);
  float out = lanes[0];
  for (int i = 1; i < kNative; ++i) {
    out = lanes[i] > out ? lanes[i] : out;
  }
  return out;
}

// Loads the first n lanes; zeros after them. Reads nothing beyond.
inline V LoadN(const float* p, uint32_t n) {
  alignas(64) float lanes[kLanes] = {};
  __builtin_memcpy(lanes, p, n * sizeof(float));
  return Load(lanes);
}
inline void StoreN(float* p, V a, uint32_t n) {
  alignas(64) float lanes[kLanes];
  Store(lanes, a);
  __builtin_memcpy(p, lanes, n * sizeof(float));
}

// Loads values of an encoding. kBytes: bytes of one value.
struct Bf16Row {
  static constexpr uint32_t kBytes = 2;
  static N NativeLoad(const uint8_t* p) { return NLoadBf16(p); }
};
struct F16Row {
  static constexpr uint32_t kBytes = 2;
  static N NativeLoad(const uint8_t* p) { return NLoadF16(p); }
};
struct F32Row {
  static constexpr uint32_t kBytes = 4;
  static N NativeLoad(const uint8_t* p) { return NLoad(reinterpret_cast<const float*>(p)); }
};
struct I8Row {
  static constexpr uint32_t kBytes = 1;
  static N NativeLoad(const uint8_t* p) { return NLoadI8(p); }
};

template <class Row>
inline V LoadRow(const uint8_t* p) {
  SLUICE_PARTS(Row::NativeLoad(p + i * kNative * Row::kBytes));
}

// Loads the first n lanes; zeros after them.
template <class Row>
inline V LoadRowN(const uint8_t* p, uint32_t n) {
  alignas(64) uint8_t bytes[kLanes * 4] = {};
  __builtin_memcpy(bytes, p, n * Row::kBytes);
  return LoadRow<Row>(bytes);
}

#undef SLUICE_PARTS
