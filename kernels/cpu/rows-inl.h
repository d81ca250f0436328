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

// Makes a neuron's coefficient from its two dot products (ARITHMETIC.md 3 and 7).

// x / (1 + exp(-z)).
inline N NTimesSigmoid(N x, N z) { return NDiv(x, NAdd(NSet1(1.0f), NExp(NSub(NZero(), z)))); }

inline N NGeluTanh(N x) {
  return NTimesSigmoid(x, NMul(x, NFma(NMul(x, x), NSet1(0.0713548163f), NSet1(1.59576912f))));
}

inline N NGelu(N x) {
  const N z = NMul(NAbs(x), NSet1(0.707106781f));
  const N t = NDiv(NSet1(1.0f), NFma(NSet1(0.5f), z, NSet1(1.0f)));
  N p = NSet1(0.17087277f);
  for (const float coefficient : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f,
                                  0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f}) {
    p = NFma(p, t, NSet1(coefficient));
  }
  const N tail = NMul(NMul(NSet1(0.5f), t), NExp(NNegFma(z, z, p)));
  return NMul(x, NIfLess(x, NZero(), tail, NSub(NSet1(1.0f), tail)));
}

// The limit is the first operand: with a NaN these instructions return the second.
inline N NClampedGate(N g, N alpha, N limit) {
  const N clamped = NMin(limit, g);
  return NTimesSigmoid(clamped, NMul(alpha, clamped));
}
inline N NClamp(N u, N limit) { return NMin(limit, NMax(NSub(NZero(), limit), u)); }
inline N NClampedUp(N u, N limit) { return NAdd(NSet1(1.0f), NClamp(u, limit)); }

// y = function(x + bias), register by register.
template <class Function>
inline void MapFactors(const FactorCall& call, Function function) {
  SLUICE_FOR_COLUMNS(call.n) {
    V a = LoadUpTo(call.x + k, n);
    if (call.bias != nullptr) {
      a = Add(a, LoadUpTo(call.bias + k, n));
    }
    for (int i = 0; i < kParts; ++i) {
      a.p[i] = function(a.p[i]);
    }
    StoreUpTo(call.y + k, a, n);
  }
}

struct SiluOf {
  N operator()(N x) const { return NTimesSigmoid(x, x); }
};
struct GeluTanhOf {
  N operator()(N x) const { return NGeluTanh(x); }
};
struct GeluOf {
  N operator()(N x) const { return NGelu(x); }
};
struct ClampedGateOf {
  N alpha, limit;
  N operator()(N x) const { return NClampedGate(x, alpha, limit); }
};
struct ClampedUpOf {
  N limit;
  N operator()(N x) const { return NClampedUp(x, limit); }
};
struct ClampedSiluOf {
  N limit;
  N operator()(N x) const { return NMin(limit, NTimesSigmoid(x, x)); }
};
struct LimitedSiluOf {
  N limit;
  N operator()(N x) const {
    const N limited = NMin(limit, x);
    return NTimesSigmoid(limited, limited);
  }
};
struct ClampOf {
  N limit;
  N operator()(N x) const { return NClamp(x, limit); }
};
struct ReluOf {
  N operator()(N x) const { return NMax(NZero(), x); }
};
struct SameAs {
  N operator()(N x) const { return x; }
};

inline void GateFactor(const FactorCall& call) {
  switch (call.activation.kind) {
    case Activation::kSilu:
      return MapFactors(call, SiluOf{});
    case Activation::kGeluTanh:
      return MapFactors(call, GeluTanhOf{});
    case Activation::kGelu:
      return MapFactors(call, GeluOf{});
    case Activation::kClampedSwiglu:
      return MapFactors(call, ClampedGateOf{NSet1(call.activation.alpha), NSet1(call.activation.limit)});
    case Activation::kRelu2:
      return MapFactors(call, ReluOf{});
    case Activation::kLimitedSilu:
      return MapFactors(call, LimitedSiluOf{NSet1(call.activation.limit)});
    case Activation::kClampedSilu:
      return MapFactors(call, ClampedSiluOf{NSet1(call.activation.limit)});
  }
}

