// A router's scores of all experts, copied to the host: p, the softmax over a layer's routed experts, which
// policies compare, and weights of a choice by the model's own rule.
//
// Thread safety: thread-compatible; belongs to the engine thread. Does not allocate after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace sluice::inferd {

class RouterScores {
 public:
  RouterScores(uint32_t most_tokens, uint32_t most_experts);

  // Queues a copy of the rows `rows` of a router's logits [tokens, experts]; Take() computes p from them,
  // once the copy is done.
  absl::Status Ask(Rows logits, uint32_t experts, absl::Span<const uint32_t> rows, Queue* queue);
  void Take();
  // Ask(), a wait, and Take().
  absl::Status Read(Rows logits, uint32_t experts, absl::Span<const uint32_t> rows, Queue* queue);

  uint32_t rows() const { return rows_; }
  // [rows, experts], packed.
  const float* data() const { return scores_.data(); }
  const float* row(uint32_t i) const { return scores_.data() + uint64_t{i} * experts_; }
  // Mean over the rows, [experts].
  absl::Span<const float> Mean();

 private:
  uint32_t rows_ = 0;
  uint32_t experts_ = 0;
  std::vector<float> scores_;
  std::vector<float> mean_;
};

// True if a router's weights are its softmax scores; policies that choose other experts rely on it.
bool WeighsBySoftmax(RouterKind kind);

// Weights of `ids` (top_k of them) by the model's rule from their own p. REQUIRES:
// WeighsBySoftmax(args.kind).
void WeighBySoftmax(const RouterArgs& args, const float* scores, const int32_t* ids, float* weights);

}  // namespace sluice::inferd
