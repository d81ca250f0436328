// Router, Combine and TopLogits.
#include <algorithm>
#include <cmath>

#include "kernels/host/host_backend.h"

namespace sluice {
namespace {

// The best k of `logits` so far, best first; equal values keep the lower index in front.
class Best {
 public:
  Best(uint32_t k, int32_t* ids, float* values) : k_(k), ids_(ids), values_(values) {}

  // Offers candidates in ascending order of index.
  void Offer(int32_t id, float value) {
    if (count_ == k_ && !(value > values_[count_ - 1])) {
      return;
    }
    uint32_t place = count_ < k_ ? count_++ : k_ - 1;
    for (; place > 0 && value > values_[place - 1]; --place) {
      ids_[place] = ids_[place - 1];
      values_[place] = values_[place - 1];
    }
    ids_[place] = id;
    values_[place] = value;
  }

  // Whether a value could still enter.
  bool Wants(float value) const { return count_ < k_ || value > values_[count_ - 1]; }

 private:
  const uint32_t k_;
  int32_t* const ids_;
  float* const values_;
  uint32_t count_ = 0;
};

}  // namespace

void HostBackend::Run(const RouterCall& call) {
  RunTiles(call.tokens, uint64_t{call.tokens} * call.experts * (call.top_k + 8), [&](uint32_t t, uint32_t) {
    const float* logits = call.logits.Row(t);
    int32_t* ids = call.ids + uint64_t{t} * call.top_k;
    float* weights = call.weights + uint64_t{t} * call.top_k;
    Best best(call.top_k, ids, weights);
    for (uint32_t e = 0; e < call.experts; ++e) {
      best.Offer(static_cast<int32_t>(e), logits[e]);
    }
    const float largest = weights[0];
    const float total = kernels_.exp_sum(logits, largest, call.experts, nullptr);
    float chosen = 0;
    for (uint32_t k = 0; k < call.top_k; ++k) {
      // exp of one value: the lane sum of a single term is the term.
      weights[k] = kernels_.exp_sum(weights + k, largest, 1, nullptr) / total;
      chosen = chosen + weights[k];
    }
    for (uint32_t k = 0; k < call.top_k; ++k) {
      weights[k] = (call.norm_topk_prob ? weights[k] / chosen : weights[k]) * call.routed_scale;
    }
  });
}

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
