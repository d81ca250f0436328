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
  const V decay = Set1(call.decay);
  V delta[W];
  for (V& sum : delta) {
    sum = Zero();
  }
  for (uint32_t i = 0; i < call.key_dim; ++i) {
    const float* cells = call.from + uint64_t{i} * call.value_dim + at;
    const V key = Set1(call.k[i]);
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
