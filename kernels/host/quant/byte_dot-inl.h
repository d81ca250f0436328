// Dot products by bytes (byte_codes-inl.h): the sums of eight groups at a time, for groups that are made of
// whole fields. A leaf is a register of partial sums of one group, or of up to four that lie in it; leaves
// are added up in pairs, as they come, so that few are alive.

// True if rows of a kind with groups of kUnits units are multiplied this way: at least half of a block's
// fields.
template <QuantKind kKind, uint32_t kUnits>
inline constexpr bool kByBytes = kUnits > 0 && 2 * kUnits >= kByteFields<kKind>;

// KernelTable::in_halves. With AVX-512, experts of q2 lost 2 to 4 % by it.
template <QuantKind kKind>
inline constexpr bool kInHalves = kKind != QuantKind::kMxfp4 && (kNative == 8 || kKind != QuantKind::kQ2);

// Number of orders of activations: one each for planes of 8, 4 and 2 bits.
inline constexpr uint32_t kWovenOrders = 3;
template <QuantKind kKind>
inline constexpr uint32_t kOrderOf = kByteFields<kKind> / 2;
// True if the two units of a field lie split, not woven. Always for two-bit planes, whose groups of 64 need
// it.
inline constexpr bool IsSplit(uint32_t fields, uint32_t units) { return fields == 4 || units <= fields; }

// Writes `cols` codes, a multiple of kCodeAlign, in an order: for each two blocks and each field 32 bytes of
// the first block and 32 of the second.
inline void WeaveCodes(const int8_t* codes, uint32_t cols, uint32_t fields, bool split, int8_t* out) {
  const auto put = [&out](__m128i low, __m128i high) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), high);
    out += 32;
  };
  for (uint32_t k = 0; k < cols; k += 64 * fields) {
    for (uint32_t f = 0; f < fields; ++f) {
      for (uint32_t block = 0; block < 2; ++block) {
        const int8_t* unit = codes + k + block * 32 * fields + 16 * f;
        const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(unit));
        const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(unit + 16 * fields));
        split ? put(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b))
              : put(_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b));
      }
    }
  }
}

// Writes the orders that rows of a group size need; out: [kWovenOrders][cols].
inline void WeaveForGroup(const int8_t* codes, uint32_t cols, uint32_t group, int8_t* out) {
  const uint32_t units = group / 16;
  for (uint32_t order = 0; order < kWovenOrders; ++order, out += cols) {
    const uint32_t fields = 1u << order;
    if (2 * units >= fields) {
      WeaveCodes(codes, cols, fields, IsSplit(fields, units), out);
    }
  }
}

// The cut of eight groups of kUnits units into leaves.
template <QuantKind kKind, uint32_t kUnits>
struct Leaves {
  static constexpr uint32_t kFields = kByteFields<kKind>;
  static constexpr uint32_t kRegisters = 4 * kUnits / (kFields * kBlocksOfB);  // of codes, in eight groups
  static constexpr bool kHalves = 2 * kUnits == kFields;  // a register's fields are in two leaves
  static constexpr uint32_t kCount = kHalves ? 2 * kRegisters : kRegisters < 8 ? kRegisters : 8;
  static constexpr uint32_t kOfLeaf = kHalves ? 1 : kRegisters / kCount;  // registers
  static constexpr uint32_t kFieldsOfLeaf = kHalves ? kFields / 2 : kFields;
  static constexpr bool kSplit = IsSplit(kFields, kUnits);
  static_assert(kOfLeaf * kFieldsOfLeaf <= kMaxAdds<kKind>);
  // Maximum of a leaf's lane.
  static constexpr int kLargest =
      static_cast<int>(4 * kOfLeaf * kFieldsOfLeaf) * kLargestByte * kLargestCode<kKind>;
};

// The fields of register i of a run of codes.
template <QuantKind kKind, bool kSplit>
SLUICE_INLINE void FieldsAt(const GroupsAt& w, uint32_t i, B* out) {
  B bytes = BLoad(w.codes + i * sizeof(B));
  if constexpr (kSplit) {
    bytes = EvenOdd(bytes);
  }
  B third = bytes;
  if constexpr (kKind == QuantKind::kQ3) {
    third = NThirdBits(w.third, i);
  } else if constexpr (kHighBits<kKind> != 0) {
    third = NUpperBits<kKind>(w.third, i);
    if constexpr (kSplit) {
      third = EvenOdd(third);
    }
  }
  ByteFields<kKind>(bytes, third, out);
}

