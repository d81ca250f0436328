// Dot products of quantized rows (ARITHMETIC.md 2 b): int16 activations, exact group sums in int32, eight
// groups at a time.
//
// Included by the instruction sets' kernels_*.cc.
//
// Thread safety: pure but for the memory that the calls name.
#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

// v[i]'s eight lanes added to lane i.
SLUICE_INLINE __m256i FoldEight(const __m256i* v) {
  const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
  const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

// The tree over eight lanes and the closing +0.
SLUICE_INLINE float TotalOfEight(__m256 a) {
  const __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 u = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(_mm_add_ss(u, _mm_movehdup_ps(u)), _mm_setzero_ps()));
}

// The largest magnitude of n values.
inline float LargestMagnitudeOf(const float* x, uint32_t n) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 largest = _mm256_setzero_ps();
  uint32_t k = 0;
  for (; k + 8 <= n; k += 8) {
    largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + k)));
  }
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  float out = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  for (; k < n; ++k) {
    const float magnitude = __builtin_fabsf(x[k]);
    out = magnitude > out ? magnitude : out;
  }
  return out;
}

// Sixteen values times `factor` as saturated int16.
inline __m256i SixteenCodes(const float* x, __m256 factor) {
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor));
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}

inline int32_t SumOfCodes(__m256i codes) {
  const __m256i pairs = _mm256_madd_epi16(codes, _mm256_set1_epi16(1));
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// One group's codes, n <= 128; returns their sum. Writes up to a multiple of 16, zeros behind the n.
inline int32_t StoreCodes(const float* x, float inverse, uint32_t n, int16_t* codes) {
  int32_t sum = 0;
  const __m256 factor = _mm256_set1_ps(inverse);
  for (uint32_t k = 0; k < n; k += 16) {
    __m256i out;
    if (n - k >= 16) {
      out = SixteenCodes(x + k, factor);
    } else {
      alignas(32) float values[16] = {};
      __builtin_memcpy(values, x + k, (n - k) * sizeof(float));
      out = SixteenCodes(values, factor);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + k), out);
    sum += SumOfCodes(out);
  }
  return sum;
}

inline void Quantize(const QuantizeCall& call) {
  uint32_t g = 0;
  for (uint32_t k = 0; k < call.cols; k += call.group, ++g) {
    const uint32_t n = call.cols - k < call.group ? call.cols - k : call.group;
    const float largest = LargestMagnitudeOf(call.x + k, n);
    const bool zero = largest < 1e-30f;
    const int32_t sum = StoreCodes(call.x + k, zero ? 0.0f : 127.0f / largest, n, call.codes + k);
    call.scales[g] = zero ? 0.0f : largest / 127.0f;
    call.sums[g] = static_cast<float>(sum);
  }
  for (; g % 8 != 0; ++g) {
    call.scales[g] = 0.0f;
    call.sums[g] = 0.0f;
  }
  // Groups are multiples of 16, so only whole units can be missing in the last block.
  const uint32_t end = (call.cols + 15) / 16 * 16;
  __builtin_memset(call.codes + end, 0, (RoundUp(end, kCodeAlign) - end) * sizeof(int16_t));
  if (call.bytes != nullptr) {
    const uint32_t padded = RoundUp(end, kCodeAlign);
    SplitCodes(call.codes, padded, call.bytes);
    uint8_t* nibbles = call.bytes + 2 * padded;
    call.group == 64 ? SplitNibbleCodes<4>(call.codes, padded, nibbles)
                     : SplitNibbleCodes<8>(call.codes, padded, nibbles);
  }
}

// Partial sums of the units [first, last) of a row.
template <QuantKind kKind>
inline __m256i GroupOfUnits(const RowShape& shape, const uint8_t* w, const int16_t* x, uint32_t first,
                            uint32_t last) {
  __m256i sum = _mm256_setzero_si256();
  for (uint32_t u = first; u < last; ++u) {
    sum = _mm256_add_epi32(sum,
                           _mm256_madd_epi16(UnitOf<kKind>(shape, w, u), LoadCodes16(x + uint64_t{u} * 16)));
  }
  return sum;
}

