// Experts that are not there and that a token does without (expert_miss skip and proceed): a routing policy
// around another one, which changes the choice of decode rows only.
//
// An expert is there if it is resident or on its way; what is on its way is waited for. `skip`: chosen
// experts that are not there are left out, and the others take over the weight of all. `proceed` (CORM 4.2):
// a token that misses any takes the experts that were predicted for it instead, with the router's own scores
// restricted to them and scaled to the weight that its choice had; a predicted one that is not there either
// is loaded. Tokens that nothing was predicted for keep their choice, and wait.
//
// Thread safety: the functions are pure; MissRouting is thread-compatible, belongs to the engine thread and
// does not allocate once made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "inferd/policy/predict/predictor.h"
#include "inferd/policy/routing/router_scores.h"
#include "inferd/policy/routing/routing.h"

namespace sluice {

// Of one token: `ids` and `weights` of its routed ranks, best first; a weight of 0 is a rank left out before.
// Returns how many ranks were left out. With nothing there all weights become 0.
uint32_t SkipMissing(absl::Span<const int32_t> ids, absl::Span<float> weights,
                     absl::FunctionRef<bool(uint32_t)> there);

// `predicted`: distinct experts, -1: none; `scores`: p of every expert. Returns whether the predicted ones
// were taken; if not (nothing is missing, nothing was predicted) nothing changes. Ranks without an expert get
// a weight of 0.
bool ProceedWith(absl::Span<const int32_t> predicted, const float* scores, absl::Span<int32_t> ids,
                 absl::Span<float> weights, absl::FunctionRef<bool(uint32_t)> there);

class MissRouting final : public RoutingPolicy {
 public:
  struct Setup {
    std::unique_ptr<RoutingPolicy> inner;
    bool proceed = false;                            // else skip
    const ExpertPredictions* predictions = nullptr;  // proceed; null: none. Outlives the policy
    const ModelConfig* config = nullptr;
    Backend* backend = nullptr;
    uint32_t max_tokens = 0;
  };
  // UNIMPLEMENTED for routers that scale the experts' inputs, and with `proceed` for those whose weights are
  // no softmax.
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
  std::vector<int32_t> wanted_ids_;    // [tokens, ranks]: the choice before
  std::vector<float> wanted_weights_;  // [tokens, ranks]
  std::vector<uint8_t> left_out_;      // [most experts]: chosen for some row, and used for none
  std::vector<uint64_t> skipped_;      // by layer
};

}  // namespace sluice
