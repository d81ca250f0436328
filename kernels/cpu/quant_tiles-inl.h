// Sums over unpacked codes for many tokens by tiles of AMX: a tile of sixteen tokens' bytes times one of
// sixteen rows' (or columns') codes gives 256 exact sums of 64 products. The sums are used as in
// quant_gemm-inl.h and quant_many_down-inl.h, so the bits are the same.
//
// Groups of 16, 32, 64 and 128, which are whole rows of tiles: the bytes beyond a row's last group are zeros.
//
// Included by kernels_amx.cc behind a file with the tile operations (native_tiles-inl.h, or a model of
// them in tests) and a function TileBase(), the table of the kernels that few tokens take.
//
// Thread safety: pure but for the memory that the calls name and the calling thread's tiles.

#ifndef SLUICE_ISA
#error "included by kernels_*.cc only"
#endif

inline constexpr uint32_t kTileSide = 16;    // tokens, rows and columns of a tile
inline constexpr uint32_t kTileBytes = 64;   // bytes of a row of a tile
inline constexpr uint32_t kTilesAtOnce = 4;  // tiles of tokens; as many tiles of sums, 0 to 3
inline constexpr int kTokenTile = 4;         // tiles 4 and 5, in turn
inline constexpr int kCodeTile = 6;          // tiles 6 and 7: the two halves of groups of 128
inline constexpr uint32_t kTileChunk = kTilesAtOnce * kTileSide;
inline constexpr uint32_t kTileParts = kTileSide / kNative;  // registers in a row of sums

// Clears the sums (unless kAdd), then adds the products of the tiles of tokens and codes.
template <int kSums, bool kAdd>
SLUICE_INLINE void MultiplyOneTile(const void* tokens, uint64_t stride) {
  constexpr int kTokens = kTokenTile + kSums % 2;
  if constexpr (!kAdd) {
    TileZero<kSums>();
  }
  TileLoad<kTokens>(tokens, stride);
  kAdd ? TileAddProducts<kSums, kTokens, kCodeTile + 1>() : TileAddProducts<kSums, kTokens, kCodeTile>();
}

// The bytes of each tile's sixteen tokens, from `place` on.
struct TokenTiles {
  const int8_t* rows[kTilesAtOnce];
  uint64_t stride;
};

template <uint32_t kTiles, bool kAdd, uint32_t kTile = 0>
SLUICE_INLINE void MultiplyTiles(const TokenTiles& x, uint64_t place) {
  if constexpr (kTile < kTiles) {
    MultiplyOneTile<kTile, kAdd>(x.rows[kTile] + place, x.stride);
    MultiplyTiles<kTiles, kAdd, kTile + 1>(x, place);
  }
}

// sums: [tile][token][kTileSide].
template <uint32_t kTiles, uint32_t kTile = 0>
SLUICE_INLINE void StoreSums(int32_t* sums) {
  if constexpr (kTile < kTiles) {
    TileStore<static_cast<int>(kTile)>(sums + kTile * kTileSide * kTileSide, kTileSide * sizeof(int32_t));
    StoreSums<kTiles, kTile + 1>(sums);
  }
}

// Calls function.operator()<T>() for T tiles, 1 to kTilesAtOnce.
template <uint32_t T = kTilesAtOnce, class Function>
SLUICE_INLINE void WithTiles(uint32_t tiles, const Function& function) {
  if constexpr (T > 1) {
    if (tiles < T) {
      return WithTiles<T - 1>(tiles, function);
    }
  }
  function.template operator()<T>();
}

// The first token of tile `tile` of `tokens` >= kTileSide tokens: the last tile overlaps the one before it.
inline uint32_t FirstOfTile(uint32_t tile, uint32_t tokens) {
  return tile * kTileSide + kTileSide < tokens ? tile * kTileSide : tokens - kTileSide;
}
inline uint32_t TilesOf(uint32_t tokens) { return (tokens + kTileSide - 1) / kTileSide; }