// The groups [g, g + count) of a row added to the eight lanes; s: their sums.
template <QuantKind kKind>
SLUICE_INLINE __m256 AddGroups(const RowShape& shape, const uint8_t* w, const QuantRow& x, uint32_t g,
                               uint32_t count, __m256i s, __m256 lanes) {
  const __m256 t = _mm256_fnmadd_ps(ZerosOf<kKind>(shape, w, g, count), _mm256_loadu_ps(x.sums + g),
                                    _mm256_cvtepi32_ps(s));
  const __m256 scale = _mm256_mul_ps(ScalesOf<kKind>(shape, w, g, count), _mm256_loadu_ps(x.scales + g));
  return _mm256_fmadd_ps(scale, t, lanes);
}

// Partial sums of group kGroup of eight groups of kUnits units each.
template <QuantKind kKind, uint32_t kUnits, uint32_t kGroup>
SLUICE_INLINE __m256i GroupOf(const GroupsAt& w, const int16_t* x) {
  constexpr uint32_t kPer = kBlockUnits<kKind>;
  __m256i sum = _mm256_setzero_si256();
  SLUICE_UNROLL
  for (uint32_t i = 0; i < kUnits; ++i) {
    const uint32_t unit = kGroup * kUnits + i;
    const __m256i block = LoadBlock(w.codes + unit / kPer * 32);
    __m256i high = block;
    if constexpr (kKind == QuantKind::kQ3) {
      high = LoadBlock(w.third + unit / 16 * 32);
      if constexpr (kUnits == 1) {  // half of a block of the high plane
        high = _mm256_srl_epi16(high, _mm_cvtsi32_si128(static_cast<int>(w.third_unit)));
      }
    }
    const __m256i field = FieldOf<kKind>(block, unit % kPer, high, unit % 16);
    const __m256i values = LoadCodes16(x + unit * 16);
    sum = i == 0 ? _mm256_madd_epi16(field, values) : AddProducts(sum, field, values);
  }
  return kScaleBits<kKind> > 0 ? _mm256_srai_epi32(sum, kScaleBits<kKind>) : sum;
}

// The exact sums of these eight groups, one in each lane. Folded as they come: few are alive at a time.
template <QuantKind kKind, uint32_t kUnits>
SLUICE_INLINE __m256i EightGroups(const GroupsAt& w, const int16_t* x, LinesAhead* lines) {
  const __m256i s01 = _mm256_hadd_epi32(GroupOf<kKind, kUnits, 0>(w, x), GroupOf<kKind, kUnits, 1>(w, x));
  if constexpr (kFetchSteps<kKind> == 4) {
    lines->Step();
  }
  const __m256i s23 = _mm256_hadd_epi32(GroupOf<kKind, kUnits, 2>(w, x), GroupOf<kKind, kUnits, 3>(w, x));
  lines->Step();
  const __m256i a = _mm256_hadd_epi32(s01, s23);
  const __m256i s45 = _mm256_hadd_epi32(GroupOf<kKind, kUnits, 4>(w, x), GroupOf<kKind, kUnits, 5>(w, x));
  if constexpr (kFetchSteps<kKind> == 4) {
    lines->Step();
  }
  const __m256i s67 = _mm256_hadd_epi32(GroupOf<kKind, kUnits, 6>(w, x), GroupOf<kKind, kUnits, 7>(w, x));
  lines->Step();
  const __m256i b = _mm256_hadd_epi32(s45, s67);
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

// How far behind what is read lines are moved to the first-level cache. The hardware moves lines, too, but
// late: a core's 16 lines under way are mostly those that are fetched from memory.
inline constexpr uint32_t kNearBytes = 1024;

// That is often beyond the row, so only where all rows but two, the ends of two streams, are followed by one
// of the next two.
inline bool AreNear(const QuantDotCall& call) {
  uint32_t followed = 0;
  for (uint32_t r = 0; r + 1 < call.rows; ++r) {
    const uint8_t* end = call.w[r] + call.shape.bytes;
    const uint8_t* second = call.w[r + 2 < call.rows ? r + 2 : r + 1];
    followed += static_cast<uint64_t>(call.w[r + 1] - end) < 64 || static_cast<uint64_t>(second - end) < 64;
  }
  return call.rows > 2 && followed + 2 >= call.rows;
}

template <uint32_t kBytes>
SLUICE_INLINE void MoveNear(const uint8_t* p) {
  SLUICE_UNROLL
  for (uint32_t i = 0; i < kBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p) + i + kNearBytes, _MM_HINT_T0);
  }
}

