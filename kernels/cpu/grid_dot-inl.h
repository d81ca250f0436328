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

// Two words of which the second is loaded into the upper half: one instruction, where inserting it takes two.
SLUICE_INLINE __m128i TwoWords(const uint64_t& a, const uint64_t& b) {
  const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&a));
  return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(low), reinterpret_cast<const __m64*>(&b)));
}
SLUICE_INLINE __m256i FourWords(const uint64_t& a, const uint64_t& b, const uint64_t& c, const uint64_t& d) {
  return _mm256_setr_m128i(TwoWords(a, b), TwoWords(c, d));
}
// entry(i), i < 8, in lane i: loads that broadcast, and blends, which every vector unit computes; inserting
// them one by one takes as many shuffles, which few units do.
template <class Entry>
SLUICE_INLINE __m256i EightWords(const Entry& entry) {
  __m256i pairs[4];
  SLUICE_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    pairs[i] = _mm256_blend_epi32(_mm256_set1_epi32(static_cast<int>(entry(2 * i))),
                                  _mm256_set1_epi32(static_cast<int>(entry(2 * i + 1))), 0xaa);
  }
  return _mm256_blend_epi32(_mm256_blend_epi32(pairs[0], pairs[1], 0xcc),
                            _mm256_blend_epi32(pairs[2], pairs[3], 0xcc), 0xf0);
}

// Masks of 32 values from four bytes of signs: word kWord of each half of `signs`.
template <int kWord>
SLUICE_INLINE __m256i MasksOfWord(__m256i signs) {
  constexpr char k = 4 * kWord;
  const __m256i bytes = _mm256_shuffle_epi8(
      signs, _mm256_setr_epi8(k, k, k, k, k, k, k, k, k + 1, k + 1, k + 1, k + 1, k + 1, k + 1, k + 1, k + 1,
                              k + 2, k + 2, k + 2, k + 2, k + 2, k + 2, k + 2, k + 2, k + 3, k + 3, k + 3,
                              k + 3, k + 3, k + 3, k + 3, k + 3));
  const __m256i bits = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits);
}
SLUICE_INLINE __m256i MasksOfSigns(uint32_t signs) {
  return MasksOfWord<0>(_mm256_set1_epi32(static_cast<int>(signs)));
}

// Four bytes of signs from four times seven bits in each lane's lower 28: the eighth makes their number even.
SLUICE_INLINE __m256i EvenSigns(__m256i words) {
  const __m256i mask = _mm256_set1_epi32(0x7f);
  const __m256i seven = _mm256_or_si256(
      _mm256_or_si256(_mm256_and_si256(words, mask),
                      _mm256_and_si256(_mm256_slli_epi32(words, 1), _mm256_slli_epi32(mask, 8))),
      _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi32(words, 2), _mm256_slli_epi32(mask, 16)),
                      _mm256_and_si256(_mm256_slli_epi32(words, 3), _mm256_slli_epi32(mask, 24))));
  const char odd = static_cast<char>(0x80);
  const __m256i parity = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, odd, odd, 0, odd, 0, 0, odd, odd, 0, 0, odd, 0, odd, odd, 0));
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  const __m256i low = _mm256_shuffle_epi8(parity, _mm256_and_si256(seven, nibble));
  const __m256i high = _mm256_shuffle_epi8(parity, _mm256_and_si256(_mm256_srli_epi16(seven, 4), nibble));
  return _mm256_or_si256(seven, _mm256_xor_si256(low, high));
}

