// Dot products of float rows (ARITHMETIC.md 2 a): row after row for few tokens, register tiles for many.
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.

#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// A register tile of dots: kTileTokens x kTileRows sums of one register, kTileTokens of x and one of w fill
// the registers: 24 + 6 + 1 of 32 with AVX-512, 12 + 3 + 1 of 16 with AVX2. The lanes of a dot are computed
// in passes, one register of them at a time: two passes with AVX-512, four with AVX2.
inline constexpr uint32_t kTileRows = 4;
inline constexpr uint32_t kTileTokens = kNative == 16 ? 6 : 3;
inline constexpr uint32_t kMaxTokens = kNative == 16 ? 4 : 2;  // tokens of one pass over rows, see DotTokens

// The address to prefetch while row r is read: the bytes ahead, or a row of the list ahead.
inline const uint8_t* RowAhead(const uint8_t* const* w, uint32_t r, const RowPrefetch& prefetch) {
  if (prefetch.rows == 0) {
    return w[r] + prefetch.bytes;
  }
  return w[r + prefetch.rows < prefetch.listed ? r + prefetch.rows : prefetch.listed - 1];
}

// kLines: prefetches into the second-level cache. A core has few first-level lines in flight (16 on Granite
// Rapids, 24 on Zen 4), which at memory's latency is half its bandwidth.
enum class Prefetch { kNone, kLines };
inline Prefetch KindOf(const RowPrefetch& prefetch) {
  return prefetch.rows != 0 || prefetch.bytes != 0 ? Prefetch::kLines : Prefetch::kNone;
}

template <Prefetch kPrefetch>
inline void PrefetchLine(const uint8_t* p) {
  if constexpr (kPrefetch == Prefetch::kLines) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
  }
}

// Multiplies columns [k, k + kLanes) of one row with M tokens, and prefetches the same columns of `ahead`.
template <class Row, int M, Prefetch kPrefetch>
inline void DotStep(const uint8_t* w, const float* const* x, uint32_t k, const uint8_t* ahead, V* sums) {
  const uint64_t place = uint64_t{k} * Row::kBytes;
  for (uint32_t line = 0; line < kLanes * Row::kBytes; line += 64) {
    PrefetchLine<kPrefetch>(ahead + place + line);
  }
  const V weights = LoadRow<Row>(w + place);
  for (int m = 0; m < M; ++m) {
    sums[m] = Fma(Load(x[m] + k), weights, sums[m]);
  }
}

// Computes tokens [t, t + M) of a call. One sequential stream of weights: two or more streams were slower
// everywhere measured; the next row's beginning overlaps this row's end out of order.
template <class Row, int M, Prefetch kPrefetch>
void DotTokens(const DotCall& call, uint32_t t) {
  const uint32_t cols = call.cols;
  const float* x[M];
  for (int m = 0; m < M; ++m) {
    x[m] = call.x[t + m];
  }
  for (uint32_t r = 0; r < call.rows; ++r) {
    const uint8_t* w = call.w[r];
    const uint8_t* ahead = RowAhead(call.w, r, call.prefetch);
    V sums[M];
    for (int m = 0; m < M; ++m) {
      sums[m] = Zero();
    }
    uint32_t k = 0;
    for (; k + 2 * kLanes <= cols; k += 2 * kLanes) {
      DotStep<Row, M, kPrefetch>(w, x, k, ahead, sums);
      DotStep<Row, M, kPrefetch>(w, x, k + kLanes, ahead, sums);
    }
    if (k + kLanes <= cols) {
      DotStep<Row, M, kPrefetch>(w, x, k, ahead, sums);
      k += kLanes;
    }
    if (k < cols) {
      const uint32_t n = cols - k;
      const V weights = LoadRowN<Row>(w + uint64_t{k} * Row::kBytes, n);
      for (int m = 0; m < M; ++m) {
        sums[m] = Fma(LoadN(x[m] + k, n), weights, sums[m]);
      }
    }
    if constexpr (M == 4) {
      alignas(16) float totals[M];
      _mm_store_ps(totals, Total4(sums[0], sums[1], sums[2], sums[3]));
      for (int m = 0; m < M; ++m) {
        call.y[t + m][call.first + r] = totals[m];
      }
    } else {
      for (int m = 0; m < M; ++m) {
        call.y[t + m][call.first + r] = Total(sums[m]);
      }
    }
  }
}

template <class Row, Prefetch kPrefetch>
void DotAnyTokens(const DotCall& call) {
  uint32_t t = 0;
  for (; t + kMaxTokens <= call.tokens; t += kMaxTokens) {
    DotTokens<Row, kMaxTokens, kPrefetch>(call, t);
  }
  switch (call.tokens - t) {
    case 3:
      return DotTokens<Row, 3, kPrefetch>(call, t);
    case 2:
      return DotTokens<Row, 2, kPrefetch>(call, t);
    case 1:
      return DotTokens<Row, 1, kPrefetch>(call, t);
    default:
      return;
  }
}

