// Small kernels over one row: norm, conversions, sums (ARITHMETIC.md 3-5).
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the arguments name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// Runs the body for kLanes columns [k, k + n) at a time, n < kLanes in the last one.
#define SLUICE_FOR_COLUMNS(cols)                                                                    \
  for (uint32_t k = 0, n = kLanes; k < (cols) && (n = (cols)-k < kLanes ? (cols)-k : kLanes, true); \
       k += kLanes)

inline V LoadUpTo(const float* p, uint32_t n) { return n == kLanes ? Load(p) : LoadN(p, n); }
inline void StoreUpTo(float* p, V a, uint32_t n) { n == kLanes ? Store(p, a) : StoreN(p, a, n); }

inline void RmsNorm(const float* x, uint32_t cols, const float* weight, float epsilon, float* y) {
  V sum = Zero();
  SLUICE_FOR_COLUMNS(cols) {
    const V a = LoadUpTo(x + k, n);
    sum = Fma(a, a, sum);
  }
  const V r = Set1(1.0f / __builtin_sqrtf(Total(sum) / static_cast<float>(cols) + epsilon));
  SLUICE_FOR_COLUMNS(cols) {
    const V a = Mul(LoadUpTo(x + k, n), r);
    StoreUpTo(y + k, weight == nullptr ? a : Mul(a, LoadUpTo(weight + k, n)), n);
  }
}

template <class Row>
void Decode(const uint8_t* row, uint32_t cols, float scale, float* y) {
  SLUICE_FOR_COLUMNS(cols) {
    const uint8_t* p = row + uint64_t{k} * Row::kBytes;
    StoreUpTo(y + k, Mul(Set1(scale), n == kLanes ? LoadRow<Row>(p) : LoadRowN<Row>(p, n)), n);
  }
}

inline void AddRows(const float* x, const float* bias, float scale, const float* residual, uint32_t cols,
                    float* y) {
  SLUICE_FOR_COLUMNS(cols) {
    V a = LoadUpTo(x + k, n);
    if (bias != nullptr) {
      a = Add(a, LoadUpTo(bias + k, n));
    }
    a = Mul(Set1(scale), a);
    if (residual != nullptr) {
      a = Add(LoadUpTo(residual + k, n), a);
    }
    StoreUpTo(y + k, a, n);
  }
}

inline void Accumulate(const float* s, uint32_t cols, float* y) {
  SLUICE_FOR_COLUMNS(cols) { StoreUpTo(y + k, Add(LoadUpTo(y + k, n), LoadUpTo(s + k, n)), n); }
}

inline void Combine(const CombineRowsCall& call) {
  SLUICE_FOR_COLUMNS(call.cols) {
    V a = Zero();
    for (uint32_t r = 0; r < call.ranks; ++r) {
      const float weight = call.weights == nullptr ? 1.0f : call.weights[r];
      if (weight != 0) {
        a = Fma(Set1(weight), LoadUpTo(call.rows + r * call.stride + k, n), a);
      }
    }
    V sum = Mul(Set1(call.scale), Add(a, Zero()));
    if (call.residual != nullptr) {
      sum = Add(LoadUpTo(call.residual + k, n), sum);
    }
    StoreUpTo(call.out + k, call.gain == nullptr ? sum : Mul(Set1(*call.gain), sum), n);
  }
}

inline float ExpSum(const float* x, float m, uint32_t cols, float* e) {
  V sum = Zero();
  SLUICE_FOR_COLUMNS(cols) {
    V value = Exp(Sub(LoadUpTo(x + k, n), Set1(m)));
    if (n < kLanes) {
      alignas(64) float lanes[kLanes];
      Store(lanes, value);
      value = LoadN(lanes, n);
    }
    if (e != nullptr) {
      StoreUpTo(e + k, value, n);
    }
    sum = Add(sum, value);
  }
  return Total(sum);
}

inline void ScaleAdd(const float* x, float b, float a, uint32_t cols, float* y) {
  SLUICE_FOR_COLUMNS(cols) {
    StoreUpTo(y + k, Fma(LoadUpTo(x + k, n), Set1(b), Mul(LoadUpTo(y + k, n), Set1(a))), n);
  }
}

inline void Divide(const float* x, float divisor, uint32_t cols, float* y) {
  SLUICE_FOR_COLUMNS(cols) { StoreUpTo(y + k, Div(LoadUpTo(x + k, n), Set1(divisor)), n); }
}

inline void Rope(float* head, const float* cos, const float* sin, uint32_t half, bool interleaved) {
  uint32_t i = 0;
  for (; !interleaved && i + kNative <= half; i += kNative) {
    const N a = NLoad(head + i);
    const N b = NLoad(head + half + i);
    const N c = NLoad(cos + i);
    const N s = NLoad(sin + i);
    NStore(head + i, NFma(a, c, NNeg(NMul(b, s))));
    NStore(head + half + i, NFma(b, c, NMul(a, s)));
  }
  for (; i < half; ++i) {
    float& a = head[interleaved ? 2 * i : i];
    float& b = head[interleaved ? 2 * i + 1 : i + half];
    const float rotated = __builtin_fmaf(a, cos[i], -(b * sin[i]));
    b = __builtin_fmaf(b, cos[i], a * sin[i]);
    a = rotated;
  }
}

inline float Largest(const float* x, uint32_t cols) {
  V largest = Set1(x[0]);
  uint32_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) {
    largest = Max(largest, Load(x + k));
  }
  float out = LargestLane(largest);
  for (; k < cols; ++k) {
    out = x[k] > out ? x[k] : out;
  }
  return out;
}

inline float LargestMagnitude(const float* x, uint32_t cols) {
  V largest = Zero();
  SLUICE_FOR_COLUMNS(cols) { largest = Max(largest, Abs(LoadUpTo(x + k, n))); }
  return LargestLane(largest);
}

inline float StoreKv(KvType type, const float* values, uint32_t head_dim, uint8_t* row) {
  if (type == KvType::kF32) {
    __builtin_memcpy(row, values, uint64_t{head_dim} * sizeof(float));
    return 1.0f;
  }
  if (type == KvType::kF16) {
    SLUICE_FOR_COLUMNS(head_dim) {
      alignas(64) uint8_t half[2 * kLanes];
      const V a = LoadUpTo(values + k, n);
      for (int i = 0; i < kParts; ++i) {
        NStoreF16(half + i * kNative * 2, a.p[i]);
      }
      __builtin_memcpy(row + uint64_t{k} * 2, half, n * 2);
    }
    return 1.0f;
  }
  const float largest = LargestMagnitude(values, head_dim);
  const bool zero = largest < 1e-30f;
  const V inverse = Set1(zero ? 0.0f : 127.0f / largest);
  SLUICE_FOR_COLUMNS(head_dim) {
    alignas(64) float codes[kLanes];
    const V scaled = Mul(LoadUpTo(values + k, n), inverse);
    for (int i = 0; i < kParts; ++i) {
      NStore(codes + i * kNative, NMax(NSet1(-128.0f), NMin(NRound(scaled.p[i]), NSet1(127.0f))));
    }
    for (uint32_t i = 0; i < n; ++i) {
      row[k + i] = static_cast<uint8_t>(static_cast<int8_t>(codes[i]));
    }
  }
  return zero ? 0.0f : largest / 127.0f;
}