// kRows rows' whole groups, eight at a time, added to their lanes. Returns the first group that is left.
template <QuantKind kKind, uint32_t kUnits, int kRows, bool kNear>
SLUICE_INLINE uint32_t AddWholeGroups(const RowShape& shape, uint32_t whole, const uint8_t* const* w,
                                      const QuantRow& x, LinesAhead* lines, __m256* lanes) {
  constexpr bool kBytes = kByBytes<kKind, kUnits>;
  constexpr uint32_t kBytesOfCodes = 8 * kUnits / kBlockUnits<kKind> * 32;
  GroupsAt at[kRows];
  SLUICE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    at[r] = {w[r], w[r] + shape.high_plane};
  }
  const int16_t* codes = x.codes;
  const uint8_t* bytes = x.bytes;
  if constexpr (kBytes && kKind == QuantKind::kQ4) {
    bytes += 2 * RoundUp(shape.cols, kCodeAlign);
  }
  uint32_t g = 0;
  for (; g + 8 <= whole; g += 8) {
    __m256i sums[kRows];
    SLUICE_UNROLL
    for (int r = 0; r < kRows && kNear; ++r) {
      MoveNear<kBytesOfCodes>(at[r].codes);
    }
    if constexpr (kBytes) {
      EightGroupsOfBytes<kKind, kUnits, kRows>(at, bytes, lines, sums);
      bytes += 8 * kUnits * 32;
    } else {
      static_assert(kRows == 1);
      sums[0] = EightGroups<kKind, kUnits>(at[0], codes, lines);
      codes += 8 * kUnits * 16;
    }
    lanes[0] = AddGroups<kKind>(shape, w[0], x, g, 8, sums[0], lanes[0]);
    if constexpr (kRows == 2) {  // not a loop: it would keep the lanes in memory
      lanes[1] = AddGroups<kKind>(shape, w[1], x, g, 8, sums[1], lanes[1]);
    }
    SLUICE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      at[r].codes += kBytesOfCodes;
      if constexpr (kKind == QuantKind::kQ3 && kUnits == 1) {
        at[r].third_unit ^= 8;
        at[r].third += at[r].third_unit == 0 ? 32 : 0;
      } else if constexpr (kKind == QuantKind::kQ3) {
        at[r].third += kUnits / 2 * 32;
      }
    }
  }
  return g;
}