// Multiplies the unpacked rows with the tokens of kTiles tiles; x: their rounded rows, by tile. totals:
// [tile][token][row].
template <uint32_t kTiles>
void MultiplyTokenTiles(const RowShape& shape, const TokenTiles& tiles, const QuantRow* const* x,
                        const UnpackedRows& w, float* totals) {
  constexpr uint32_t kTokens = kTiles * kTileSide;
  alignas(64) float lanes[kTokens][8 * kTileSide] = {};
  alignas(64) int32_t sums[kTokens * kTileSide];
  for (uint32_t g = 0; g < shape.groups; ++g) {
    const uint64_t k = uint64_t{g} * shape.group;
    TileLoad<kCodeTile>(w.codes + k / 4 * kTileSide, kTileBytes);
    MultiplyTiles<kTiles, false>(tiles, k);
    if (shape.group > kTileBytes) {
      TileLoad<kCodeTile + 1>(w.codes + (k + kTileBytes) / 4 * kTileSide, kTileBytes);
      MultiplyTiles<kTiles, true>(tiles, k + kTileBytes);
    }
    StoreSums<kTiles>(sums);
    for (uint32_t part = 0; part < kTileParts; ++part) {
      const uint32_t row = part * kNative;
      const N scales = NLoad(w.scales + uint64_t{g} * kTileSide + row);
      const N zeros = NLoad(w.zeros + uint64_t{g} * kTileSide + row);
      for (uint32_t t = 0; t < kTokens; ++t) {
        const QuantRow& of_token = x[t / kTileSide][t % kTileSide];
        float* lane = lanes[t] + g % 8 * kTileSide + row;
        const N sum = NFromInt(NIntLoad(sums + t * kTileSide + row));
        NStore(lane, AddTerm(HasMins(shape.meta), scales, zeros, NSet1(of_token.scales[g]),
                             NSet1(of_token.sums[g]), sum, NLoad(lane)));
      }
    }
  }
  for (uint32_t t = 0; t < kTokens; ++t) {
    for (uint32_t row = 0; row < kTileSide; row += kNative) {
      NStore(totals + t * kTileSide + row, TotalOfRows<kTileSide>(lanes[t] + row));
    }
  }
}

// True if rows with groups of this size are multiplied with this many tokens by tiles.
inline bool ByTiles(uint32_t tokens, uint32_t group) {
  return tokens >= kTileSide && (group & (group - 1)) == 0;
}

// Bytes from one packed token to the next: a line more than the codes, so that the same place of many tokens
// does not fall into a few sets of the cache.
inline uint64_t PackedStride(uint32_t cols) { return RoundUp(cols, kCodeAlign) + 64; }

// KernelTable::pack_quant: the tokens' codes at equal distances.
inline void PackForTiles(const QuantPackCall& call) {
  if (!ByTiles(call.tokens, call.group)) {
    return TileBase().pack_quant(call);
  }
  for (uint32_t t = 0; t < call.tokens; ++t) {
    __builtin_memcpy(call.packed + t * PackedStride(call.cols), call.x[t].codes,
                     RoundUp(call.cols, kCodeAlign));
  }
}

// Multiplies the unpacked rows, `rows` of them from r on, with all tokens.
inline void MultiplyAllTokens(const QuantDotCall& call, const UnpackedRows& unpacked, uint32_t r,
                              uint32_t rows) {
  alignas(64) float totals[kTileChunk * kTileSide];
  const uint32_t chunks = (call.tokens + kTileChunk - 1) / kTileChunk;
  for (uint32_t c = 0; c < chunks; ++c) {  // as equal as possible, so none is below a tile
    const uint32_t first = call.tokens * c / chunks;
    const uint32_t tokens = call.tokens * (c + 1) / chunks - first;
    TokenTiles tiles{};
    tiles.stride = PackedStride(call.shape.cols);
    const QuantRow* x[kTilesAtOnce];
    for (uint32_t tile = 0; tile < TilesOf(tokens); ++tile) {
      const uint32_t token = first + FirstOfTile(tile, tokens);
      tiles.rows[tile] = call.packed + token * tiles.stride;
      x[tile] = call.x + token;
    }
    WithTiles(TilesOf(tokens),
              [&]<uint32_t T>() { MultiplyTokenTiles<T>(call.shape, tiles, x, unpacked, totals); });
    for (uint32_t tile = 0; tile < TilesOf(tokens); ++tile) {
      float* const* y = call.y + first + FirstOfTile(tile, tokens);
      for (uint32_t t = 0; t < kTileSide; ++t) {
        __builtin_memcpy(y[t] + call.first + r, totals + (tile * kTileSide + t) * kTileSide,
                         rows * sizeof(float));
      }
    }
  }
}

