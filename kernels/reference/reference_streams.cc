// ARITHMETIC.md section 11: residual streams.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference_backend.h"
#include "kernels/reference/scalar.h"

namespace sluice::reference {

void Run(Device&, const StreamMixCall& call) {
  const uint64_t cols = uint64_t{call.streams} * call.hidden;
  for (uint32_t t = 0; t < call.tokens; ++t) {
    const float* x = call.x.Row(t);
    LaneSum squares;
    for (uint64_t k = 0; k < cols; ++k) {
      squares.AddProduct(k, x[k], x[k]);
    }
    const float r = 1.0f / std::sqrt(squares.Total() / static_cast<float>(cols) + call.norm_epsilon);
    float pre[kMaxStreams];
    MakeStreamFactors(call, call.raw.Row(t), r, Exp, pre,
                      call.iterations > 0 ? call.factors.Row(t) : nullptr);
    for (uint32_t c = 0; c < call.hidden; ++c) {
      float sum = 0;
      for (uint32_t i = 0; i < call.streams; ++i) {
        sum = std::fma(x[uint64_t{i} * call.hidden + c], pre[i], sum);
      }
      call.y.Row(t)[c] = sum;
    }
  }
}

void Run(Device&, const StreamWriteCall& call) {
  const uint32_t m = call.streams;
  for (uint32_t t = 0; t < call.tokens; ++t) {
    const std::vector<float> x(call.x.Row(t), call.x.Row(t) + uint64_t{m} * call.hidden);
    const float* post = call.factors.Row(t);
    const float* matrix = post + m;
    for (uint32_t j = 0; j < m; ++j) {
      for (uint32_t c = 0; c < call.hidden; ++c) {
        float sum = 0;
        for (uint32_t i = 0; i < m; ++i) {
          sum = std::fma(x[uint64_t{i} * call.hidden + c], matrix[i * m + j], sum);
        }
        call.out.Row(t)[uint64_t{j} * call.hidden + c] = std::fma(call.y.Row(t)[c], post[j], sum);
      }
    }
  }
}

void Run(Device&, const StreamMeanCall& call) {
  const float share = 1.0f / static_cast<float>(call.streams);
  for (uint32_t t = 0; t < call.tokens; ++t) {
    for (uint32_t c = 0; c < call.hidden; ++c) {
      float sum = 0;
      for (uint32_t i = 0; i < call.streams; ++i) {
        const uint64_t k = uint64_t{i} * call.hidden + c;
        sum = sum + call.x.Row(t)[k] * Sigmoid(call.gate.Row(t)[k]);
      }
      call.y.Row(t)[c] = share * sum;
    }
  }
}

void Run(Device&, const StreamAddCall& call) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    for (uint32_t i = 0; i < call.streams; ++i) {
      const float factor = call.scale * Sigmoid(call.gate.Row(t)[i]);
      for (uint32_t c = 0; c < call.hidden; ++c) {
        const uint64_t k = uint64_t{i} * call.hidden + c;
        call.out.Row(t)[k] =
            std::fma(call.y.Row(t)[c], factor, call.x.base == nullptr ? 0.0f : call.x.Row(t)[k]);
      }
    }
  }
}

void Run(Device&, const StreamMatchCall& call) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    for (uint32_t i = 0; i < call.streams; ++i) {
      LaneSum dot;
      for (uint32_t c = 0; c < call.hidden; ++c) {
        const uint64_t k = uint64_t{i} * call.hidden + c;
        dot.AddProduct(c, call.x.Row(t)[k], call.y.Row(t)[k]);
      }
      call.out.Row(t)[i] = SignedRoot(dot.Total() * call.scale);
    }
  }
}

}  // namespace sluice::reference
