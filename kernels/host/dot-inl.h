// Dot products of float rows (ARITHMETIC.md 2 a): row after row for few tokens, register tiles for many.
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// Rows of a register tile; kTileTokens x kTileRows accumulators, kTileTokens of x and one of w fill the
// registers: 24 + 6 + 1 of 32 with AVX-512, 12 + 3 + 1 of 16 with AVX2 (which makes two passes over the
// lanes).
inline constexpr uint32_t kTileRows = 4;
inline constexpr uint32_t kTileTokens = kNative == 16 ? 6 : 3;

// Tokens [t, t + M) of a call. One sequential stream of weights: two or more streams were slower everywhere
// measured; the next row's beginning overlaps this row's end out of order.
template <class Row, int M, bool kPrefetch>
void DotTokens(const DotCall& call, uint32_t t) {
  constexpr uint32_t kLine = 64 / Row::kBytes;  // values in a cache line
  const uint32_t cols = call.cols;
  const float* x[M];
  for (int m = 0; m < M; ++m) {
    x[m] = call.x[t + m];
  }
  for (uint32_t r = 0; r < call.rows; ++r) {
    const uint8_t* w = call.w[r];
    V sums[M];
    for (int m = 0; m < M; ++m) {
      sums[m] = Zero();
    }
    uint32_t k = 0;
    for (; k + kLine <= cols; k += kLine) {
      if constexpr (kPrefetch) {
        _mm_prefetch(reinterpret_cast<const char*>(w) + uint64_t{k} * Row::kBytes + call.prefetch,
                     _MM_HINT_T0);
      }
      for (uint32_t i = 0; i < kLine; i += 16) {
        const V weights = LoadRow<Row>(w + uint64_t{k + i} * Row::kBytes);
        for (int m = 0; m < M; ++m) {
          sums[m] = Fma(Load(x[m] + k + i), weights, sums[m]);
        }
      }
    }
    for (; k < cols; k += 16) {
      const uint32_t n = cols - k < 16 ? cols - k : 16;
      const V weights = LoadRowN<Row>(w + uint64_t{k} * Row::kBytes, n);
      for (int m = 0; m < M; ++m) {
        sums[m] = Fma(LoadN(x[m] + k, n), weights, sums[m]);
      }
    }
    for (int m = 0; m < M; ++m) {
      call.y[t + m][call.first + r] = Total(sums[m]);
    }
  }
}