// Computes leaf kLeaf of each of kRows rows with each of kTokens tokens, whose codes for these groups begin
// at x.
template <QuantKind kKind, uint32_t kUnits, int kRows, int kTokens, uint32_t kLeaf>
SLUICE_INLINE void LeafOf(const GroupsAt* w, const int8_t* const* x, LinesAhead* lines, B* out) {
  using L = Leaves<kKind, kUnits>;
  SLUICE_UNROLL
  for (uint32_t i = 0; i < kFetchSteps<kKind>; ++i) {  // kFetchSteps in total
    if (i * L::kCount / kFetchSteps<kKind> == kLeaf) {
      lines->Step();
    }
  }
  constexpr uint32_t kFirst = L::kHalves ? kLeaf / 2 : kLeaf * L::kOfLeaf;
  constexpr uint32_t kFirstField = L::kHalves ? kLeaf % 2 * L::kFieldsOfLeaf : 0;
  ByteSum<kKind> sums[kRows * kTokens];
  SLUICE_UNROLL
  for (uint32_t i = kFirst; i < kFirst + L::kOfLeaf; ++i) {
    B fields[kRows][L::kFields];
    SLUICE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      FieldsAt<kKind, L::kSplit>(w[r], i, fields[r]);
    }
    SLUICE_UNROLL
    for (uint32_t f = kFirstField; f < kFirstField + L::kFieldsOfLeaf; ++f) {
      // Two blocks' bytes of a field lie together.
      const uint32_t place = (i * kBlocksOfB / 2 * L::kFields + f) * 64 + i * kBlocksOfB % 2 * 32;
      SLUICE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const B values = BLoad(x[t] + place);
        SLUICE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          ByteSum<kKind>& sum = sums[r * kTokens + t];
          i == kFirst&& f == kFirstField ? sum.Start(fields[r][f], values) : sum.Add(fields[r][f], values);
        }
      }
    }
  }
  SLUICE_UNROLL
  for (int i = 0; i < kRows * kTokens; ++i) {
    out[i] = sums[i].Total();
  }
}

// Adds two leaves from kLeaf on; each 128 bits of a sum hold two lanes of each.
template <QuantKind kKind, uint32_t kUnits, int kRows, int kTokens, uint32_t kLeaf>
SLUICE_INLINE void TwoLeaves(const GroupsAt* w, const int8_t* const* x, LinesAhead* lines, B* out) {
  B a[kRows * kTokens];
  B b[kRows * kTokens];
  LeafOf<kKind, kUnits, kRows, kTokens, kLeaf>(w, x, lines, a);
  LeafOf<kKind, kUnits, kRows, kTokens, kLeaf + 1>(w, x, lines, b);
  SLUICE_UNROLL
  for (int i = 0; i < kRows * kTokens; ++i) {
    out[i] = Leaves<kKind, kUnits>::kLargest <= 32767 ? NAddShortNeighbours(a[i], b[i])
                                                      : NAddNeighbours(a[i], b[i]);
  }
}

// Adds four leaves: one lane of each.
template <QuantKind kKind, uint32_t kUnits, int kRows, int kTokens, uint32_t kLeaf>
SLUICE_INLINE void FourLeaves(const GroupsAt* w, const int8_t* const* x, LinesAhead* lines, B* out) {
  B a[kRows * kTokens];
  B b[kRows * kTokens];
  TwoLeaves<kKind, kUnits, kRows, kTokens, kLeaf>(w, x, lines, a);
  TwoLeaves<kKind, kUnits, kRows, kTokens, kLeaf + 2>(w, x, lines, b);
  SLUICE_UNROLL
  for (int i = 0; i < kRows * kTokens; ++i) {
    out[i] = 2 * Leaves<kKind, kUnits>::kLargest <= 32767 ? NAddShortNeighbours(a[i], b[i])
                                                          : NAddNeighbours(a[i], b[i]);
  }
}

// Sums eight groups of kUnits units for kRows rows with kTokens tokens, one group in each lane of out[row *
// kTokens + token]; for q8 less kByteBias times the activations' sums.
template <QuantKind kKind, uint32_t kUnits, int kRows, int kTokens>
SLUICE_INLINE void EightGroups(const GroupsAt* w, const int8_t* const* x, LinesAhead* lines, __m256i* out) {
  constexpr uint32_t kLeaves = Leaves<kKind, kUnits>::kCount;
  B a[kRows * kTokens];
  B b[kRows * kTokens];
  if constexpr (kLeaves == 2) {
    TwoLeaves<kKind, kUnits, kRows, kTokens, 0>(w, x, lines, a);
  } else if constexpr (kLeaves == 4 && kBlocksOfB == 1) {
    TwoLeaves<kKind, kUnits, kRows, kTokens, 0>(w, x, lines, a);
    TwoLeaves<kKind, kUnits, kRows, kTokens, 2>(w, x, lines, b);
  } else {
    FourLeaves<kKind, kUnits, kRows, kTokens, 0>(w, x, lines, a);
    if constexpr (kLeaves == 8) {
      FourLeaves<kKind, kUnits, kRows, kTokens, 4>(w, x, lines, b);
    }
  }
  constexpr int kOrder = Leaves<kKind, kUnits>::kHalves                 ? 0
                         : kUnits == Leaves<kKind, kUnits>::kFields     ? 1
                         : kUnits == 2 * Leaves<kKind, kUnits>::kFields ? 2
                                                                        : 3;
  JoinLanes<kRows * kTokens, kLeaves, kOrder>(a, b, out);
}