inline void UpFactor(const FactorCall& call) {
  if (call.activation.kind == Activation::kClampedSwiglu) {
    return MapFactors(call, ClampedUpOf{NSet1(call.activation.limit)});
  }
  if (call.activation.kind == Activation::kClampedSilu || call.activation.kind == Activation::kLimitedSilu) {
    return MapFactors(call, ClampOf{NSet1(call.activation.limit)});
  }
  if (call.bias != nullptr || call.y != call.x) {
    MapFactors(call, SameAs{});
  }
}

inline void SoftCap(float* x, uint32_t cols, float cap) {
  SLUICE_FOR_COLUMNS(cols) {
    V a = Mul(LoadUpTo(x + k, n), Set1(2.0f / cap));
    for (int i = 0; i < kParts; ++i) {
      a.p[i] = NFma(NSet1(2.0f), NTimesSigmoid(NSet1(1.0f), a.p[i]), NSet1(-1.0f));
    }
    StoreUpTo(x + k, Mul(Set1(cap), a), n);
  }
}

inline void MultiplyRows(const float* a, const float* b, uint32_t cols, float* c) {
  SLUICE_FOR_COLUMNS(cols) { StoreUpTo(c + k, Mul(LoadUpTo(a + k, n), LoadUpTo(b + k, n)), n); }
}

// Masks of a block of at most 64 neurons, one bit each, and the values that they keep (ARITHMETIC.md 3).

// Bit j, j < n: not |lead[j]| < threshold. Reads 64 values.
inline uint64_t KeepMask(const float* lead, uint32_t n, float threshold) {
  const N limit = NSet1(threshold);
  uint64_t mask = 0;
  for (uint32_t j = 0; j < n; j += kNative) {
    mask |= uint64_t{NMaskNotLess(NAbs(NLoad(lead + j)), limit)} << j;
  }
  return n == 64 ? mask : mask & ((uint64_t{1} << n) - 1);
}

// out[j] = values[j] where bit j is set, else +0, for 64 values. out may be values.
inline void SelectKept(const float* values, uint64_t mask, float* out) {
  for (uint32_t j = 0; j < 64; j += kNative) {
    NStore(out + j, NKeep(NLoad(values + j), static_cast<uint32_t>(mask >> j)));
  }
}

// The values whose bits are set, in order. Reads 64 values, writes up to 64 and not beyond.
inline void CompressKept(const float* values, uint64_t mask, float* out) {
  uint32_t count = 0;
  for (uint32_t j = 0; j < 64; j += kNative) {
    const uint32_t bits = static_cast<uint32_t>(mask >> j) & ((uint32_t{1} << kNative) - 1);
    // At most j values are before this register's, so a whole register fits.
    NStore(out + count, NCompress(NLoad(values + j), bits));
    count += static_cast<uint32_t>(__builtin_popcount(bits));
  }
}

// The numbers of the set bits, ascending, padded with zeros to a multiple of kNative. Returns how many.
inline uint32_t KeptIndices(uint64_t mask, uint32_t* out) {
  uint32_t count = 0;
  for (uint32_t j = 0; j < 64; j += kNative) {
    const uint32_t bits = static_cast<uint32_t>(mask >> j) & ((uint32_t{1} << kNative) - 1);
    NStoreIndices(out + count, j, bits);
    count += static_cast<uint32_t>(__builtin_popcount(bits));
  }
  return count;
}

// Small kernels over one row that only some families need (ARITHMETIC.md 4, 5 and 6).

inline V Sigmoid(V x) {
  for (int i = 0; i < kParts; ++i) {
    x.p[i] = NTimesSigmoid(NSet1(1.0f), x.p[i]);
  }
  return x;
}

inline void SigmoidRow(const float* x, uint32_t cols, float* y) {
  SLUICE_FOR_COLUMNS(cols) { StoreUpTo(y + k, Sigmoid(LoadUpTo(x + k, n)), n); }
}

inline void SigmoidMul(const float* gate, uint32_t cols, float* x) {
  SLUICE_FOR_COLUMNS(cols) { StoreUpTo(x + k, Mul(LoadUpTo(x + k, n), Sigmoid(LoadUpTo(gate + k, n))), n); }
}

