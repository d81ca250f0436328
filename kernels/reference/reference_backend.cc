#include "kernels/reference/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/reference/scalar.h"
#include "pack/row_layout.h"

namespace sluice {

using reference::LaneSum;

void ReferenceBackend::Run(const EmbedCall& call) {
  const EncodingDescriptor& d = call.table.encoding;
  for (size_t t = 0; t < call.ids.size(); ++t) {
    const uint8_t* row = call.table.Row(static_cast<uint32_t>(call.ids[t]));
    float* y = call.y.Row(t);
    for (uint32_t k = 0; k < call.table.cols; ++k) {
      float value = 0;
      if (IsQuantized(d.encoding)) {
        const uint64_t group = k / d.group;
        value = (static_cast<float>(reference::CodeAt(d, row, call.table.cols, k)) -
                 reference::ZeroAt(d, row, call.table.cols, group)) *
                reference::ScaleAt(d, row, call.table.cols, group);
      } else {
        value = reference::PlainValue(d.encoding, row, k);
      }
      y[k] = call.scale * value;
    }
  }
}

void ReferenceBackend::Run(const NormCall& call) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    reference::NormRow(call.norm, call.x.Row(t), call.cols, call.y.Row(t));
  }
}

void ReferenceBackend::Run(const MatMulCall& call) {
  std::vector<float> x(call.cols);
  for (uint32_t t = 0; t < call.tokens; ++t) {
    const float* row = call.XRow(t);
    if (call.norm.weight != nullptr) {
      reference::NormRow(call.norm, row, call.cols, x.data());
    } else {
      std::copy(row, row + call.cols, x.data());
    }
    for (uint32_t p = 0; p < call.part_count; ++p) {
      const MatMulCallPart& part = call.parts[p];
      for (uint32_t r = 0; r < part.weights.rows; ++r) {
        float y = reference::Dot(part.weights.encoding, part.weights.Row(r), x.data(), call.cols);
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

void ReferenceBackend::Run(const CombineCall& call) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    for (uint32_t h = 0; h < call.hidden; ++h) {
      float a = 0;
      for (uint32_t k = 0; k < call.top_k; ++k) {
        const uint64_t slot = uint64_t{t} * call.top_k + k;
        const float weight = call.weights == nullptr ? 1.0f : call.weights[slot];
        if (weight != 0) {
          a = std::fma(weight, call.y.Row(slot)[h], a);
        }
      }
      call.out.Row(t)[h] = call.residual.Row(t)[h] + call.scale * (a + 0.0f);
    }
  }
}

void ReferenceBackend::Run(const TopLogitsCall& call) {
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
        sum.Add(i, reference::Exp(logits[i] - largest));
      }
      call.log_sum_exp[t] = static_cast<float>(double{largest} + std::log(double{sum.Total()}));
    }
  }
}

absl::StatusOr<std::unique_ptr<Backend>> CreateReferenceBackend(const BackendLimits& limits) {
  return std::make_unique<ReferenceBackend>(limits);
}

}  // namespace sluice
