// q . k of many queries with the positions of a span (ARITHMETIC.md 2 a, 6): positions lie in the lanes of a
// register, so that the 32 lanes of a dot are 32 registers of as many dots as it has lanes, and the tree over
// them needs no shuffles. K rows are converted and transposed once for all queries.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the call names.

#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// Queries of one pass: six registers of each are live when the tree reaches its first leaf, which fills the
// registers.
inline constexpr int kDotQueries = kNative == 16 ? 4 : 2;

// One register of dots for each query of a pass.
struct QueryDots {
  N of[kDotQueries];
};

// Lane kLane of the dots: terms k = kLane, kLane + 32 and so on, of kSteps * 32 or (kSteps 0) `dim` in all.
// kt: [dim][kNative]. (The first product is not added to +0: only a zero's sign differs, which the closing
// takes away.)
template <uint32_t kSteps, uint32_t kLane>
SLUICE_INLINE QueryDots DotLane(const float* kt, const float* const* q, uint32_t dim) {
  QueryDots out;
  if (kSteps == 0 && kLane >= dim) {
    SLUICE_UNROLL
    for (int i = 0; i < kDotQueries; ++i) {
      out.of[i] = NZero();
    }
    return out;
  }
  const N first = NLoad(kt + kLane * kNative);
  SLUICE_UNROLL
  for (int i = 0; i < kDotQueries; ++i) {
    out.of[i] = NMul(NSet1(q[i][kLane]), first);
  }
  const auto add = [&](uint32_t k) {
    const N row = NLoad(kt + uint64_t{k} * kNative);
    SLUICE_UNROLL
    for (int i = 0; i < kDotQueries; ++i) {
      out.of[i] = NFma(NSet1(q[i][k]), row, out.of[i]);
    }
  };
  if constexpr (kSteps > 0) {
    SLUICE_UNROLL
    for (uint32_t step = 1; step < kSteps; ++step) {
      add(kLane + step * kLanes);
    }
  } else {
    for (uint32_t k = kLane + kLanes; k < dim; k += kLanes) {
      add(k);
    }
  }
  return out;
}

// The part of the tree over lanes kLane, kLane + kApart, kLane + 2 * kApart and so on.
template <uint32_t kSteps, uint32_t kApart, uint32_t kLane>
SLUICE_INLINE QueryDots DotTree(const float* kt, const float* const* q, uint32_t dim) {
  if constexpr (kApart == kLanes) {
    return DotLane<kSteps, kLane>(kt, q, dim);
  } else {
    const QueryDots a = DotTree<kSteps, 2 * kApart, kLane>(kt, q, dim);
    const QueryDots b = DotTree<kSteps, 2 * kApart, kLane + kApart>(kt, q, dim);
    QueryDots out;
    SLUICE_UNROLL
    for (int i = 0; i < kDotQueries; ++i) {
      out.of[i] = NAdd(a.of[i], b.of[i]);
    }
    return out;
  }
}

// Multiplies kNative positions with queries [begin, end), kDotQueries at a time; the last pass repeats
// queries to fill up.
template <uint32_t kSteps>
void DotPositions(const float* kt, const SpanCall& call, uint32_t begin, uint32_t end, uint32_t place,
                  float* const* scores) {
  for (uint32_t i = begin; i < end; i += kDotQueries) {
    const float* q[kDotQueries];
    float* y[kDotQueries];
    for (uint32_t j = 0; j < kDotQueries; ++j) {
      const uint32_t query = i + j < end ? i + j : end - 1;
      q[j] = call.q[query];
      y[j] = scores[query] + place;
    }
    const QueryDots dots = DotTree<kSteps, 1, 0>(kt, q, call.head_dim);
    for (int j = 0; j < kDotQueries; ++j) {
      NStore(y[j], NAdd(dots.of[j], NZero()));
    }
  }
}

