#include "kernels/reference/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/reference/scalar.h"
#include "kernels/scalar_math.h"
#include "pack/row_layout.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<Backend>> CreateReferenceBackend(const BackendLimits& limits) {
  return std::make_unique<ReferenceBackend>(limits);
}

}  // namespace sluice

// The operations on rows: ARITHMETIC.md sections 1, 5, 7 and 8.

namespace sluice::reference {

void Run(Device&, const EmbedCall& call) {
  const EncodingDescriptor& d = call.table.encoding;
  for (size_t t = 0; t < call.ids.size(); ++t) {
    const uint8_t* row = call.table.Row(static_cast<uint32_t>(call.ids[t]));
    float* y = call.y.Row(t);
    for (uint32_t k = 0; k < call.table.cols; ++k) {
      float value = 0;
      if (IsQuantized(d.encoding)) {
        value = QuantizedValue(d, row, call.table.cols, k);
      } else {
        value = PlainValue(d.encoding, row, k);
      }
      y[k] = call.scale * value;
    }
  }
}

void Run(Device&, const NormCall& call) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    NormRow(call.norm, call.x.Row(t), call.cols, call.y.Row(t));
  }
}

void Run(Device&, const OutputGateCall& call) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    for (uint32_t c = 0; c < call.cols; ++c) {
      const float gate = call.gate.Row(t)[c / call.width];
      call.x.Row(t)[c] =
          call.x.Row(t)[c] *
          (call.activation == GateActivation::kSigmoid ? Sigmoid(gate) : SoftplusOf(gate, Exp(gate)));
    }
  }
}

void Run(Device&, const SoftCapCall& call) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    for (uint32_t c = 0; c < call.cols; ++c) {
      float& x = call.x.Row(t)[c];
      x = call.cap * std::fma(2.0f, Sigmoid(x * (2.0f / call.cap)), -1.0f);
    }
  }
}

void Run(Device&, const ScaleRowsCall& call) {
  for (uint64_t i = 0; i < uint64_t{call.tokens} * call.ranks; ++i) {
    for (uint32_t c = 0; c < call.cols; ++c) {
      const float weight = call.weights == nullptr ? 1.0f : call.weights[i];
      call.y.Row(i)[c] = weight * call.x.Row(i / call.ranks)[c];
    }
  }
}

void Run(Device&, const TopLogitsCall& call) {
  std::vector<int32_t> order(call.vocab);
  for (uint32_t t = 0; t < call.tokens; ++t) {
    const float* logits = call.logits.Row(t);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    for (uint32_t k = 0; k < call.k; ++k) {
      call.ids[uint64_t{t} * call.k + k] = order[k];
      call.values[uint64_t{t} * call.k + k] = logits[order[k]];
    }
    if (call.log_sum_exp != nullptr) {
      const float largest = logits[order[0]];
      LaneSum sum;
      for (uint32_t i = 0; i < call.vocab; ++i) {
        sum.Add(i, Exp(logits[i] - largest));
      }
      call.log_sum_exp[t] = static_cast<float>(double{largest} + std::log(double{sum.Total()}));
    }
  }
}

}  // namespace sluice::reference

// The products with weight matrices: ARITHMETIC.md section 2.

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
