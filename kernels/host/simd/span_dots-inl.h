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