// Keeps the first n lanes; zeros after them.
inline V FirstLanes(V a, uint32_t n) {
  if (n == kLanes) {
    return a;
  }
  alignas(64) float lanes[kLanes];
  Store(lanes, a);
  return LoadN(lanes, n);
}

inline void LayerNorm(const float* x, uint32_t cols, const float* weight, const float* bias, float epsilon,
                      float* y) {
  V sum = Zero();
  SLUICE_FOR_COLUMNS(cols) { sum = Add(sum, LoadUpTo(x + k, n)); }
  const V mean = Set1(Total(sum) / static_cast<float>(cols));
  V squares = Zero();
  SLUICE_FOR_COLUMNS(cols) {
    const V a = FirstLanes(Sub(LoadUpTo(x + k, n), mean), n);
    squares = Fma(a, a, squares);
  }
  const V r = Set1(1.0f / __builtin_sqrtf(Total(squares) / static_cast<float>(cols) + epsilon));
  SLUICE_FOR_COLUMNS(cols) {
    V a = Mul(Mul(Sub(LoadUpTo(x + k, n), mean), r), LoadUpTo(weight + k, n));
    if (bias != nullptr) {
      a = Add(a, LoadUpTo(bias + k, n));
    }
    StoreUpTo(y + k, a, n);
  }
}

// The limit is the first operand: with a NaN these instructions return the second.
inline void Clip(float* x, uint32_t cols, float limit) {
  SLUICE_FOR_COLUMNS(cols) {
    V a = LoadUpTo(x + k, n);
    for (int i = 0; i < kParts; ++i) {
      a.p[i] = NMin(NSet1(limit), NMax(NSet1(-limit), a.p[i]));
    }
    StoreUpTo(x + k, a, n);
  }
}

// The gated delta rule and Mamba-2 (ARITHMETIC.md 9 and 10), one token of one head at a time, with the value
// columns in the lanes.

inline void L2Norm(float* x, uint32_t cols, float scale) {
  V sum = Zero();
  SLUICE_FOR_COLUMNS(cols) {
    const V a = LoadUpTo(x + k, n);
    sum = Fma(a, a, sum);
  }
  const V r = Set1(1.0f / __builtin_sqrtf(Total(sum) + 1e-6f));
  SLUICE_FOR_COLUMNS(cols) { StoreUpTo(x + k, Mul(Mul(LoadUpTo(x + k, n), r), Set1(scale)), n); }
}

template <bool kSilu>
void Convolve(const ConvolveCall& call) {
  SLUICE_FOR_COLUMNS(call.cols) {
    V sum = call.bias == nullptr ? Zero() : LoadUpTo(call.bias + k, n);
    for (uint32_t j = 0; j < call.kernel_size; ++j) {
      sum = Fma(LoadUpTo(call.rows[j] + k, n), LoadUpTo(call.weights + j * call.stride + k, n), sum);
    }
    sum = Add(sum, Zero());
    for (int i = 0; kSilu && i < kParts; ++i) {
      sum.p[i] = NTimesSigmoid(sum.p[i], sum.p[i]);
    }
    StoreUpTo(call.y + k, sum, n);
  }
}

// W times kLanes columns of a head's state from column `at` on; a single one may have fewer, `count`.
template <int W>
void DeltaColumns(const DeltaStepCall& call, uint32_t at, uint32_t count) {
  const uint32_t n = W > 1 ? kLanes : count;
  V delta[W];
  for (V& sum : delta) {
    sum = Zero();
  }
  for (uint32_t i = 0; i < call.key_dim; ++i) {
    const float* cells = call.from + uint64_t{i} * call.value_dim + at;
    const V key = Set1(call.k[i]);
    const V decay = Set1(call.decay[i * call.decay_step]);
    for (uint32_t w = 0; w < W; ++w) {
      delta[w] = Fma(Mul(LoadUpTo(cells + w * kLanes, n), decay), key, delta[w]);
    }
  }
  V out[W];
  for (uint32_t w = 0; w < W; ++w) {
    const V value = LoadUpTo(call.v + at + w * kLanes, n);
    delta[w] = Mul(Sub(value, Add(delta[w], Zero())), Set1(call.beta));
    out[w] = Zero();
  }
  for (uint32_t i = 0; i < call.key_dim; ++i) {
    const uint64_t place = uint64_t{i} * call.value_dim + at;
    const V key = Set1(call.k[i]);
    const V query = Set1(call.q[i]);
    const V decay = Set1(call.decay[i * call.decay_step]);
    for (uint32_t w = 0; w < W; ++w) {
      const V cell = Fma(key, delta[w], Mul(LoadUpTo(call.from + place + w * kLanes, n), decay));
      StoreUpTo(call.to + place + w * kLanes, cell, n);
      out[w] = Fma(cell, query, out[w]);
    }
  }
  for (uint32_t w = 0; w < W; ++w) {
    StoreUpTo(call.o + at + w * kLanes, Add(out[w], Zero()), n);
  }
}

