// The operations on rows of activations: Embed, Norm, OutputGate, ScaleRows, Combine, TopLogits.

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/row_lists.h"
#include "kernels/cpu/top_k.h"
#include "kernels/scalar_math.h"
#include "pack/row_layout.h"

namespace sluice::cpu {

void Run(Device& d, const EmbedCall& call) {
  const EncodingDescriptor& e = call.table.encoding;
  for (size_t t = 0; t < call.ids.size(); ++t) {
    const uint8_t* row = call.table.Row(static_cast<uint32_t>(call.ids[t]));
    float* y = call.y.Row(t);
    if (!IsQuantized(e.encoding)) {
      d.kernels.decode[RowKindOf(e.encoding)](row, call.table.cols, call.scale, y);
      continue;
    }
    d.kernels.quant_decode[QuantKindOf(e.encoding)](ShapeOf(e, call.table.cols), row, call.scale, y);
  }
}

void Run(Device& d, const NormCall& call) {
  d.tiles.Run(call.tokens, uint64_t{call.tokens} * call.cols * 2, [&](uint32_t t, uint32_t) {
    NormRow(d.kernels, call.norm, call.x.Row(t), call.cols, call.y.Row(t));
  });
}

void Run(Device& d, const OutputGateCall& call) {
  d.tiles.Run(call.tokens, uint64_t{call.tokens} * call.cols * 8, [&](uint32_t t, uint32_t worker) {
    const float* gate = call.gate.Row(t);
    float* x = call.x.Row(t);
    if (call.width == 1 && call.activation == GateActivation::kSigmoid) {
      d.kernels.sigmoid_mul(gate, call.cols, x);
      return;
    }
    float* factors = d.space.workers[worker].any;
    const uint32_t gates = call.Gates();
    if (call.activation == GateActivation::kSigmoid) {
      d.kernels.sigmoid(gate, gates, factors);
    } else {
      d.kernels.exp_sum(gate, 0.0f, gates, factors);
      for (uint32_t i = 0; i < gates; ++i) {
        factors[i] = SoftplusOf(gate[i], factors[i]);
      }
    }
    for (uint32_t i = 0; i < gates && call.width > 1; ++i) {
      float* of_gate = x + uint64_t{i} * call.width;
      d.kernels.decode[static_cast<int>(RowKind::kF32)](reinterpret_cast<const uint8_t*>(of_gate), call.width,
                                                        factors[i], of_gate);
    }
    if (call.width == 1) {
      d.kernels.multiply(x, factors, call.cols, x);
    }
  });
}

void Run(Device& d, const SoftCapCall& call) {
  d.tiles.Run(call.tokens, uint64_t{call.tokens} * call.cols * 8,
              [&](uint32_t t, uint32_t) { d.kernels.soft_cap(call.x.Row(t), call.cols, call.cap); });
}

void Run(Device& d, const ScaleRowsCall& call) {
  const uint32_t rows = call.tokens * call.ranks;
  d.tiles.Run(rows, uint64_t{rows} * call.cols * 2, [&](uint32_t i, uint32_t) {
    const float* x = call.x.Row(i / call.ranks);
    d.kernels.decode[static_cast<int>(RowKind::kF32)](reinterpret_cast<const uint8_t*>(x), call.cols,
                                                      call.weights == nullptr ? 1.0f : call.weights[i],
                                                      call.y.Row(i));
  });
}

void Run(Device& d, const CombineCall& call) {
  d.tiles.Run(call.tokens, uint64_t{call.tokens} * call.hidden * (call.top_k + 1), [&](uint32_t t, uint32_t) {
    CombineRowsCall combine;
    combine.rows = call.y.Row(uint64_t{t} * call.top_k);
    combine.stride = call.y.stride;
    combine.weights = call.weights == nullptr ? nullptr : call.weights + uint64_t{t} * call.top_k;
    combine.ranks = call.top_k;
    combine.scale = call.scale;
    combine.residual = call.residual.base == nullptr ? nullptr : call.residual.Row(t);
    combine.gain = call.gain;
    combine.cols = call.hidden;
    combine.out = call.out.Row(t);
    d.kernels.combine(combine);
  });
}

void Run(Device& d, const TopLogitsCall& call) {
  // Logits per run. Most runs hold nothing better than the k-th value so far: one vector pass rejects them.
  constexpr uint32_t kRun = 256;
  d.tiles.Run(call.tokens, uint64_t{call.tokens} * call.vocab * 8, [&](uint32_t t, uint32_t) {
    const float* logits = call.logits.Row(t);
    float* values = call.values + uint64_t{t} * call.k;
    TopK best(call.k, call.ids + uint64_t{t} * call.k, values);
    for (uint32_t first = 0; first < call.vocab; first += kRun) {
      const uint32_t n = std::min(kRun, call.vocab - first);
      if (!best.Wants(d.kernels.largest(logits + first, n))) {
        continue;
      }
      for (uint32_t i = 0; i < n; ++i) {
        best.Offer(static_cast<int32_t>(first + i), logits[first + i]);
      }
    }
    if (call.log_sum_exp != nullptr) {
      const float sum = d.kernels.exp_sum(logits, values[0], call.vocab, nullptr);
      call.log_sum_exp[t] = static_cast<float>(double{values[0]} + std::log(double{sum}));
    }
  });
}

}  // namespace sluice::cpu
