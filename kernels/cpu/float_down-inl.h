// Weighted sums of float rows (ARITHMETIC.md 3 and 6): y = sum of c[j] * w[j] with the columns in the lanes,
// j ascending. Row after row for few tokens, register tiles for many.
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.

#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// Adds one row to M sums and prefetches `ahead`. The first row starts them, the last one closes them (+0).
template <class Row, int M, bool kFirst, bool kLast, Prefetch kPrefetch>
void AddRow(const uint8_t* w, const float* c, uint32_t cols, const uint8_t* ahead, float* const* sums) {
  V factors[M];
  for (int m = 0; m < M; ++m) {
    factors[m] = Set1(c[m]);
  }
  uint32_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) {
    const uint64_t place = uint64_t{k} * Row::kBytes;
    for (uint32_t line = 0; line < kLanes * Row::kBytes; line += 64) {
      PrefetchLine<kPrefetch>(ahead + place + line);
    }
    const V weights = LoadRow<Row>(w + place);
    for (int m = 0; m < M; ++m) {
      const V sum = Fma(factors[m], weights, kFirst ? Zero() : Load(sums[m] + k));
      Store(sums[m] + k, kLast ? Add(sum, Zero()) : sum);
    }
  }
  if (k < cols) {
    const uint32_t n = cols - k;
    const V weights = LoadRowN<Row>(w + uint64_t{k} * Row::kBytes, n);
    for (int m = 0; m < M; ++m) {
      const V sum = Fma(factors[m], weights, kFirst ? Zero() : LoadN(sums[m] + k, n));
      StoreN(sums[m] + k, kLast ? Add(sum, Zero()) : sum, n);
    }
  }
}

// Adds kRows rows, in order, and prefetches `ahead` of each. c[row][token].
template <class Row, int M, int kRows, Prefetch kPrefetch>
void AddSomeRows(const uint8_t* const* w, const float (*c)[M], bool first, bool last, uint32_t cols,
                 const uint8_t* const* ahead, float* const* sums) {
  V factors[kRows][M];
  for (int r = 0; r < kRows; ++r) {
    for (int m = 0; m < M; ++m) {
      factors[r][m] = Set1(c[r][m]);
    }
  }
  const auto add = [&](int m, const V* weights, V sum) {
    for (int r = 0; r < kRows; ++r) {
      sum = Fma(factors[r][m], weights[r], sum);
    }
    return last ? Add(sum, Zero()) : sum;
  };
  uint32_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) {
    const uint64_t place = uint64_t{k} * Row::kBytes;
    V weights[kRows];
    for (int r = 0; r < kRows; ++r) {
      for (uint32_t line = 0; line < kLanes * Row::kBytes; line += 64) {
        PrefetchLine<kPrefetch>(ahead[r] + place + line);
      }
      weights[r] = LoadRow<Row>(w[r] + place);
    }
    for (int m = 0; m < M; ++m) {
      Store(sums[m] + k, add(m, weights, first ? Zero() : Load(sums[m] + k)));
    }
  }
  if (k < cols) {
    const uint32_t n = cols - k;
    V weights[kRows];
    for (int r = 0; r < kRows; ++r) {
      weights[r] = LoadRowN<Row>(w[r] + uint64_t{k} * Row::kBytes, n);
    }
    for (int m = 0; m < M; ++m) {
      StoreN(sums[m] + k, add(m, weights, first ? Zero() : LoadN(sums[m] + k, n)), n);
    }
  }
}

// Adds rows, kRows at a time; returns the first row left.
template <class Row, int M, int kRows, Prefetch kPrefetch>
uint32_t AddRowsAtOnce(const DownCall& call, uint32_t t, float* const* sums) {
  const uint64_t column = uint64_t{call.column} * Row::kBytes;
  uint32_t j = 0;
  for (; j + kRows <= call.neurons; j += kRows) {
    const uint8_t* w[kRows];
    const uint8_t* ahead[kRows];
    float c[kRows][M];
    for (uint32_t r = 0; r < kRows; ++r) {
      w[r] = call.w[j + r] + column;
      ahead[r] = RowAhead(call.w, j + r, call.prefetch) + column;
      for (int m = 0; m < M; ++m) {
        c[r][m] = call.c[t + m][j + r];
      }
    }
    AddSomeRows<Row, M, kRows, kPrefetch>(w, c, j == 0, j + kRows == call.neurons, call.cols, ahead, sums);
  }
  return j;
}

