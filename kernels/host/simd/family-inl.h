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
