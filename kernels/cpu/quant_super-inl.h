// Products of one token with rows of Q4_K, Q5_K and Q6_K: the groups of quant_dot-inl.h, in the order of its
// sums, but nothing is looked up in the row's shape between them, and sums stay in 16 bits as long as they
// fit.
//
// Included by isa_table-inl.h.
//
// Thread safety: pure but for the memory that the calls name.

#ifndef SLUICE_ISA
#error "included by isa_table-inl.h only"
#endif

// AVX-VNNI and AVX-512 sum four products in 32 bits with one instruction, so their words need no folding.
#if defined(SLUICE_AVX512) || defined(SLUICE_VNNI)

template <QuantKind kKind>
SLUICE_INLINE bool SuperDot(const QuantDotCall&) {
  return false;
}

#else

// Rows of a kind: super-groups of 256 codes, in steps of eight groups.
template <QuantKind kKind>
struct SuperRow {
  static constexpr bool kMins = kKind != QuantKind::kQ6;
  static constexpr RowMeta kMeta = kMins ? RowMeta::kSuperScaleMin : RowMeta::kSuperScale;
  static constexpr uint32_t kNumbers = kMins ? 2 : 1;  // f16 of a super-group
  static constexpr uint32_t kUnits = kMins ? 2 : 1;    // in a group
  static constexpr uint32_t kSteps = 2 / kUnits;       // in a super-group
  static constexpr uint32_t kStepCodes = 128 * kUnits;
};
inline constexpr uint32_t kMaxSupers = 64;  // in a row, whose numbers are converted at once

// Words of eight groups: groups 0 to 3 in each half of `low`, 4 to 7 in each half of `high`; for q6 in the
// order 0, 2, 1, 3.
struct HalfSums {
  __m256i low;
  __m256i high;
};

// Multiplies the codes of a step with `x`, woven as for LeafOf(). The largest word is 2 * 63 * 127 before it
// is folded for q6, 4 * 31 * 127 for q5.
template <QuantKind kKind>
SLUICE_INLINE HalfSums MultiplyStep(const GroupsAt& at, const int8_t* x) {
  __m256i words[4];
  if constexpr (kKind == QuantKind::kQ6) {
    // Two blocks share one of upper bits: those of the second are above those of the first.
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    const __m256i upper = _mm256_set1_epi8(0x30);
    const __m256i third = EvenOdd(LoadBlock(at.third));
    const __m256i bits[4] = {_mm256_slli_epi16(third, 4), _mm256_slli_epi16(third, 2), third,
                             _mm256_srli_epi16(third, 2)};
    SLUICE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const __m256i bytes = EvenOdd(LoadBlock(at.codes + 32 * i));
      const __m256i fields[2] = {bytes, _mm256_srli_epi16(bytes, 4)};
      SLUICE_UNROLL
      for (int f = 0; f < 2; ++f) {
        const __m256i code =
            _mm256_or_si256(_mm256_and_si256(fields[f], nibble), _mm256_and_si256(bits[2 * i + f], upper));
        words[2 * i + f] = _mm256_maddubs_epi16(code, BLoad(x + 64 * f + 32 * i));
      }
    }
  } else {
    SLUICE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      B fields[2];
      FieldsAt<kKind, true>(at, i, fields);
      const int8_t* const place = x + i / 2 * 128 + i % 2 * 32;
      words[i] = _mm256_add_epi16(_mm256_maddubs_epi16(fields[0], BLoad(place)),
                                  _mm256_maddubs_epi16(fields[1], BLoad(place + 64)));
    }
  }
  return {FoldWords(words[0], words[1]), FoldWords(words[2], words[3])};
}

// The sums of the eight groups in order.
template <QuantKind kKind>
SLUICE_INLINE __m256i SumsOf(const HalfSums& half) {
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (kKind == QuantKind::kQ4) {  // at most 16 * 15 * 127
    return _mm256_madd_epi16(_mm256_add_epi16(_mm256_blend_epi32(half.low, half.high, 0xf0),
                                              _mm256_permute2x128_si256(half.low, half.high, 0x21)),
                             ones);
  }
  const __m256i low = _mm256_madd_epi16(half.low, ones);
  const __m256i high = _mm256_madd_epi16(half.high, ones);
  const __m256i sums =
      _mm256_add_epi32(_mm256_blend_epi32(low, high, 0xf0), _mm256_permute2x128_si256(low, high, 0x21));
  return kKind == QuantKind::kQ6 ? _mm256_shuffle_epi32(sums, 0xd8) : sums;
}

// Adds a step's groups to the lanes. scales: their bytes; numbers: the super-group's; x: from these groups
// on.
template <QuantKind kKind>
SLUICE_INLINE __m256 AddStep(const HalfSums& half, const uint8_t* scales, const uint8_t* mins,
                             const float* numbers, float zero, const float* x_scales, const float* x_sums,
                             __m256 lanes) {
  const __m256 sums = _mm256_cvtepi32_ps(SumsOf<kKind>(half));
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales));
  if constexpr (SuperRow<kKind>::kMins) {
    const __m256 scale =
        _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_set1_ps(numbers[0]));
    const __m256 min = _mm256_mul_ps(_mm256_cvtepi32_ps(LoadBytes(mins, 8)), _mm256_set1_ps(numbers[1]));
    const __m256 t = _mm256_fnmadd_ps(min, _mm256_loadu_ps(x_sums), _mm256_mul_ps(scale, sums));
    return _mm256_fmadd_ps(_mm256_loadu_ps(x_scales), t, lanes);
  }
  const __m256 scale =
      _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_set1_ps(numbers[0]));
  const __m256 t = _mm256_fnmadd_ps(_mm256_set1_ps(zero), _mm256_loadu_ps(x_sums), sums);
  return _mm256_fmadd_ps(_mm256_mul_ps(scale, _mm256_loadu_ps(x_scales)), t, lanes);
}

