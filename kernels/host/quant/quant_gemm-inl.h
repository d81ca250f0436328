// Dot products of quantized rows with many tokens (ARITHMETIC.md 2 b): as many rows as a register has lanes
// are unpacked once, four codes of each row in its lane; every token then costs one multiplication for all of
// them, and no folding. Lane g mod 8 of a dot is one lane of register g mod 8 of its rows, so the sums are
// those of QuantDot, to the bit.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

inline constexpr uint32_t kGemmQuantRows = kNative;

// Rows as the passes read them, in the call's scratch memory.
struct UnpackedRows {
  int32_t* codes = nullptr;  // [four codes][row]
  float* scales = nullptr;   // [group][row]
  float* zeros = nullptr;
};

inline void Transpose8(const __m256i* rows, __m256i* out) {
  __m256i pairs[8];
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    pairs[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
  __m256i quads[8];
  for (int i = 0; i < 2; ++i) {
    quads[4 * i] = _mm256_unpacklo_epi64(pairs[4 * i], pairs[4 * i + 2]);
    quads[4 * i + 1] = _mm256_unpackhi_epi64(pairs[4 * i], pairs[4 * i + 2]);
    quads[4 * i + 2] = _mm256_unpacklo_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
    quads[4 * i + 3] = _mm256_unpackhi_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20);
    out[i + 4] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31);
  }
}

// All blocks of eight rows, which are rows [first, first + 8) of the unpacked ones. The blocks are transposed
// as they are stored: field f of word 0 of each row, in the order of EvenOdd(), is four codes of unit f, and
// so on.
template <QuantKind kKind>
void UnpackCodes(const RowShape& shape, const uint8_t* const* w, uint32_t first, int32_t* out) {
  constexpr uint32_t kFields = kByteFields<kKind>;
  // Of word i: the unit, less the field's, and the four of its codes.
  constexpr uint32_t kUnitOf[8] = {0, 0, kFields, kFields, 0, 0, kFields, kFields};
  constexpr uint32_t kQuadOf[8] = {0, 1, 0, 1, 2, 3, 2, 3};
  for (uint32_t b = 0; b * 32 * kFields < shape.cols; ++b) {
    __m256i bytes[8];
    for (uint32_t r = 0; r < 8; ++r) {
      bytes[r] = EvenOdd(LoadBlock(w[r] + uint64_t{b} * 32));
    }
    __m256i words[8];
    Transpose8(bytes, words);
    __m256i thirds[8];
    if constexpr (kKind == QuantKind::kQ3) {
      for (uint32_t r = 0; r < 8; ++r) {
        bytes[r] = ThirdBits(LoadBlock(w[r] + shape.high_plane + uint64_t{b / 2} * 32), b % 2 != 0);
      }
      Transpose8(bytes, thirds);
    } else if constexpr (kHighBits<kKind> != 0) {
      for (uint32_t r = 0; r < 8; ++r) {
        bytes[r] = EvenOdd(UpperBits<kKind>(w[r] + shape.high_plane, b));
      }
      Transpose8(bytes, thirds);
    }
    SLUICE_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      __m256i fields[kFields];
      ByteFields<kKind>(words[i], kHighBits<kKind> != 0 ? thirds[i] : words[i], fields);
      SLUICE_UNROLL
      for (uint32_t f = 0; f < kFields; ++f) {
        const uint32_t quad = (b * 2 * kFields + kUnitOf[i] + f) * 4 + kQuadOf[i];
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + uint64_t{quad} * kGemmQuantRows + first),
                           fields[f]);
      }
    }
  }
}

// Their scales, or zeros.
template <QuantKind kKind, bool kZeros>
void UnpackMeta(const RowShape& shape, const uint8_t* const* w, uint32_t first, float* out) {
  for (uint32_t g = 0; g < shape.groups; g += 8) {
    const uint32_t count = shape.groups - g < 8 ? shape.groups - g : 8;
    __m256i rows[8];
    for (uint32_t r = 0; r < 8; ++r) {
      rows[r] = _mm256_castps_si256(kZeros ? ZerosOf<kKind>(shape, w[r], g, count)
                                           : ScalesOf<kKind>(shape, w[r], g, count));
    }
    __m256i groups[8];
    Transpose8(rows, groups);
    for (uint32_t i = 0; i < 8; ++i) {
      _mm256_store_ps(out + uint64_t{g + i} * kGemmQuantRows + first, _mm256_castsi256_ps(groups[i]));
    }
  }
}