template <class Row, int M, Prefetch kPrefetch>
void DownTokens(const DownCall& call, uint32_t t) {
  // With `add` the sums are made in scratch first.
  float* sums[M];
  for (int m = 0; m < M; ++m) {
    sums[m] = call.add ? call.scratch + uint64_t{static_cast<uint32_t>(m)} * call.cols : call.y[t + m];
  }
  uint32_t j = 0;
  if (call.prefetch.at_once) {
    j = AddRowsAtOnce<Row, M, kRowsAtOnce, kPrefetch>(call, t, sums);
  }
  for (; j < call.neurons; ++j) {
    const uint64_t column = uint64_t{call.column} * Row::kBytes;
    const uint8_t* w = call.w[j] + column;
    const uint8_t* ahead = RowAhead(call.w, j, call.prefetch) + column;
    float c[M];
    for (int m = 0; m < M; ++m) {
      c[m] = call.c[t + m][j];
    }
    const bool last = j + 1 == call.neurons;
    if (j == 0) {
      last ? AddRow<Row, M, true, true, kPrefetch>(w, c, call.cols, ahead, sums)
           : AddRow<Row, M, true, false, kPrefetch>(w, c, call.cols, ahead, sums);
    } else {
      last ? AddRow<Row, M, false, true, kPrefetch>(w, c, call.cols, ahead, sums)
           : AddRow<Row, M, false, false, kPrefetch>(w, c, call.cols, ahead, sums);
    }
  }
  for (int m = 0; call.add && m < M; ++m) {
    Accumulate(sums[m], call.cols, call.y[t + m]);
  }
}

// A tile of kDownTokens x kDownParts registers.
inline constexpr uint32_t kDownTokens = 6;
inline constexpr uint32_t kDownParts = kNative == 16 ? 4 : 2;
inline constexpr uint32_t kDownCols = kDownParts * kNative;
inline constexpr uint32_t kDownScratch = 64 * 256;  // floats of converted rows

// Loads register p of row j of a tile: from rows converted before, [neurons][stride] floats, or from rows as
// they are stored.
struct ConvertedRows {
  const float* w;
  uint32_t stride;
  N Load(uint32_t j, uint32_t p) const { return NLoad(w + uint64_t{j} * stride + p * kNative); }
};
template <class Row>
struct StoredRows {
  const uint8_t* const* w;
  uint64_t offset;  // bytes
  N Load(uint32_t j, uint32_t p) const { return Row::NativeLoad(w[j] + offset + p * kNative * Row::kBytes); }
};

// Computes sums[token][kDownCols] of G tokens over all neurons.
template <int G, class Rows>
void DownTile(const Rows& rows, const float* const* c, uint32_t neurons, float* sums) {
  N s[G][kDownParts];
  for (int g = 0; g < G; ++g) {
    for (uint32_t p = 0; p < kDownParts; ++p) {
      s[g][p] = NZero();
    }
  }
  for (uint32_t j = 0; j < neurons; ++j) {
    N weights[kDownParts];
    for (uint32_t p = 0; p < kDownParts; ++p) {
      weights[p] = rows.Load(j, p);
    }
    for (int g = 0; g < G; ++g) {
      const N factor = NSet1(c[g][j]);
      for (uint32_t p = 0; p < kDownParts; ++p) {
        s[g][p] = NFma(factor, weights[p], s[g][p]);
      }
    }
  }
  for (int g = 0; g < G; ++g) {
    for (uint32_t p = 0; p < kDownParts; ++p) {
      NStore(sums + uint64_t{static_cast<uint32_t>(g)} * kDownCols + p * kNative, NAdd(s[g][p], NZero()));
    }
  }
}