// The signs of a block of a type that has seven bits for eight values, unpacked at once: those of groups 0 to
// 3 in both halves of the first register, of 4 to 7 in those of the second.
struct GridSigns {
  __m256i fours[2];
  SLUICE_INLINE void Set(__m256i words) {
    const __m256i signs = EvenSigns(words);
    fours[0] = _mm256_permute2x128_si256(signs, signs, 0x00);
    fours[1] = _mm256_permute2x128_si256(signs, signs, 0x11);
  }
  // Masks of group g, a constant after unrolling.
  SLUICE_INLINE __m256i Masks(uint32_t g) const {
    const __m256i four = fours[g / 4];
    return g % 4 == 0   ? MasksOfWord<0>(four)
           : g % 4 == 1 ? MasksOfWord<1>(four)
           : g % 4 == 2 ? MasksOfWord<2>(four)
                        : MasksOfWord<3>(four);
  }
};

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
  // The second four bytes of each group's eight: signs, and the factor above them.
  SLUICE_INLINE static __m256i Words(const uint8_t* block) {
    const __m256 first = _mm256_castsi256_ps(LoadBlock(block + 2));
    const __m256 second = _mm256_castsi256_ps(LoadBlock(block + 34));
    return _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xdd)), 0xd8);
  }
  SLUICE_INLINE static void Signs(const uint8_t* block, GridSigns* out) { out->Set(Words(block)); }
  SLUICE_INLINE static GridCodes Codes(const uint8_t* block, const GridSigns& signs, uint32_t g) {
    const uint8_t* i = block + 2 + 8 * g;
    return {FourWords(kIq2XxsGrid[i[0]], kIq2XxsGrid[i[1]], kIq2XxsGrid[i[2]], kIq2XxsGrid[i[3]]),
            signs.Masks(g)};
  }
  SLUICE_INLINE static __m256i Factors(const uint8_t* block, uint32_t) {
    return _mm256_srli_epi32(Words(block), 28);
  }
};

struct Iq3XxsGridBlock {
  static constexpr uint32_t kBytes = 98;
  static constexpr uint32_t kGroup = 32;
  static constexpr float kUnit = 0.25f;
  SLUICE_INLINE static void Signs(const uint8_t* block, GridSigns* out) { out->Set(LoadBlock(block + 66)); }
  SLUICE_INLINE static GridCodes Codes(const uint8_t* block, const GridSigns& signs, uint32_t g) {
    const uint8_t* index = block + 2 + 8 * g;
    return {EightWords([index](uint32_t i) { return kIq3XxsGrid[index[i]]; }), signs.Masks(g)};
  }
  SLUICE_INLINE static __m256i Factors(const uint8_t* block, uint32_t) {
    return _mm256_srli_epi32(LoadBlock(block + 66), 28);
  }
};

struct Iq3SGridBlock {
  static constexpr uint32_t kBytes = 110;
  static constexpr uint32_t kGroup = 32;
  static constexpr float kUnit = 1.0f;
  SLUICE_INLINE static void Signs(const uint8_t*, GridSigns*) {}
  SLUICE_INLINE static GridCodes Codes(const uint8_t* block, const GridSigns&, uint32_t g) {
    const uint8_t* index = block + 2 + 8 * g;
    const uint32_t high = block[66 + g];
    return {EightWords([=](uint32_t i) { return kIq3SGrid[index[i] | (high << (8 - i) & 256)]; }),
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
  SLUICE_INLINE static void Signs(const uint8_t*, GridSigns*) {}
  SLUICE_INLINE static GridCodes Codes(const uint8_t* block, const GridSigns&, uint32_t g) {
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
  SLUICE_INLINE static void Signs(const uint8_t*, GridSigns*) {}
  SLUICE_INLINE static GridCodes Codes(const uint8_t* block, const GridSigns&, uint32_t g) {
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

// Folds partial sums of 32 values each, in pairs as they come: four pairs of groups of 32, or two pairs of
// registers that hold a group of 16 in each half. A word is at most 2 * 62 * 127 before, twice that after.
SLUICE_INLINE __m256i FoldPair(__m256i a, __m256i b) {
  return _mm256_madd_epi16(FoldWords(a, b), _mm256_set1_epi16(1));
}
SLUICE_INLINE __m256i FoldLanes(__m256i a, __m256i b) {
  const __m256 x = _mm256_castsi256_ps(a);
  const __m256 y = _mm256_castsi256_ps(b);
  return _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)),
                          _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)));
}