// Rows read at once where the call requests it. For scattered rows, memory serves a few streams better than
// one that begins anew with every row, and weighted sums are loaded and stored less often.
inline constexpr int kRowsAtOnce = kNative == 16 ? 4 : 2;

// Multiplies rows with one token, from row r on, kRows at a time; returns the first row left.
template <class Row, int kRows, Prefetch kPrefetch>
uint32_t DotRowsAtOnce(const DotCall& call, uint32_t r) {
  const float* x = call.x[0];
  for (; r + kRows <= call.rows; r += kRows) {
    const uint8_t* ahead[kRows];
    V sums[kRows];
    for (uint32_t i = 0; i < kRows; ++i) {
      ahead[i] = RowAhead(call.w, r + i, call.prefetch);
      sums[i] = Zero();
    }
    uint32_t k = 0;
    for (; k + kLanes <= call.cols; k += kLanes) {
      for (uint32_t i = 0; i < kRows; ++i) {
        DotStep<Row, 1, kPrefetch>(call.w[r + i], &x, k, ahead[i], &sums[i]);
      }
    }
    const uint32_t n = call.cols - k;
    for (uint32_t i = 0; i < kRows; ++i) {
      if (n > 0) {
        const V weights = LoadRowN<Row>(call.w[r + i] + uint64_t{k} * Row::kBytes, n);
        sums[i] = Fma(LoadN(x + k, n), weights, sums[i]);
      }
      call.y[0][call.first + r + i] = Total(sums[i]);
    }
  }
  return r;
}

template <class Row, Prefetch kPrefetch>
void DotAllAtOnce(const DotCall& call) {
  const uint32_t r = DotRowsAtOnce<Row, kRowsAtOnce, kPrefetch>(call, 0);
  DotRowsAtOnce<Row, 1, kPrefetch>(call, r);
}

template <class Row>
void Dot(const DotCall& call) {
  if (call.prefetch.at_once && call.tokens == 1) {
    return KindOf(call.prefetch) == Prefetch::kNone ? DotAllAtOnce<Row, Prefetch::kNone>(call)
                                                    : DotAllAtOnce<Row, Prefetch::kLines>(call);
  }
  // Few rows at a time, so that they are still in the cache for the next tokens.
  DotCall part = call;
  const uint64_t row_bytes = uint64_t{call.cols} * Row::kBytes;
  const uint32_t step =
      call.tokens <= kMaxTokens ? call.rows : static_cast<uint32_t>(1 + (16 << 10) / (row_bytes + 1));
  for (uint32_t r = 0; r < call.rows; r += step) {
    part.w = call.w + r;
    part.rows = call.rows - r < step ? call.rows - r : step;
    part.first = call.first + r;
    part.prefetch.listed = call.prefetch.listed - r;
    KindOf(call.prefetch) == Prefetch::kNone ? DotAnyTokens<Row, Prefetch::kNone>(part)
                                             : DotAnyTokens<Row, Prefetch::kLines>(part);
  }
}

// The offset of column group `step` (kLanes columns) of one row in a panel of `rows` rows: [chunk][pass][step
// in the chunk][row][kNative]. A pass over a chunk is one sequential stream.
inline constexpr uint32_t kChunkSteps = kGemmChunk / kLanes;
struct PanelPlace {
  uint64_t first = 0;  // offset of pass 0, in floats
  uint64_t pass = 0;   // floats from pass to pass
};
inline PanelPlace PlaceInPanel(uint32_t step, uint32_t steps, uint32_t row, uint32_t rows) {
  const uint32_t chunk = step / kChunkSteps;
  const uint32_t left = steps - chunk * kChunkSteps;
  PanelPlace place;
  place.pass = uint64_t{left < kChunkSteps ? left : kChunkSteps} * rows * kNative;
  place.first = uint64_t{chunk} * kGemmChunk * rows + (uint64_t{step % kChunkSteps} * rows + row) * kNative;
  return place;
}

inline void StoreInPanel(V values, const PanelPlace& place, float* panel) {
  for (int i = 0; i < kParts; ++i) {
    NStore(panel + place.first + i * place.pass, values.p[i]);
  }
}

inline void Pack(const PackCall& call) {
  const uint32_t steps = (call.cols + kLanes - 1) / kLanes;
  const uint32_t padded = (call.tokens + kTileTokens - 1) / kTileTokens * kTileTokens;
  for (uint32_t t = 0; t < padded; ++t) {
    float* panel = call.packed + uint64_t{t / kTileTokens} * steps * kTileTokens * kLanes;
    for (uint32_t s = 0; s < steps; ++s) {
      const uint32_t n = call.cols - s * kLanes < kLanes ? call.cols - s * kLanes : kLanes;
      const V values = t >= call.tokens ? Zero() : LoadUpTo(call.x[t] + s * kLanes, n);
      StoreInPanel(values, PlaceInPanel(s, steps, t % kTileTokens, kTileTokens), panel);
    }
  }
}

