// Tokens without their missing experts (expert_miss proceed): a routing policy around another one, which
// changes the choice of decode rows only.
//
// An expert is available if it is resident or in flight; the layer waits for experts in flight. A token that
// misses any expert uses the experts predicted for it instead (CORM 4.2), with the router's own scores
// restricted to them and scaled to the weight of its choice; an unavailable predicted expert is loaded.
// Tokens without a prediction keep their choice, and wait.
//
// Thread safety: ProceedWith() is pure; MissRouting is thread-compatible, belongs to the engine thread and
// does not allocate after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "inferd/policy/expert_predictor.h"
#include "inferd/policy/routing.h"

namespace sluice::inferd {

// `ids` and `weights` are the routed ranks of one token, best first; a weight of 0 is a rank left out before.
// `predicted`: distinct experts, -1: none; `scores`: p of every expert. Returns true if the predicted experts
// replaced the choice; otherwise (nothing is missing, nothing was predicted) nothing changes. Ranks without
// an expert get a weight of 0.
bool ProceedWith(absl::Span<const int32_t> predicted, const float* scores, absl::Span<int32_t> ids,
                 absl::Span<float> weights, absl::FunctionRef<bool(uint32_t)> there);

class MissRouting final : public RoutingPolicy {
 public:
  struct Setup {
    std::unique_ptr<RoutingPolicy> inner;
    const ExpertPredictions* predictions = nullptr;  // null: none. Outlives the policy
    const ModelConfig* config = nullptr;
    Backend* backend = nullptr;
    uint32_t max_tokens = 0;
  };
  // UNIMPLEMENTED for routers that scale the experts' inputs, and for those whose weights are not a softmax.
  static absl::StatusOr<std::unique_ptr<MissRouting>> Create(Setup setup);

  absl::Status Choose(const RoutingInput& input, Queue* queue) override;
  absl::Status Decide(const RoutingInput& input, Queue* queue) override;
  bool KeepsResident(uint32_t layer, const StepBatch& batch) const override {
    return setup_.inner->KeepsResident(layer, batch);
  }
  void CountResident(uint32_t layer, const Routing& routing, const StepBatch& batch) override {
    setup_.inner->CountResident(layer, routing, batch);
  }
  Routing Wanted(const Routing& computed) const override;
  absl::Span<const RoutingCounters> layer_counters() const override { return setup_.inner->layer_counters(); }
  absl::Span<const uint64_t> skipped() const override { return skipped_; }

 private:
  explicit MissRouting(Setup setup);
  bool ChooseRow(const RoutingInput& input, uint32_t row, const float* scores, int32_t* ids, float* weights);
  void CountSkipped(const RoutingInput& input, const int32_t* ids, const float* weights);

  const Setup setup_;
  RouterScores scores_;
  bool changed_ = false;               // by the last Decide()
  std::vector<uint32_t> rows_;         // decode rows
  std::vector<int32_t> wanted_ids_;    // [tokens, ranks]: the original choice
  std::vector<float> wanted_weights_;  // [tokens, ranks]
  std::vector<uint8_t> left_out_;      // [most experts]: chosen for some row, and used for none
  std::vector<uint64_t> skipped_;      // by layer
};

}  // namespace sluice::inferd
