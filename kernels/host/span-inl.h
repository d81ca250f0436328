// One span of attention (ARITHMETIC.md 6): scores, exponentials, weighted sum of values.
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the call names.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// The dot and down kernels of a cache type.
template <class Row>
void SpanOf(const SpanCall& call) {
  // Scores of query i lie at row i, indexed by position - start of the span, so that lane = position mod
  // kLanes.
  constexpr uint32_t kRow = kSpanTokens + kLanes;
  const uint32_t offset = call.first % kSpanTokens;
  float* rows[kSpanQueries];
  for (uint32_t i = 0; i < call.queries; ++i) {
    rows[i] = call.scratch + uint64_t{i} * kRow;
  }
  DotCall dot;
  dot.w = call.k;
  dot.x = call.q;
  dot.y = rows;
  dot.rows = call.count;
  dot.tokens = call.queries;
  dot.cols = call.head_dim;
  dot.first = offset;
  Dot<Row>(dot);

  const float* factors[kSpanQueries];
  for (uint32_t i = 0; i < call.queries; ++i) {
    float* s = rows[i];
    const uint32_t low = call.low[i] % kSpanTokens;
    const uint32_t high = call.high[i] % kSpanTokens;
    if (call.k_scales != nullptr) {
      for (uint32_t p = low; p <= high; ++p) {
        s[p] = s[p] * call.k_scales[p - offset];
      }
    }
    for (uint32_t p = low; p <= high; ++p) {
      s[p] = s[p] * call.scale;
    }
    call.m[i] = Largest(s + low, high - low + 1);
    // Whole registers from here on: what is not visible becomes exp(-inf) = 0.
    const uint32_t begin = low / kLanes * kLanes;
    const uint32_t end = high / kLanes * kLanes + kLanes;
    for (uint32_t p = offset < begin ? offset : begin; p < low; ++p) {
      s[p] = -__builtin_inff();
    }
    const uint32_t last = offset + call.count > end ? offset + call.count : end;
    for (uint32_t p = high + 1; p < last; ++p) {
      s[p] = -__builtin_inff();
    }
    call.l[i] = ExpSum(s + begin, call.m[i], end - begin, s + begin);
    for (uint32_t p = offset; p < begin; ++p) {
      s[p] = 0.0f;
    }
    for (uint32_t p = end; p < offset + call.count; ++p) {
      s[p] = 0.0f;
    }
    if (call.v_scales != nullptr) {
      for (uint32_t p = low; p <= high; ++p) {
        s[p] = s[p] * call.v_scales[p - offset];
      }
    }
    factors[i] = s + offset;
  }

  DownCall down;
  down.w = call.v;
  down.c = factors;
  down.y = call.o;
  down.neurons = call.count;
  down.tokens = call.queries;
  down.cols = call.value_dim;
  down.scratch = call.down_scratch;
  Down<Row>(down);
}

inline void Span(const SpanCall& call) {
  switch (call.type) {
    case KvType::kF32:
      return SpanOf<F32Row>(call);
    case KvType::kF16:
      return SpanOf<F16Row>(call);
    case KvType::kQ8:
      return SpanOf<I8Row>(call);
  }
}