// Converts kNative rows to floats: out[column][row].
template <class Row>
void TransposeRows(const uint8_t* const* rows, uint32_t cols, float* out) {
  for (uint32_t k = 0; k < cols; k += kNative) {
    const uint32_t n = cols - k < kNative ? cols - k : kNative;
    N values[kNative];
    for (int r = 0; r < kNative; ++r) {
      const uint8_t* place = rows[r] + uint64_t{k} * Row::kBytes;
      alignas(64) uint8_t bytes[kNative * 4] = {};
      if (n < kNative) {
        __builtin_memcpy(bytes, place, n * Row::kBytes);
        place = bytes;
      }
      values[r] = Row::NativeLoad(place);
    }
    N columns[kNative];
    NTranspose(values, columns);
    for (uint32_t c = 0; c < n; ++c) {
      NStore(out + uint64_t{k + c} * kNative, columns[c]);
    }
  }
}

// Computes scores[query][position in the span] of all positions that the query sees, and of some others, up
// to kNative - 1 after the call's last one.
template <class Row>
void ManyDots(const SpanCall& call, float* const* scores) {
  const uint32_t offset = call.first % kSpanTokens;
  uint32_t begin = 0;  // queries that see the positions; later ones begin and end later
  uint32_t end = 0;
  for (uint32_t p = 0; p < call.count; p += kNative) {
    const uint8_t* rows[kNative];
    for (uint32_t r = 0; r < kNative; ++r) {
      rows[r] = call.k[p + r < call.count ? p + r : call.count - 1];
    }
    while (begin < call.queries && call.high[begin] < call.first + p) {
      ++begin;
    }
    while (end < call.queries && call.low[end] < call.first + p + kNative) {
      ++end;
    }
    TransposeRows<Row>(rows, call.head_dim, call.gemm_scratch);
    const auto dots = call.head_dim == 4 * kLanes   ? DotPositions<4>
                      : call.head_dim == 2 * kLanes ? DotPositions<2>
                                                    : DotPositions<0>;
    dots(call.gemm_scratch, call, begin, end, offset + p, scores);
  }
}

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

// Scores of an indexer (ARITHMETIC.md 6): the dots of a span, scaled, by head or as weighted sums of their
// positive parts, heads ascending.

template <class Row>
void IndexScoresOf(const IndexScoresCall& call) {
  const SpanCall& keys = call.keys;
  float* dots[kSpanQueries];
  for (uint32_t i = 0; i < keys.queries; ++i) {
    dots[i] = keys.scratch + uint64_t{i} * kScoreRow;
  }
  SpanDots<Row>(keys, dots);
  const N scale = NSet1(keys.scale);
  for (uint32_t p = 0; p < keys.count; p += kNative) {
    const auto score = [&](uint32_t query) {
      const N dot = NLoad(dots[query] + p);
      return NMul(keys.k_scales == nullptr ? dot : NMul(dot, NLoad(keys.k_scales + p)), scale);
    };
    if (call.weights == nullptr) {
      for (uint32_t i = 0; i < keys.queries; ++i) {
        NStore(call.scores[i] + p, score(i));
      }
      continue;
    }
    for (uint32_t row = 0; row < call.rows; ++row) {
      N sum = call.first_heads ? NZero() : NLoad(call.scores[row] + p);
      for (uint32_t h = 0; h < call.heads; ++h) {
        // The second operand is taken where one is NaN.
        sum = NFma(NSet1(call.weights[row][h]), NMax(NZero(), score(row * call.heads + h)), sum);
      }
      NStore(call.scores[row] + p, sum);
    }
  }
}

inline void IndexScores(const IndexScoresCall& call) {
  switch (call.keys.type) {
    case KvType::kF32:
      return IndexScoresOf<F32Row>(call);
    case KvType::kF16:
      return IndexScoresOf<F16Row>(call);
    case KvType::kQ8:
      return IndexScoresOf<I8Row>(call);
  }
}
