// The only matrix product that training needs.
//
// Thread safety: a pure function, safe to call from any thread.
#pragma once

#include <cstdint>

namespace sluice {

// c[i, j] += sum over k ascending of a(i, k) * b[k, j] for i < rows, j < cols, k < depth, with
// a(i, k) = a[i * a_row + k * a_col]; b and c are row-major and packed.
void AddProduct(uint32_t rows, uint32_t cols, uint32_t depth, const float* a, uint64_t a_row, uint64_t a_col,
                const float* b, float* c);

}  // namespace sluice