// acc[row][token][kLanes] += one chunk of `steps` steps of the two panels.
inline void MultiplyTile(const float* w, const float* x, uint32_t steps, bool first, float* acc) {
  for (int pass = 0; pass < kParts; ++pass) {
    float* lanes = acc + pass * kNative;
    N sums[kTileRows][kTileTokens];
    for (uint32_t r = 0; r < kTileRows; ++r) {
      for (uint32_t t = 0; t < kTileTokens; ++t) {
        sums[r][t] = first ? NZero() : NLoad(lanes + (r * kTileTokens + t) * kLanes);
      }
    }
    for (uint32_t s = 0; s < steps; ++s, w += kTileRows * kNative, x += kTileTokens * kNative) {
      N values[kTileTokens];
      for (uint32_t t = 0; t < kTileTokens; ++t) {
        values[t] = NLoad(x + t * kNative);
      }
      for (uint32_t r = 0; r < kTileRows; ++r) {
        const N weights = NLoad(w + r * kNative);
        for (uint32_t t = 0; t < kTileTokens; ++t) {
          sums[r][t] = NFma(values[t], weights, sums[r][t]);
        }
      }
    }
    for (uint32_t r = 0; r < kTileRows; ++r) {
      for (uint32_t t = 0; t < kTileTokens; ++t) {
        NStore(lanes + (r * kTileTokens + t) * kLanes, sums[r][t]);
      }
    }
  }
}

// Rows [r0, r0 + rows) of a call as panels of kTileRows floats; missing rows of the last panel are zero.
template <class Row>
void ConvertRows(const GemmCall& call, uint32_t r0, uint32_t rows, uint32_t steps) {
  const uint32_t padded = (rows + kTileRows - 1) / kTileRows * kTileRows;
  for (uint32_t r = 0; r < padded; ++r) {
    float* panel = call.scratch + uint64_t{r / kTileRows} * steps * kTileRows * kLanes;
    for (uint32_t s = 0; s < steps; ++s) {
      const uint32_t n = call.cols - s * kLanes < kLanes ? call.cols - s * kLanes : kLanes;
      V values = Zero();
      if (r < rows) {
        const uint8_t* w = call.w[r0 + r] + uint64_t{s} * kLanes * Row::kBytes;
        values = n == kLanes ? LoadRow<Row>(w) : LoadRowN<Row>(w, n);
      }
      StoreInPanel(values, PlaceInPanel(s, steps, r % kTileRows, kTileRows), panel);
    }
  }
}

// Stores the lane sums of one register tile.
inline void StoreTile(const GemmCall& call, const float* acc, uint32_t t0, uint32_t r0, uint32_t rows) {
  for (uint32_t t = 0; t < kTileTokens && t0 + t < call.tokens; ++t) {
    const float* a = acc + t * kLanes;
    constexpr uint32_t kNext = kTileTokens * kLanes;
    alignas(16) float totals[kTileRows];
    _mm_store_ps(totals, Total4(Load(a), Load(a + kNext), Load(a + 2 * kNext), Load(a + 3 * kNext)));
    float* y = call.y[t0 + t] + call.first + r0;
    for (uint32_t r = 0; r < kTileRows && r < rows; ++r) {
      y[r] = totals[r];
    }
  }
}

template <class Row>
void Gemm(const GemmCall& call) {
  const uint32_t steps = (call.cols + kLanes - 1) / kLanes;
  constexpr uint32_t kTile = kTileRows * kTileTokens * kLanes;
  float* acc = call.scratch + uint64_t{kGemmRows} * steps * kLanes;
  for (uint32_t r0 = 0; r0 < call.rows; r0 += kGemmRows) {
    const uint32_t rows = call.rows - r0 < kGemmRows ? call.rows - r0 : kGemmRows;
    const uint32_t groups = (rows + kTileRows - 1) / kTileRows;
    ConvertRows<Row>(call, r0, rows, steps);
    for (uint32_t t0 = 0; t0 < call.tokens; t0 += kTileTokens) {
      const float* x = call.packed + uint64_t{t0} * steps * kLanes;
      for (uint32_t s = 0; s < steps; s += kChunkSteps) {
        const uint32_t count = steps - s < kChunkSteps ? steps - s : kChunkSteps;
        for (uint32_t g = 0; g < groups; ++g) {
          MultiplyTile(call.scratch + (uint64_t{g} * steps + s) * kTileRows * kLanes,
                       x + uint64_t{s} * kTileTokens * kLanes, count, s == 0, acc + g * kTile);
        }
      }
      for (uint32_t g = 0; g < groups; ++g) {
        StoreTile(call, acc + g * kTile, t0, r0 + g * kTileRows, rows - g * kTileRows);
      }
    }
  }
}