// Sums of eight groups, each in its lane, from their folded pairs.
template <uint32_t kGroup>
SLUICE_INLINE __m256i SumsOfGroups(const __m256i* pairs) {
  const __m256i first = FoldLanes(pairs[0], pairs[1]);
  if constexpr (kGroup == 32) {
    const __m256i second = FoldLanes(pairs[2], pairs[3]);
    return _mm256_add_epi32(_mm256_blend_epi32(first, second, 0xf0),
                            _mm256_permute2x128_si256(first, second, 0x21));
  }
  return _mm256_permutevar8x32_epi32(first, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Adds the block to the eight lanes of each token; x: the tokens' codes of its 256 values.
template <class Block, uint32_t kTokens>
SLUICE_INLINE void AddGridBlock(const uint8_t* block, const QuantRow* x, uint32_t first, __m256* lanes) {
  constexpr uint32_t kParts = Block::kGroup / 4;  // registers of 32 values in eight groups
  const __m256 d =
      _mm256_mul_ps(_mm256_cvtph_ps(_mm_set1_epi16(LoadAs<int16_t>(block))), _mm256_set1_ps(Block::kUnit));
  GridSigns signs;
  Block::Signs(block, &signs);
  SLUICE_UNROLL
  for (uint32_t run = 0; run < 8 / kParts; ++run) {
    __m256i pairs[kTokens][kParts / 2];
    __m256i before[kTokens];
    SLUICE_UNROLL
    for (uint32_t i = 0; i < kParts; ++i) {
      const uint32_t g = run * kParts + i;
      const GridCodes codes = Block::Codes(block, signs, g);
      SLUICE_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) {
        const __m256i values =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x[t].codes + first + 32 * g));
        const __m256i with_signs = _mm256_sub_epi8(_mm256_xor_si256(values, codes.masks), codes.masks);
        const __m256i words = _mm256_maddubs_epi16(codes.magnitudes, with_signs);
        if (i % 2 == 0) {
          before[t] = words;
        } else {
          pairs[t][i / 2] = FoldPair(before[t], words);
        }
      }
    }
    const __m256i factors = Block::Factors(block, 8 * run);
    const __m256 scales = _mm256_mul_ps(
        d, _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(factors, factors), _mm256_set1_epi32(1))));
    SLUICE_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      lanes[t] = _mm256_fmadd_ps(
          _mm256_mul_ps(scales, _mm256_loadu_ps(x[t].scales + first / Block::kGroup + 8 * run)),
          _mm256_cvtepi32_ps(SumsOfGroups<Block::kGroup>(pairs[t])), lanes[t]);
    }
  }
}

template <class Block, uint32_t kTokens>
SLUICE_INLINE void GridDotRow(const QuantDotCall& call, uint32_t r, uint32_t t, StreamAhead ahead,
                              LinesAhead* lines) {
  __m256 lanes[kTokens];
  SLUICE_UNROLL
  for (uint32_t i = 0; i < kTokens; ++i) {
    lanes[i] = _mm256_setzero_ps();
  }
  const uint8_t* block = call.w[r];
  for (uint32_t first = 0; first < call.shape.cols; first += 256, block += Block::kBytes) {
    ahead.Step();
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
  const bool near = StreamAhead::Suits(call);
  for (uint32_t r = 0; r < call.rows; ++r) {
    LinesAhead lines;
    if (call.fetch != nullptr) {
      call.fetch->Start(call.fetch_lines, steps, &lines);
    } else if (!near && KindOf(call.prefetch) != Prefetch::kNone) {
      lines = LinesWhile<1>(call, r, steps);
    }
    uint32_t t = 0;
    for (; t + kGridTokens <= call.tokens; t += kGridTokens) {
      GridDotRow<Block, kGridTokens>(call, r, t, {call.w[r], call.shape.bytes, steps, near && t == 0},
                                     &lines);
      lines = {};
    }
    for (; t < call.tokens; ++t) {
      GridDotRow<Block, 1>(call, r, t, {call.w[r], call.shape.bytes, steps, near && t == 0}, &lines);
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
