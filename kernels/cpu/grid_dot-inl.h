// Dot products of rows of IQ2 and IQ3 blocks with a few tokens, without expanding the rows: magnitudes of the
// grids are multiplied, as unsigned bytes, with activations that have the weights' signs. Bits are those of
// the expanded rows (file_rows.h): the groups' sums are the same integers.
//
// Included by isa_table-inl.h.
//
// Thread safety: pure but for the memory that the calls name.

#ifndef SLUICE_ISA
#error "included by isa_table-inl.h only"
#endif

// Tokens that share the unpacked magnitudes and signs.
inline constexpr uint32_t kGridTokens = 4;

template <class T>
SLUICE_INLINE T LoadAs(const uint8_t* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

SLUICE_INLINE __m256i FourWords(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  return _mm256_set_epi64x(static_cast<int64_t>(d), static_cast<int64_t>(c), static_cast<int64_t>(b),
                           static_cast<int64_t>(a));
}

// Masks of 32 values from four bytes of signs.
SLUICE_INLINE __m256i MasksOfSigns(uint32_t signs) {
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(signs)),
                                            _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                                             2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
  const __m256i bits = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits);
}

// Masks of 32 values from four times seven bits of signs.
SLUICE_INLINE __m256i MasksOfEvenSigns(uint32_t signs) {
  return FourWords(kEvenSignMasks[signs & 127], kEvenSignMasks[signs >> 7 & 127],
                   kEvenSignMasks[signs >> 14 & 127], kEvenSignMasks[signs >> 21 & 127]);
}

// 32 values of a block: their magnitudes, and masks of the negative ones.
struct GridCodes {
  __m256i magnitudes;
  __m256i masks;
};

// A type of block: values [32 g, 32 g + 32) of a block, and the integer factors of its scales, 2 s + 1: those
// of eight groups from `first` on.
struct Iq2XxsGridBlock {
  static constexpr uint32_t kBytes = 66;
  static constexpr uint32_t kGroup = 32;
  static constexpr float kUnit = 0.125f;
  SLUICE_INLINE static GridCodes Codes(const uint8_t* block, uint32_t g) {
    const uint8_t* i = block + 2 + 8 * g;
    return {FourWords(kIq2XxsGrid[i[0]], kIq2XxsGrid[i[1]], kIq2XxsGrid[i[2]], kIq2XxsGrid[i[3]]),
            MasksOfEvenSigns(LoadAs<uint32_t>(i + 4))};
  }
  SLUICE_INLINE static __m256i Factors(const uint8_t* block, uint32_t) {
    alignas(32) uint32_t words[8];
    SLUICE_UNROLL
    for (uint32_t g = 0; g < 8; ++g) {
      words[g] = LoadAs<uint32_t>(block + 6 + 8 * g);
    }
    return _mm256_srli_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(words)), 28);
  }
};

struct Iq3XxsGridBlock {
  static constexpr uint32_t kBytes = 98;
  static constexpr uint32_t kGroup = 32;
  static constexpr float kUnit = 0.25f;
  SLUICE_INLINE static GridCodes Codes(const uint8_t* block, uint32_t g) {
    const uint8_t* i = block + 2 + 8 * g;
    return {_mm256_setr_epi32(static_cast<int>(kIq3XxsGrid[i[0]]), static_cast<int>(kIq3XxsGrid[i[1]]),
                              static_cast<int>(kIq3XxsGrid[i[2]]), static_cast<int>(kIq3XxsGrid[i[3]]),
                              static_cast<int>(kIq3XxsGrid[i[4]]), static_cast<int>(kIq3XxsGrid[i[5]]),
                              static_cast<int>(kIq3XxsGrid[i[6]]), static_cast<int>(kIq3XxsGrid[i[7]])),
            MasksOfEvenSigns(LoadAs<uint32_t>(block + 66 + 4 * g))};
  }
  SLUICE_INLINE static __m256i Factors(const uint8_t* block, uint32_t) {
    return _mm256_srli_epi32(LoadBlock(block + 66), 28);
  }
};

