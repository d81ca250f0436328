// Small kernels over one row that only some families need (ARITHMETIC.md 4 and 6).
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the arguments name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

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
