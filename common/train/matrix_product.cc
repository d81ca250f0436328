#include "common/train/matrix_product.h"

#include <cstring>

namespace sluice {
namespace {

// Four rows by sixteen columns: eight vector accumulators, two loads of b and four broadcasts of a for eight
// multiply-adds, within the sixteen registers of AVX2.
constexpr uint32_t kTileRows = 4;
constexpr uint32_t kTileCols = 16;
typedef float Vec __attribute__((vector_size(32)));
constexpr uint32_t kLanes = 8;

Vec Load(const float* from) {
  Vec v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

void Store(const Vec& v, float* to) { std::memcpy(to, &v, sizeof(v)); }

// c[4][16] += a[4][depth] * b[depth][16], the sums in registers for the whole depth. `a` has free strides, so
// that the same loop serves a transposed left side (gradients).
void Tile(uint32_t cols, uint32_t depth, const float* a, uint64_t a_row, uint64_t a_col, const float* b,
          float* c) {
  Vec sum[kTileRows][2];
  for (uint32_t i = 0; i < kTileRows; ++i) {
    sum[i][0] = Load(c + uint64_t{i} * cols);
    sum[i][1] = Load(c + uint64_t{i} * cols + kLanes);
  }
  for (uint32_t k = 0; k < depth; ++k) {
    const Vec b0 = Load(b + uint64_t{k} * cols);
    const Vec b1 = Load(b + uint64_t{k} * cols + kLanes);
    for (uint32_t i = 0; i < kTileRows; ++i) {
      const float value = a[i * a_row + k * a_col];
      sum[i][0] += value * b0;
      sum[i][1] += value * b1;
    }
  }
  for (uint32_t i = 0; i < kTileRows; ++i) {
    Store(sum[i][0], c + uint64_t{i} * cols);
    Store(sum[i][1], c + uint64_t{i} * cols + kLanes);
  }
}

// Computes the remainder at the right and at the bottom of the tiles, with the sums over k in the same order.
void Plain(uint32_t rows, uint32_t width, uint32_t cols, uint32_t depth, const float* a, uint64_t a_row,
           uint64_t a_col, const float* b, float* c) {
  for (uint32_t i = 0; i < rows; ++i) {
    for (uint32_t k = 0; k < depth; ++k) {
      const float value = a[i * a_row + k * a_col];
      for (uint32_t j = 0; j < width; ++j) c[uint64_t{i} * cols + j] += value * b[uint64_t{k} * cols + j];
    }
  }
}

}  // namespace

void AddProduct(uint32_t rows, uint32_t cols, uint32_t depth, const float* a, uint64_t a_row, uint64_t a_col,
                const float* b, float* c) {
  const uint32_t tile_cols = cols / kTileCols * kTileCols;
  for (uint32_t i = 0; i < rows; i += kTileRows) {
    const float* a_tile = a + i * a_row;
    float* c_tile = c + uint64_t{i} * cols;
    if (rows - i < kTileRows) {
      Plain(rows - i, cols, cols, depth, a_tile, a_row, a_col, b, c_tile);
      return;
    }
    for (uint32_t j = 0; j < tile_cols; j += kTileCols) {
      Tile(cols, depth, a_tile, a_row, a_col, b + j, c_tile + j);
    }
    Plain(kTileRows, cols - tile_cols, cols, depth, a_tile, a_row, a_col, b + tile_cols, c_tile + tile_cols);
  }
}

}  // namespace sluice