// Converts a row's f16 numbers to out[8 ..]. The last eight end with the row, so that nothing behind it is
// read; where there are fewer, they begin before the numbers and are written below out[8].
SLUICE_INLINE void ConvertNumbers(const uint8_t* halves, uint32_t count, float* out) {
  for (uint32_t i = 0; i < count; i += 8) {
    const int64_t from = i + 8 <= count ? int64_t{i} : int64_t{count} - 8;
    _mm256_storeu_ps(out + 8 + from,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + 2 * from))));
  }
}

// A step's sums are completed while the next one's codes are multiplied: the whole chain of one step is
// longer than what a core holds of instructions when it shares its buffers with a second thread.
template <QuantKind kKind>
SLUICE_INLINE float SuperDotRow(const RowShape& shape, const uint8_t* w, const QuantRow& x, StreamAhead ahead,
                                LinesAhead* lines) {
  using Row = SuperRow<kKind>;
  const uint32_t supers = shape.cols / 256;
  alignas(32) float numbers[8 + Row::kNumbers * kMaxSupers];
  ConvertNumbers(w + shape.super_groups, supers * Row::kNumbers, numbers);
  GroupsAt at = {w, w + shape.high_plane};
  const int8_t* codes = x.woven + kOrderOf<kKind> * RoundUp(shape.cols, kCodeAlign);
  const uint8_t* scales = w + shape.scales;
  const uint32_t to_mins = shape.zeros - shape.scales;
  const float* number = numbers + 8;
  const float* x_scales = x.scales;
  const float* x_sums = x.sums;
  const float zero = shape.zero;
  __m256 lanes = _mm256_setzero_ps();
  const auto multiply = [&] {
    const HalfSums half = MultiplyStep<kKind>(at, codes);
    at.codes += Row::kStepCodes / 2;
    at.third += Row::kStepCodes / 8 * kHighBits<kKind>;
    codes += Row::kStepCodes;
    return half;
  };
  const auto add = [&](const HalfSums& half) {
    lanes = AddStep<kKind>(half, scales, scales + to_mins, number, zero, x_scales, x_sums, lanes);
    scales += 8;
    x_scales += 8;
    x_sums += 8;
  };
  ahead.Step();
  lines->Step();
  HalfSums half = multiply();
  for (uint32_t s = 1; s < supers; ++s) {
    ahead.Step();
    lines->Step();
    for (uint32_t i = 1; i < Row::kSteps; ++i) {
      const HalfSums next = multiply();
      add(half);
      half = next;
    }
    const HalfSums next = multiply();
    add(half);
    half = next;
    number += Row::kNumbers;
  }
  for (uint32_t i = 1; i < Row::kSteps; ++i) {
    const HalfSums next = multiply();
    add(half);
    half = next;
  }
  add(half);
  return TotalOfEight(lanes);
}

template <QuantKind kKind>
__attribute__((noinline)) void SuperDotRows(const QuantDotCall& call) {
  const uint32_t supers = call.shape.cols / 256;
  const bool near = StreamAhead::Suits(call);
  for (uint32_t r = 0; r < call.rows; ++r) {
    LinesAhead lines;
    if (call.fetch != nullptr) {
      call.fetch->Start(call.fetch_lines, supers, &lines);
    } else if (!near && KindOf(call.prefetch) != Prefetch::kNone) {
      lines = LinesWhile<1>(call, r, supers);
    }
    const StreamAhead ahead(call.w[r], call.shape.bytes, supers, near);
    call.y[0][call.first + r] = SuperDotRow<kKind>(call.shape, call.w[r], call.x[0], ahead, &lines);
  }
}

// Computes a call of one token with such rows. Returns false if it is not one.
template <QuantKind kKind>
SLUICE_INLINE bool SuperDot(const QuantDotCall& call) {
  if (call.tokens != 1 || call.shape.meta != SuperRow<kKind>::kMeta || call.shape.cols % 256 != 0 ||
      call.shape.cols > 256 * kMaxSupers) {
    return false;
  }
  SuperDotRows<kKind>(call);
  return true;
}

#endif

template <QuantKind kKind>
void QuantDot(const QuantDotCall& call) {
  if constexpr (kKind == QuantKind::kQ4 || kKind == QuantKind::kQ5 || kKind == QuantKind::kQ6) {
    if (SuperDot<kKind>(call)) {
      return;
    }
  }
  if constexpr (kKind == QuantKind::kMxfp4 || kKind == QuantKind::kQ5 || kKind == QuantKind::kIq4) {
    return QuantDotRows<kKind, 2>(call);
  } else if constexpr (kKind == QuantKind::kQ6) {
    return QuantDotRows<kKind, 1>(call);
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
