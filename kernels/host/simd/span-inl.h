// One span of attention (ARITHMETIC.md 6): scores, exponentials, weighted sum of values.

// Scores of query i lie at row i of the scratch, indexed by position - start of the span, so that lane =
// position mod kLanes.
inline constexpr uint32_t kScoreRow = kSpanTokens + kLanes;

// Queries from which transposing K rows once for all of them pays.
inline constexpr uint32_t kManyQueries = kNative == 16 ? 12 : 6;

// q . k of all queries and positions.
template <class Row>
void SpanDots(const SpanCall& call, float* const* scores) {
  if (call.queries >= kManyQueries) {
    return ManyDots<Row>(call, scores);
  }
  DotCall dot;
  dot.w = call.k;
  dot.x = call.q;
  dot.y = scores;
  dot.rows = call.count;
  dot.tokens = call.queries;
  dot.cols = call.head_dim;
  dot.first = call.first % kSpanTokens;
  Dot<Row>(dot);
}

// Turns the dots `s` of query i into weights of the values: exponentials, 0 where a position is not visible.
inline void SpanWeights(const SpanCall& call, uint32_t i, float* s) {
  const uint32_t offset = call.first % kSpanTokens;
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
  // Whole registers from here on: positions that are not visible become exp(-inf) = 0.
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
}

// A span of a cache type.
template <class Row>
void SpanOf(const SpanCall& call) {
  float* scores[kSpanQueries];
  for (uint32_t i = 0; i < call.queries; ++i) {
    scores[i] = call.scratch + uint64_t{i} * kScoreRow;
  }
  SpanDots<Row>(call, scores);
  const float* factors[kSpanQueries];
  for (uint32_t i = 0; i < call.queries; ++i) {
    SpanWeights(call, i, scores[i]);
    factors[i] = scores[i] + call.first % kSpanTokens;
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