template <class Rows>
void DownTileOf(uint32_t tokens, const Rows& rows, const float* const* c, uint32_t neurons, float* sums) {
  switch (tokens) {
    case 1:
      return DownTile<1>(rows, c, neurons, sums);
    case 2:
      return DownTile<2>(rows, c, neurons, sums);
    case 3:
      return DownTile<3>(rows, c, neurons, sums);
    case 4:
      return DownTile<4>(rows, c, neurons, sums);
    case 5:
      return DownTile<5>(rows, c, neurons, sums);
    default:
      return DownTile<6>(rows, c, neurons, sums);
  }
}

// Writes the first n columns of a tile of tokens [t, t + tokens) to column k of y.
inline void WriteDownTile(const DownCall& call, const float* sums, uint32_t t, uint32_t tokens, uint32_t k,
                          uint32_t n) {
  for (uint32_t i = 0; i < tokens; ++i) {
    float* y = call.y[t + i] + k;
    if (call.add) {
      Accumulate(sums + i * kDownCols, n, y);
    } else {
      __builtin_memcpy(y, sums + i * kDownCols, n * sizeof(float));
    }
  }
}

// Computes columns [k0, k0 + cols) for all tokens; the rows are converted once.
template <class Row>
void DownColumns(const DownCall& call, uint32_t k0, uint32_t cols) {
  // Whole tiles and whole loads.
  const uint32_t stride = (cols + 63) / 64 * 64;
  for (uint32_t j = 0; j < call.neurons; ++j) {
    const uint8_t* w = call.w[j] + uint64_t{call.column + k0} * Row::kBytes;
    float* out = call.scratch + uint64_t{j} * stride;
    for (uint32_t k = 0; k < stride; k += kLanes) {
      const uint32_t left = k < cols ? cols - k : 0;
      Store(out + k, left >= kLanes ? LoadRow<Row>(w + k * Row::kBytes)
                     : left > 0     ? LoadRowN<Row>(w + k * Row::kBytes, left)
                                    : Zero());
    }
  }
  alignas(64) float sums[kDownTokens * kDownCols];
  for (uint32_t t = 0; t < call.tokens; t += kDownTokens) {
    const uint32_t tokens = call.tokens - t < kDownTokens ? call.tokens - t : kDownTokens;
    for (uint32_t k = 0; k < cols; k += kDownCols) {
      DownTileOf(tokens, ConvertedRows{call.scratch + k, stride}, call.c + t, call.neurons, sums);
      WriteDownTile(call, sums, t, tokens, k0 + k, cols - k < kDownCols ? cols - k : kDownCols);
    }
  }
}

// Sums attention's values for the queries of few heads: rows that lie together, read by one tile of tokens
// only.
template <class Row>
void DownStored(const DownCall& call) {
  alignas(64) float sums[kDownTokens * kDownCols];
  uint32_t k = 0;
  for (; k + kDownCols <= call.cols; k += kDownCols) {
    const StoredRows<Row> rows{call.w, uint64_t{call.column + k} * Row::kBytes};
    DownTileOf(call.tokens, rows, call.c, call.neurons, sums);
    WriteDownTile(call, sums, 0, call.tokens, k, kDownCols);
  }
  if (k < call.cols) {
    DownColumns<Row>(call, k, call.cols - k);
  }
}

// One or two tokens: whole rows, one after the other. (Rows cut into columns, so that the sums stay in the
// first-level cache, halve the speed in DRAM.)
template <class Row, Prefetch kPrefetch>
void DownFew(const DownCall& call) {
  call.tokens == 2 ? DownTokens<Row, 2, kPrefetch>(call, 0) : DownTokens<Row, 1, kPrefetch>(call, 0);
}

template <class Row>
void Down(const DownCall& call) {
  if (call.neurons > 64 && call.tokens <= kDownTokens) {
    return DownStored<Row>(call);
  }
  if (call.tokens <= 2) {
    return KindOf(call.prefetch) == Prefetch::kNone ? DownFew<Row, Prefetch::kNone>(call)
                                                    : DownFew<Row, Prefetch::kLines>(call);
  }
  // 512 columns of 32 neurons, 256 of 64, 64 of 256: the converted rows stay in the second-level cache.
  const uint32_t chunk = kDownScratch / call.neurons / 64 * 64;
  for (uint32_t k = 0; k < call.cols; k += chunk) {
    DownColumns<Row>(call, k, call.cols - k < chunk ? call.cols - k : chunk);
  }
}
