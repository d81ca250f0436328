// The small operations that only some families need: ARITHMETIC.md sections 2 and 4.
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"

namespace sluice {

void ReferenceBackend::Run(const HeadMatMulCall& call) {
  const uint32_t rows = call.weights.rows / call.heads;
  for (uint32_t t = 0; t < call.tokens; ++t) {
    for (uint32_t h = 0; h < call.heads; ++h) {
      const float* x = call.x.Row(t) + h * call.x_head_stride;
      float* y = call.y.Row(t) + h * call.y_head_stride;
      for (uint32_t r = 0; r < rows; ++r) {
        y[r] = reference::Dot(call.weights.encoding, call.weights.Row(h * rows + r), x, call.weights.cols);
      }
    }
  }
}

void ReferenceBackend::Run(const SigmoidGateCall& call) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    for (uint32_t c = 0; c < call.cols; ++c) {
      call.x.Row(t)[c] = call.x.Row(t)[c] * reference::Sigmoid(call.gate.Row(t)[c]);
    }
  }
}

void ReferenceBackend::Run(const ScaleRowsCall& call) {
  for (uint64_t i = 0; i < uint64_t{call.tokens} * call.ranks; ++i) {
    for (uint32_t c = 0; c < call.cols; ++c) {
      call.y.Row(i)[c] = call.weights[i] * call.x.Row(i / call.ranks)[c];
    }
  }
}

}  // namespace sluice
