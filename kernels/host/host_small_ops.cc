// Combine and TopLogits.
#include <algorithm>
#include <cmath>

#include "kernels/host/host_backend.h"
#include "kernels/host/simd/best.h"

namespace sluice {
using host::Best;

void HostBackend::Run(const CombineCall& call) {
  RunTiles(call.tokens, uint64_t{call.tokens} * call.hidden * (call.top_k + 1), [&](uint32_t t, uint32_t) {
    host::CombineRowsCall combine;
    combine.rows = call.y.Row(uint64_t{t} * call.top_k);
    combine.stride = call.y.stride;
    combine.weights = call.weights == nullptr ? nullptr : call.weights + uint64_t{t} * call.top_k;
    combine.ranks = call.top_k;
    combine.scale = call.scale;
    combine.residual = call.residual.Row(t);
    combine.cols = call.hidden;
    combine.out = call.out.Row(t);
    kernels_.combine(combine);
  });
}

void HostBackend::Run(const TopLogitsCall& call) {
  // Most runs of this many logits hold nothing better than the k-th so far: one vector pass rejects them.
  constexpr uint32_t kRun = 256;
  RunTiles(call.tokens, uint64_t{call.tokens} * call.vocab * 8, [&](uint32_t t, uint32_t) {
    const float* logits = call.logits.Row(t);
    float* values = call.values + uint64_t{t} * call.k;
    Best best(call.k, call.ids + uint64_t{t} * call.k, values);
    for (uint32_t first = 0; first < call.vocab; first += kRun) {
      const uint32_t n = std::min(kRun, call.vocab - first);
      if (!best.Wants(kernels_.largest(logits + first, n))) {
        continue;
      }
      for (uint32_t i = 0; i < n; ++i) {
        best.Offer(static_cast<int32_t>(first + i), logits[first + i]);
      }
    }
    if (call.log_sum_exp != nullptr) {
      const float sum = kernels_.exp_sum(logits, values[0], call.vocab, nullptr);
      call.log_sum_exp[t] = static_cast<float>(double{values[0]} + std::log(double{sum}));
    }
  });
}

}  // namespace sluice
