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
inline N NClampedUp(N u, N limit) { return NAdd(NSet1(1.0f), NMin(limit, NMax(NSub(NZero(), limit), u))); }

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
  }
}

inline void UpFactor(const FactorCall& call) {
  if (call.activation.kind == Activation::kClampedSwiglu) {
    return MapFactors(call, ClampedUpOf{NSet1(call.activation.limit)});
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