struct Iq3SGridBlock {
  static constexpr uint32_t kBytes = 110;
  static constexpr uint32_t kGroup = 32;
  static constexpr float kUnit = 1.0f;
  SLUICE_INLINE static int At(const uint8_t* index, uint32_t high, uint32_t i) {
    return static_cast<int>(kIq3SGrid[index[i] | (high << (8 - i) & 256)]);
  }
  SLUICE_INLINE static GridCodes Codes(const uint8_t* block, uint32_t g) {
    const uint8_t* i = block + 2 + 8 * g;
    const uint32_t h = block[66 + g];
    return {_mm256_setr_epi32(At(i, h, 0), At(i, h, 1), At(i, h, 2), At(i, h, 3), At(i, h, 4), At(i, h, 5),
                              At(i, h, 6), At(i, h, 7)),
            MasksOfSigns(LoadAs<uint32_t>(block + 74 + 4 * g))};
  }
  SLUICE_INLINE static __m256i Factors(const uint8_t* block, uint32_t) {
    const __m256i nibbles = _mm256_srlv_epi32(_mm256_set1_epi32(LoadAs<int32_t>(block + 106)),
                                              _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return _mm256_and_si256(nibbles, _mm256_set1_epi32(15));
  }
};

// Nibbles of eight groups of 16, from four bytes on.
SLUICE_INLINE __m256i NibblesAt(const uint8_t* scales, uint32_t first) {
  const __m256i nibbles = _mm256_srlv_epi32(_mm256_set1_epi32(LoadAs<int32_t>(scales + first / 2)),
                                            _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  return _mm256_and_si256(nibbles, _mm256_set1_epi32(15));
}

struct Iq2XsGridBlock {
  static constexpr uint32_t kBytes = 74;
  static constexpr uint32_t kGroup = 16;
  static constexpr float kUnit = 0.125f;
  SLUICE_INLINE static GridCodes Codes(const uint8_t* block, uint32_t g) {
    const uint64_t q = LoadAs<uint64_t>(block + 2 + 8 * g);
    return {FourWords(kIq2XsGrid[q & 511], kIq2XsGrid[q >> 16 & 511], kIq2XsGrid[q >> 32 & 511],
                      kIq2XsGrid[q >> 48 & 511]),
            FourWords(kEvenSignMasks[q >> 9 & 127], kEvenSignMasks[q >> 25 & 127],
                      kEvenSignMasks[q >> 41 & 127], kEvenSignMasks[q >> 57])};
  }
  SLUICE_INLINE static __m256i Factors(const uint8_t* block, uint32_t first) {
    return NibblesAt(block + 66, first);
  }
};

struct Iq2SGridBlock {
  static constexpr uint32_t kBytes = 82;
  static constexpr uint32_t kGroup = 16;
  static constexpr float kUnit = 0.125f;
  SLUICE_INLINE static GridCodes Codes(const uint8_t* block, uint32_t g) {
    const uint8_t* i = block + 2 + 4 * g;
    const uint32_t h = block[66 + g];
    return {FourWords(kIq2SGrid[i[0] | (h << 8 & 768)], kIq2SGrid[i[1] | (h << 6 & 768)],
                      kIq2SGrid[i[2] | (h << 4 & 768)], kIq2SGrid[i[3] | (h << 2 & 768)]),
            MasksOfSigns(LoadAs<uint32_t>(block + 34 + 4 * g))};
  }
  SLUICE_INLINE static __m256i Factors(const uint8_t* block, uint32_t first) {
    return NibblesAt(block + 74, first);
  }
};

// Sums of eight groups, each in its lane, from partial sums of 32 values each: eight of groups of 32, or four
// of pairs of groups of 16.
template <uint32_t kGroup>
SLUICE_INLINE __m256i SumsOfGroups(const __m256i* v) {
  if constexpr (kGroup == 32) {
    return FoldEight(v);
  }
  const __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
  return _mm256_permutevar8x32_epi32(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Adds the block to the eight lanes of each token; x: the tokens' codes of its 256 values.
template <class Block, uint32_t kTokens>
SLUICE_INLINE void AddGridBlock(const uint8_t* block, const QuantRow* x, uint32_t first, __m256* lanes) {
  constexpr uint32_t kParts = Block::kGroup / 4;  // registers of 32 values in eight groups
  const __m256 d =
      _mm256_mul_ps(_mm256_cvtph_ps(_mm_set1_epi16(LoadAs<int16_t>(block))), _mm256_set1_ps(Block::kUnit));
  SLUICE_UNROLL
  for (uint32_t run = 0; run < 8 / kParts; ++run) {
    __m256i sums[kTokens][kParts];
    SLUICE_UNROLL
    for (uint32_t i = 0; i < kParts; ++i) {
      const uint32_t g = run * kParts + i;
      const GridCodes codes = Block::Codes(block, g);
      SLUICE_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) {
        const __m256i values =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x[t].codes + first + 32 * g));
        const __m256i with_signs = _mm256_sub_epi8(_mm256_xor_si256(values, codes.masks), codes.masks);
        // At most 62 * 127 * 2.
        sums[t][i] =
            _mm256_madd_epi16(_mm256_maddubs_epi16(codes.magnitudes, with_signs), _mm256_set1_epi16(1));
      }
    }
    const __m256i factors = Block::Factors(block, 8 * run);
    const __m256 scales = _mm256_mul_ps(
        d, _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(factors, factors), _mm256_set1_epi32(1))));
    SLUICE_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      lanes[t] = _mm256_fmadd_ps(
          _mm256_mul_ps(scales, _mm256_loadu_ps(x[t].scales + first / Block::kGroup + 8 * run)),
          _mm256_cvtepi32_ps(SumsOfGroups<Block::kGroup>(sums[t])), lanes[t]);
    }
  }
}