inline void DeltaStep(const DeltaStepCall& call) {
  // Sums side by side: as many as the registers hold.
  constexpr int kWide = kNative == 16 ? 4 : 2;
  uint32_t at = 0;
  for (; at + kWide * kLanes <= call.value_dim; at += kWide * kLanes) {
    DeltaColumns<kWide>(call, at, kLanes);
  }
  for (; at < call.value_dim; at += kLanes) {
    DeltaColumns<1>(call, at, call.value_dim - at < kLanes ? call.value_dim - at : kLanes);
  }
}

// W times kLanes columns of a head's state from column `at` on; a single one may have fewer, `count`.
template <int W>
void MambaColumns(const MambaStepCall& call, uint32_t at, uint32_t count) {
  const uint32_t n = W > 1 ? kLanes : count;
  const V decay = Set1(call.decay);
  V input[W];
  V out[W];
  for (uint32_t w = 0; w < W; ++w) {
    input[w] = Mul(Set1(call.step), LoadUpTo(call.x + at + w * kLanes, n));
    out[w] = Zero();
  }
  for (uint32_t i = 0; i < call.state; ++i) {
    const uint64_t place = uint64_t{i} * call.head_dim + at;
    const V b = Set1(call.b[i]);
    const V c = Set1(call.c[i]);
    for (uint32_t w = 0; w < W; ++w) {
      const V cell = Fma(b, input[w], Mul(LoadUpTo(call.from + place + w * kLanes, n), decay));
      StoreUpTo(call.to + place + w * kLanes, cell, n);
      out[w] = Fma(cell, c, out[w]);
    }
  }
  for (uint32_t w = 0; w < W; ++w) {
    const V x = LoadUpTo(call.x + at + w * kLanes, n);
    StoreUpTo(call.y + at + w * kLanes, Fma(Set1(call.skip), x, Add(out[w], Zero())), n);
  }
}

// One token of some channels of Mamba-1's state, with the channels in the lanes.
inline void SelectiveStep(const SelectiveStepCall& call) {
  SLUICE_FOR_COLUMNS(call.count) {
    const V x = LoadUpTo(call.x + k, n);
    const V step = LoadUpTo(call.step + k, n);
    const V input = Mul(step, x);
    V out = Zero();
    for (uint32_t i = 0; i < call.state; ++i) {
      const V a = Exp(LoadUpTo(call.a_log + i * call.a_stride + k, n));
      const V decay = Exp(Sub(Zero(), Mul(step, a)));
      const uint64_t place = i * call.from_stride + k;
      const V cell = Fma(Set1(call.b[i]), input, Mul(LoadUpTo(call.from + place, n), decay));
      StoreUpTo(call.to + place, cell, n);
      out = Fma(cell, Set1(call.c[i]), out);
    }
    StoreUpTo(call.y + k, Fma(LoadUpTo(call.skip + k, n), x, Add(out, Zero())), n);
  }
}

inline void MambaStep(const MambaStepCall& call) {
  constexpr int kWide = 2;
  uint32_t at = 0;
  for (; at + kWide * kLanes <= call.head_dim; at += kWide * kLanes) {
    MambaColumns<kWide>(call, at, kLanes);
  }
  for (; at < call.head_dim; at += kLanes) {
    MambaColumns<1>(call, at, call.head_dim - at < kLanes ? call.head_dim - at : kLanes);
  }
}
