// The tile operations of AMX (tile, int8). Included by kernels_amx.cc only. Eight tiles: 0 to 3 of sums, 4
// and 5 of tokens' bytes, 6 and 7 of codes. They are inline assembly, because the compiler's intrinsics
// accept only literal digits for a tile.
//
// Thread safety: tiles are the calling thread's. The system must have allowed the process their use
// (cpu_isa.cc).

#ifndef SLUICE_ISA
#error "included by kernels_amx.cc only"
#endif

// Configures the tiles for `bytes` of each token (a multiple of 4, at most 64) and as many bytes of codes.
inline void TileBegin(uint32_t bytes) {
  struct alignas(64) {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  static_assert(sizeof config == 64);
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = tile == 4 || tile == 5 ? static_cast<uint16_t>(bytes) : 64;
    config.rows[tile] = tile >= 6 ? static_cast<uint8_t>(bytes / 4) : 16;
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
}

// Releases the tiles: a thread without them is cheaper to switch.
inline void TileEnd() { asm volatile("tilerelease"); }

template <int kTile>
SLUICE_INLINE void TileLoad(const void* p, uint64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
SLUICE_INLINE void TileStore(void* p, uint64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
SLUICE_INLINE void TileZero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// kSums += kTokens (signed bytes) times kCodes (unsigned): lane [i][j] gets the products of four neighbouring
// bytes of row i of the tokens with those of column j of the codes, of all rows of the codes.
template <int kSums, int kTokens, int kCodes>
SLUICE_INLINE void TileAddProducts() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kTokens), "i"(kCodes));
}
