// The products with weight matrices: ARITHMETIC.md section 2.
#include <algorithm>
#include <vector>

#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"

namespace sluice::reference {

void Run(Device&, const MatMulCall& call) {
  std::vector<float> x(call.cols);
  for (uint32_t t = 0; t < call.tokens; ++t) {
    const float* row = call.XRow(t);
    if (call.norm.weight != nullptr) {
      NormRow(call.norm, row, call.cols, x.data());
    } else {
      std::copy(row, row + call.cols, x.data());
    }
    for (uint32_t p = 0; p < call.part_count; ++p) {
      const MatMulCallPart& part = call.parts[p];
      for (uint32_t r = 0; r < part.weights.rows; ++r) {
        float y = Dot(part.weights.encoding, part.weights.Row(r), x.data(), call.cols);
        if (part.bias != nullptr) {
          y = y + part.bias[r];
        }
        y = part.scale * y;
        if (call.residual.base != nullptr) {
          y = call.residual.Row(t)[r] + y;
        }
        part.y.Row(t)[r] = y;
      }
    }
  }
}

void Run(Device&, const HeadMatMulCall& call) {
  const uint32_t rows = call.weights.rows / call.heads;
  for (uint32_t t = 0; t < call.tokens; ++t) {
    for (uint32_t h = 0; h < call.heads; ++h) {
      const float* x = call.x.Row(t) + h * call.x_head_stride;
      float* y = call.y.Row(t) + h * call.y_head_stride;
      for (uint32_t r = 0; r < rows; ++r) {
        y[r] = Dot(call.weights.encoding, call.weights.Row(h * rows + r), x, call.weights.cols);
      }
    }
  }
}

}  // namespace sluice::reference