template <QuantKind kKind>
void TileGemm(const QuantDotCall& call) {
  if (!ByTiles(call.tokens, call.shape.group)) {
    return TileBase().quant_gemm[static_cast<int>(kKind)](call);
  }
  const UnpackedRows unpacked = UnpackedIn<kTileSide>(call);
  TileBegin(call.shape.group < kTileBytes ? call.shape.group : kTileBytes);
  for (uint32_t r = 0; r < call.rows; r += kTileSide) {
    const uint32_t rows = call.rows - r < kTileSide ? call.rows - r : kTileSide;
    UnpackRows<kKind, kTileSide>(call, r, rows, unpacked);
    MultiplyAllTokens(call, unpacked, r, rows);
  }
  TileEnd();
}

// Same as SumInPasses(), for at least a tile of tokens.
inline void SumByTiles(const QuantDownCall& call, const int32_t* codes, const ManySums& m, uint32_t group,
                       uint32_t first, uint32_t tokens, uint32_t k, uint32_t units) {
  const int32_t* quads = m.quads + uint64_t{group} * kManyDownTokens * kDownQuads;
  TokenTiles x{};
  x.stride = kDownQuads * sizeof(int32_t);
  for (uint32_t tile = 0; tile < TilesOf(tokens); ++tile) {
    x.rows[tile] = reinterpret_cast<const int8_t*>(quads + FirstOfTile(tile, tokens) * kDownQuads);
  }
  for (uint32_t u = 0; u < units; ++u, k += 16) {
    alignas(64) int32_t sums[kTileChunk * kTileSide];
    TileLoad<kCodeTile>(codes + u * kDownQuads * kTileSide, kTileBytes);
    WithTiles(TilesOf(tokens), [&]<uint32_t T>() {
      MultiplyTiles<T, false>(x, 0);
      StoreSums<T>(sums);
    });
    const uint32_t n = call.shape.cols - k < 16 ? call.shape.cols - k : 16;
    for (uint32_t t = 0; t < tokens; ++t) {
      const uint32_t tile = t / kTileSide;
      const int32_t* of_token = sums + (tile * kTileSide + t - FirstOfTile(tile, tokens)) * kTileSide;
      const uint32_t place = t * kRoundGroups + group;
      NInt unit[kUnitRegisters];
      for (uint32_t r = 0; r < kUnitRegisters; ++r) {
        unit[r] = NIntLoad(of_token + r * kNative);
      }
      // Tiles multiply codes as they are, so no bias needs correction.
      FinishForMany<QuantKind::kQ8, 0>(call, unit, 0, m.scales[place], m.zero_sums[place], k, n,
                                       call.y[first + t]);
    }
  }
}

template <QuantKind kKind>
void TileDown(const QuantDownCall& call) {
  const uint32_t last = call.tokens % kManyDownTokens;
  if (call.tokens < kTileSide || (last != 0 && last < kTileSide) || call.fetch != nullptr) {
    return TileBase().quant_down[static_cast<int>(kKind)](call);
  }
  TileBegin(kTileBytes);
  ManyDownBy<kKind, kTileSide>(call, SumByTiles);
  TileEnd();
}

// Sets all kinds, since pack_quant is the same for all of them; weighted sums as in isa_table-inl.h.
template <QuantKind kKind, bool kDown>
void SetTileKernels(KernelTable* table) {
  const int i = static_cast<int>(kKind);
  table->quant_gemm[i] = TileGemm<kKind>;
  if constexpr (kDown) {
    table->quant_down[i] = TileDown<kKind>;
  }
}

inline void FileTileGemm(const QuantDotCall& call) {
  MultiplyExpanded(call, kTileSide, TileGemm<QuantKind::kQ8>);
}

inline KernelTable MakeTileTable(const char* name) {
  KernelTable table = TileBase();
  table.name = name;
  table.pack_quant = PackForTiles;
  SetTileKernels<QuantKind::kQ8, true>(&table);
  SetTileKernels<QuantKind::kQ4, true>(&table);
  SetTileKernels<QuantKind::kQ3, true>(&table);
  SetTileKernels<QuantKind::kQ2, true>(&table);
  SetTileKernels<QuantKind::kMxfp4, true>(&table);
  SetTileKernels<QuantKind::kQ5, false>(&table);
  SetTileKernels<QuantKind::kQ6, false>(&table);
  SetTileKernels<QuantKind::kIq4, false>(&table);
  table.quant_gemm[static_cast<int>(QuantKind::kFile)] = FileTileGemm;
  static_assert(kQuantKinds == 9);
  static_assert(kTileSide <= kMaxExpandedRows);
  return table;
}