template <class Row, bool kPrefetch>
void DotAnyTokens(const DotCall& call) {
  uint32_t t = 0;
  for (; t + 4 <= call.tokens; t += 4) {
    DotTokens<Row, 4, kPrefetch>(call, t);
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

template <class Row>
void Dot(const DotCall& call) {
  // Few rows at a time, so that they are still in the cache for the next four tokens.
  DotCall part = call;
  const uint64_t row_bytes = uint64_t{call.cols} * Row::kBytes;
  const uint32_t step =
      call.tokens <= 4 ? call.rows : static_cast<uint32_t>(1 + (16 << 10) / (row_bytes + 1));
  for (uint32_t r = 0; r < call.rows; r += step) {
    part.w = call.w + r;
    part.rows = call.rows - r < step ? call.rows - r : step;
    part.first = call.first + r;
    if (call.prefetch != 0) {
      DotAnyTokens<Row, true>(part);
    } else {
      DotAnyTokens<Row, false>(part);
    }
  }
}

// Panels of kTileTokens rows: [k / 16][token][16].
inline void Pack(const PackCall& call) {
  const uint32_t steps = (call.cols + 15) / 16;
  const uint32_t padded = (call.tokens + kTileTokens - 1) / kTileTokens * kTileTokens;
  for (uint32_t t = 0; t < padded; ++t) {
    float* out = call.packed + (uint64_t{t / kTileTokens} * steps * kTileTokens + t % kTileTokens) * 16;
    for (uint32_t s = 0; s < steps; ++s, out += kTileTokens * 16) {
      const uint32_t n = call.cols - s * 16 < 16 ? call.cols - s * 16 : 16;
      if (t >= call.tokens) {
        Store(out, Zero());
      } else {
        Store(out, n == 16 ? Load(call.x[t] + s * 16) : LoadN(call.x[t] + s * 16, n));
      }
    }
  }
}

// acc[row][token][16] += over `steps` steps of w[step][row][16] and x[step][token][16].
inline void MultiplyTile(const float* w, const float* x, uint32_t steps, bool first, float* acc) {
  for (int part = 0; part < kParts; ++part) {
    N sums[kTileRows][kTileTokens];
    for (uint32_t r = 0; r < kTileRows; ++r) {
      for (uint32_t t = 0; t < kTileTokens; ++t) {
        sums[r][t] = first ? NZero() : NLoad(acc + (r * kTileTokens + t) * 16 + part * kNative);
      }
    }
    const float* wp = w + part * kNative;
    const float* xp = x + part * kNative;
    for (uint32_t s = 0; s < steps; ++s, wp += kTileRows * 16, xp += kTileTokens * 16) {
      N values[kTileTokens];
      for (uint32_t t = 0; t < kTileTokens; ++t) {
        values[t] = NLoad(xp + t * 16);
      }
      for (uint32_t r = 0; r < kTileRows; ++r) {
        const N weights = NLoad(wp + r * 16);
        for (uint32_t t = 0; t < kTileTokens; ++t) {
          sums[r][t] = NFma(values[t], weights, sums[r][t]);
        }
      }
    }
    for (uint32_t r = 0; r < kTileRows; ++r) {
      for (uint32_t t = 0; t < kTileTokens; ++t) {
        NStore(acc + (r * kTileTokens + t) * 16 + part * kNative, sums[r][t]);
      }
    }
  }
}

// Rows [r0, r0 + rows) of a call as floats: [row / kTileRows][k / 16][row % kTileRows][16]; missing rows of
// the last group are zero.
template <class Row>
void ConvertRows(const GemmCall& call, uint32_t r0, uint32_t rows, uint32_t steps) {
  const uint32_t padded = (rows + kTileRows - 1) / kTileRows * kTileRows;
  for (uint32_t r = 0; r < padded; ++r) {
    float* out = call.scratch + (uint64_t{r / kTileRows} * steps * kTileRows + r % kTileRows) * 16;
    for (uint32_t s = 0; s < steps; ++s, out += kTileRows * 16) {
      const uint32_t n = call.cols - s * 16 < 16 ? call.cols - s * 16 : 16;
      if (r >= rows) {
        Store(out, Zero());
        continue;
      }
      const uint8_t* w = call.w[r0 + r] + uint64_t{s} * 16 * Row::kBytes;
      Store(out, n == 16 ? LoadRow<Row>(w) : LoadRowN<Row>(w, n));
    }
  }
}

// Lane sums of one register tile to their places.
inline void StoreTile(const GemmCall& call, const float* acc, uint32_t t0, uint32_t r0, uint32_t rows) {
  for (uint32_t t = 0; t < kTileTokens && t0 + t < call.tokens; ++t) {
    const float* a = acc + t * 16;
    constexpr uint32_t kNext = kTileTokens * 16;
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
  const uint32_t steps = (call.cols + 15) / 16;
  constexpr uint32_t kChunk = kGemmChunk / 16;  // steps
  float* acc = call.scratch + uint64_t{kGemmRows} * steps * 16;
  for (uint32_t r0 = 0; r0 < call.rows; r0 += kGemmRows) {
    const uint32_t rows = call.rows - r0 < kGemmRows ? call.rows - r0 : kGemmRows;
    const uint32_t groups = (rows + kTileRows - 1) / kTileRows;
    ConvertRows<Row>(call, r0, rows, steps);
    for (uint32_t t0 = 0; t0 < call.tokens; t0 += kTileTokens) {
      const float* x = call.packed + uint64_t{t0} * steps * 16;
      for (uint32_t s = 0; s < steps; s += kChunk) {
        const uint32_t count = steps - s < kChunk ? steps - s : kChunk;
        for (uint32_t g = 0; g < groups; ++g) {
          MultiplyTile(call.scratch + (uint64_t{g} * steps + s) * kTileRows * 16,
                       x + uint64_t{s} * kTileTokens * 16, count, s == 0,
                       acc + g * kTileRows * kTileTokens * 16);
        }
      }
      for (uint32_t g = 0; g < groups; ++g) {
        StoreTile(call, acc + g * kTileRows * kTileTokens * 16, t0, r0 + g * kTileRows, rows - g * kTileRows);
      }
    }
  }
}