// The tree over the lanes of all rows of a token, closed; lanes: [8][row].
inline N TotalOfRows(const float* lanes) {
  N s[4];
  for (int i = 0; i < 4; ++i) {
    s[i] = NAdd(NLoad(lanes + i * kNative), NLoad(lanes + (i + 4) * kNative));
  }
  return NAdd(NAdd(NAdd(s[0], s[2]), NAdd(s[1], s[3])), NZero());
}

// The unpacked rows for `tokens` of T tokens; totals: [token][row]. What is not there is the last token
// again.
template <QuantKind kKind, uint32_t T>
void MultiplyTokens(uint32_t tokens, const RowShape& shape, const QuantRow* x, const UnpackedRows& w,
                    float* totals) {
  const uint32_t per_group = shape.group / 4;
  const uint32_t quads = (shape.cols + 3) / 4;
  const bool mins = HasMins(shape.meta);
  const int8_t* values[T];
  const float* x_scales[T];
  const float* x_sums[T];
  for (uint32_t t = 0; t < T; ++t) {
    const QuantRow& row = x[t < tokens ? t : tokens - 1];
    values[t] = row.codes;
    x_scales[t] = row.scales;
    x_sums[t] = row.sums;
  }
  alignas(64) float lanes[T][8 * kNative] = {};
  for (uint32_t g = 0; g < shape.groups; ++g) {
    const uint32_t first = g * per_group;
    NInt sums[T];
    SumQuads<kKind, T, kNative>(w.codes + uint64_t{first} * kNative,
                                quads - first < per_group ? quads - first : per_group, values,
                                uint64_t{first} * 4, sums);
    const N scales = NLoad(w.scales + uint64_t{g} * kNative);
    const N zeros = NLoad(w.zeros + uint64_t{g} * kNative);
    SLUICE_UNROLL
    for (uint32_t t = 0; t < T; ++t) {
      float* lane = lanes[t] + g % 8 * kNative;
      const N x_sum = NSet1(x_sums[t][g]);
      const N sum = FloatSum<kKind>(sums[t], x_sum);
      const N x_scale = NSet1(x_scales[t][g]);
      if (mins) {
        NStore(lane, NFma(x_scale, NNegFma(zeros, x_sum, NMul(scales, sum)), NLoad(lane)));
      } else {
        NStore(lane, NFma(NMul(scales, x_scale), NNegFma(zeros, x_sum, sum), NLoad(lane)));
      }
    }
  }
  for (uint32_t t = 0; t < T; ++t) {
    NStore(totals + t * kNative, TotalOfRows(lanes[t]));
  }
}

template <QuantKind kKind>
void UnpackRows(const QuantDotCall& call, uint32_t first, uint32_t rows, const UnpackedRows& out) {
  for (uint32_t r = 0; r < kGemmQuantRows; r += 8) {
    const uint8_t* w[8];
    for (uint32_t i = 0; i < 8; ++i) {  // what is not there is the last row again
      w[i] = call.w[first + (r + i < rows ? r + i : rows - 1)];
    }
    UnpackCodes<kKind>(call.shape, w, r, out.codes);
    UnpackMeta<kKind, false>(call.shape, w, r, out.scales);
    UnpackMeta<kKind, true>(call.shape, w, r, out.zeros);
  }
}

template <QuantKind kKind>
void QuantGemm(const QuantDotCall& call) {
  const uint64_t words = uint64_t{RoundUp(call.shape.cols, kCodeAlign / 2) / 4} * kGemmQuantRows;
  const uint64_t meta = uint64_t{RoundUp(call.shape.groups, 8)} * kGemmQuantRows;
  const UnpackedRows unpacked{reinterpret_cast<int32_t*>(call.scratch), call.scratch + words,
                              call.scratch + words + meta};
  const uint32_t passes = (call.tokens + kQuadTokens - 1) / kQuadTokens;
  for (uint32_t r = 0; r < call.rows; r += kGemmQuantRows) {
    const uint32_t rows = call.rows - r < kGemmQuantRows ? call.rows - r : kGemmQuantRows;
    UnpackRows<kKind>(call, r, rows, unpacked);
    for (uint32_t pass = 0; pass < passes; ++pass) {  // as equal as they can be
      const uint32_t first = call.tokens * pass / passes;
      const uint32_t tokens = call.tokens * (pass + 1) / passes - first;
      alignas(64) float totals[kQuadTokens * kGemmQuantRows];
      WithTokens(tokens, [&]<uint32_t T>() {
        MultiplyTokens<kKind, T>(tokens, call.shape, call.x + first, unpacked, totals);
      });
      for (uint32_t t = 0; t < tokens; ++t) {
        __builtin_memcpy(call.y[first + t] + call.first + r, totals + t * kGemmQuantRows,
                         rows * sizeof(float));
      }
    }
  }
}