template <class Block, uint32_t kTokens>
SLUICE_INLINE void GridDotRow(const QuantDotCall& call, uint32_t r, uint32_t t, LinesAhead* lines) {
  __m256 lanes[kTokens];
  SLUICE_UNROLL
  for (uint32_t i = 0; i < kTokens; ++i) {
    lanes[i] = _mm256_setzero_ps();
  }
  const uint8_t* block = call.w[r];
  for (uint32_t first = 0; first < call.shape.cols; first += 256, block += Block::kBytes) {
    lines->Step();
    AddGridBlock<Block, kTokens>(block, call.x + t, first, lanes);
  }
  SLUICE_UNROLL
  for (uint32_t i = 0; i < kTokens; ++i) {
    call.y[t + i][call.first + r] = TotalOfEight(lanes[i]);
  }
}

template <class Block>
__attribute__((noinline)) void GridDot(const QuantDotCall& call) {
  const uint32_t steps = call.shape.cols / 256;
  for (uint32_t r = 0; r < call.rows; ++r) {
    LinesAhead lines;
    if (call.fetch != nullptr) {
      call.fetch->Start(call.fetch_lines, steps, &lines);
    } else if (KindOf(call.prefetch) != Prefetch::kNone) {
      lines = LinesWhile<1>(call, r, steps);
    }
    uint32_t t = 0;
    for (; t + kGridTokens <= call.tokens; t += kGridTokens) {
      GridDotRow<Block, kGridTokens>(call, r, t, &lines);
      lines = {};
    }
    for (; t < call.tokens; ++t) {
      GridDotRow<Block, 1>(call, r, t, &lines);
      lines = {};
    }
  }
}

// Returns the kernel of a type's own, or nullptr.
inline void (*GridDotOf(Encoding encoding))(const QuantDotCall&) {
  return encoding == blocks::kIq2Xxs   ? GridDot<Iq2XxsGridBlock>
         : encoding == blocks::kIq2Xs  ? GridDot<Iq2XsGridBlock>
         : encoding == blocks::kIq2S   ? GridDot<Iq2SGridBlock>
         : encoding == blocks::kIq3Xxs ? GridDot<Iq3XxsGridBlock>
         : encoding == blocks::kIq3S   ? GridDot<Iq3SGridBlock>
                                       : nullptr;
}

// Rows of file blocks (file_rows.h). Where blocks have no kernel of their own, one token's expanded rows stay
// in the first-level cache.
inline void FileDot(const QuantDotCall& call) {
  void (*const own)(const QuantDotCall&) = GridDotOf(call.shape.encoding);
  if (own != nullptr && call.shape.cols % 256 == 0) {
    return own(call);
  }
  MultiplyExpanded(call, 8, QuantDot<QuantKind::kQ8>);
}
inline void FileGemm(const QuantDotCall& call) {
  MultiplyExpanded(call, kGemmQuantRows, QuantGemm<QuantKind::kQ8>);
}
