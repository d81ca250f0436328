// Routing of calibration windows: the model's choice, cut to the best expert in one layer, or a choice made
// before with weights from the current scores.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "inferd/policy/routing/routing.h"

namespace sluice {

// By layer: the routed experts of each token, [tokens, top_k], best first; empty for a layer without.
using ExpertChoice = std::vector<std::vector<int32_t>>;

class CalibrationRouting final : public RoutingPolicy {
 public:
  explicit CalibrationRouting(Backend* backend) : backend_(backend) {}

  // `single_layer` uses its best expert alone, with the weight of all; -1: none. `choice` may be null; where
  // it is not, a small change of the input moves weights but never swaps experts, as a derivative assumes.
  // Routers whose weights do not follow from scores alone (SparseMixer, scaled inputs) keep their own choice.
  // With `gating` every row goes by that rule; it may be null.
  void Use(int single_layer, const ExpertChoice* choice, const GatingRule* gating) {
    single_layer_ = single_layer;
    choice_ = choice;
    gating_ = gating;
  }
  absl::Status Choose(const RoutingInput& input, Queue* queue) override { return topk_.Choose(input, queue); }
  absl::Status Decide(const RoutingInput& input, Queue* queue) override;

 private:
  absl::Status Keep(const RouterArgs& args, const std::vector<int32_t>& choice, Queue* queue, int32_t* ids,
                    float* weights);

  Backend* const backend_;
  TopKRouting topk_;
  int single_layer_ = -1;
  const ExpertChoice* choice_ = nullptr;
  const GatingRule* gating_ = nullptr;
  std::vector<float> scores_;  // of one token
};

}  // namespace sluice
