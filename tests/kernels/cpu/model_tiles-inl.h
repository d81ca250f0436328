// The tile operations of native_tiles-inl.h in plain code, by the instructions' own description: bytes
// outside a tile's configuration are not touched, loads clear them, and every use before a configuration is
// detected.
//
// Thread safety: tiles are the calling thread's.
#ifndef SLUICE_ISA
#error "included by tile_model.cc only"
#endif

struct ModelTiles {
  bool configured = false;
  uint32_t row_bytes[8] = {};
  uint32_t rows[8] = {};
  uint8_t bytes[8][16][64] = {};
};
inline thread_local ModelTiles model_tiles;

inline void TileBegin(uint32_t bytes) {
  model_tiles = ModelTiles{};
  model_tiles.configured = true;
  for (int tile = 0; tile < 8; ++tile) {
    model_tiles.row_bytes[tile] = tile == 4 || tile == 5 ? bytes : 64;
    model_tiles.rows[tile] = tile >= 6 ? bytes / 4 : 16;
  }
}
inline void TileEnd() { model_tiles.configured = false; }

template <int kTile>
void TileLoad(const void* p, uint64_t stride) {
  EXPECT_TRUE(model_tiles.configured);
  __builtin_memset(model_tiles.bytes[kTile], 0, sizeof model_tiles.bytes[kTile]);
  for (uint32_t row = 0; row < model_tiles.rows[kTile]; ++row) {
    __builtin_memcpy(model_tiles.bytes[kTile][row], static_cast<const uint8_t*>(p) + row * stride,
                     model_tiles.row_bytes[kTile]);
  }
}
template <int kTile>
void TileStore(void* p, uint64_t stride) {
  EXPECT_TRUE(model_tiles.configured);
  for (uint32_t row = 0; row < model_tiles.rows[kTile]; ++row) {
    __builtin_memcpy(static_cast<uint8_t*>(p) + row * stride, model_tiles.bytes[kTile][row],
                     model_tiles.row_bytes[kTile]);
  }
}
template <int kTile>
void TileZero() {
  EXPECT_TRUE(model_tiles.configured);
  __builtin_memset(model_tiles.bytes[kTile], 0, sizeof model_tiles.bytes[kTile]);
}

template <int kSums, int kTokens, int kCodes>
void TileAddProducts() {
  EXPECT_TRUE(model_tiles.configured);
  // The instruction refuses shapes that do not fit each other.
  EXPECT_TRUE(model_tiles.row_bytes[kTokens] == 4 * model_tiles.rows[kCodes] &&
              model_tiles.row_bytes[kSums] == model_tiles.row_bytes[kCodes] &&
              model_tiles.rows[kSums] == model_tiles.rows[kTokens]);
  for (uint32_t i = 0; i < model_tiles.rows[kSums]; ++i) {
    for (uint32_t j = 0; j < model_tiles.row_bytes[kSums] / 4; ++j) {
      int32_t sum = 0;
      __builtin_memcpy(&sum, &model_tiles.bytes[kSums][i][4 * j], sizeof sum);
      for (uint32_t k = 0; k < model_tiles.row_bytes[kTokens]; ++k) {
        sum += static_cast<int8_t>(model_tiles.bytes[kTokens][i][k]) *
               int32_t{model_tiles.bytes[kCodes][k / 4][4 * j + k % 4]};
      }
      __builtin_memcpy(&model_tiles.bytes[kSums][i][4 * j], &sum, sizeof sum);
    }
  }
}