// kRows (1 or 2) rows with one token. kUnits: units in a group, 0 for groups that do not fill whole blocks
// with their neighbours. whole: groups of the whole length; kNear: AreNear(). `lines`: rows to fetch
// meanwhile.
template <QuantKind kKind, uint32_t kUnits, int kRows, bool kNear>
SLUICE_INLINE void DotRowsWith(const RowShape& shape, uint32_t whole, const uint8_t* const* w,
                               const QuantRow& x, LinesAhead* lines, float* y) {
  __m256 lanes[kRows];
  for (int r = 0; r < kRows; ++r) {
    lanes[r] = _mm256_setzero_ps();
  }
  uint32_t g = 0;
  if constexpr (kUnits > 0) {
    g = AddWholeGroups<kKind, kUnits, kRows, kNear>(shape, whole, w, x, lines, lanes);
  }
  const uint32_t units = (shape.cols + 15) / 16;
  const uint32_t per_group = shape.group / 16;
  for (; g < shape.groups; g += 8) {
    const uint32_t count = shape.groups - g < 8 ? shape.groups - g : 8;
    for (uint32_t i = 0; i < kFetchSteps<kKind>; ++i) {
      lines->Step();
    }
    for (int r = 0; r < kRows; ++r) {
      __m256i v[8];
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t first = (g + i) * per_group;
        const uint32_t last = first + per_group < units ? first + per_group : units;
        v[i] = GroupOfUnits<kKind>(shape, w[r], x.codes, first, i < count ? last : first);
      }
      lanes[r] = AddGroups<kKind>(shape, w[r], x, g, count, FoldEight(v), lanes[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    y[r] = TotalOfEight(lanes[r]);
  }
}

// What is fetched of the rows ahead while the rows [r, r + kRows) are read: two rows in turn or, for one row
// of two streams, half of two rows, else two halves of one.
template <int kRows>
inline LinesAhead LinesWhile(const QuantDotCall& call, uint32_t r, uint32_t steps) {
  const uint32_t length = (call.shape.bytes + 63) / 64;
  const uint32_t half = (length + 1) / 2;
  LinesAhead lines;
  if (kRows == 2) {
    lines.Start(RowAhead(call.w, r, call.prefetch), RowAhead(call.w, r + 1, call.prefetch), length, steps);
  } else if (call.prefetch.two_streams) {
    const uint64_t from = r % 2 * uint64_t{half} * 64;
    lines.Start(RowAhead(call.w, r / 2 * 2, call.prefetch) + from,
                RowAhead(call.w, r / 2 * 2 + 1, call.prefetch) + from, half, steps);
  } else {
    const uint8_t* ahead = RowAhead(call.w, r, call.prefetch);
    lines.Start(ahead, ahead + uint64_t{half} * 64, half, steps);
  }
  return lines;
}

// Rows [r, r + kRows) of the call.
template <QuantKind kKind, uint32_t kUnits, int kRows, bool kNear>
SLUICE_INLINE void DotRowsAt(const QuantDotCall& call, uint32_t whole, uint32_t r, uint32_t steps) {
  const bool prefetch = KindOf(call.prefetch) != Prefetch::kNone;
  for (uint32_t t = 0; t < call.tokens; ++t) {
    LinesAhead lines;
    if (call.fetch != nullptr && t == 0) {
      call.fetch->Start(call.fetch_lines * kRows, steps, &lines);
    } else if (prefetch && t == 0) {
      lines = LinesWhile<kRows>(call, r, steps);
    }
    DotRowsWith<kKind, kUnits, kRows, kNear>(call.shape, whole, call.w + r, call.x[t], &lines,
                                             call.y[t] + call.first + r);
  }
}

template <QuantKind kKind, uint32_t kUnits, bool kNear>
__attribute__((noinline)) void DotAllRows(const QuantDotCall& call) {
  constexpr int kPair = kByBytes<kKind, kUnits> ? kRowsOfBytes : 1;
  const uint32_t steps = (call.shape.groups + 7) / 8 * kFetchSteps<kKind>;
  const uint32_t whole = call.shape.cols / call.shape.group;
  uint32_t r = 0;
  for (; r + kPair <= call.rows; r += kPair) {
    DotRowsAt<kKind, kUnits, kPair, kNear>(call, whole, r, steps);
  }
  for (; r < call.rows; ++r) {
    DotRowsAt<kKind, kUnits, 1, kNear>(call, whole, r, steps);
  }
}

template <QuantKind kKind, uint32_t kUnits>
void QuantDotRows(const QuantDotCall& call) {
  kUnits > 0 && AreNear(call) ? DotAllRows<kKind, kUnits, true>(call)
                              : DotAllRows<kKind, kUnits, false>(call);
}

template <QuantKind kKind>
void QuantDot(const QuantDotCall& call) {
  if constexpr (kKind == QuantKind::kMxfp4) {
    return QuantDotRows<kKind, 2>(call);
  } else {
    switch (call.shape.group) {
      case 16:
        return QuantDotRows<kKind, 1>(call);
      case 32:
        return QuantDotRows<kKind, 2>(call);
      case 64:
        return QuantDotRows<kKind, 4>(call);
      case 128:
        return QuantDotRows<kKind, 8>(call);
      default:
        return QuantDotRows<kKind, 0>(call);
    }
  }
}
