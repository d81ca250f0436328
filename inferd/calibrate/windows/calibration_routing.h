// Calibration windows: their routing (CalibrationRouting) and their runs through the model (WindowRunner).
// Routing is the model's choice, reduced to the best expert in one layer, or an earlier choice with weights
// from the current scores.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "inferd/policy/routing/routing.h"

namespace sluice::inferd {

// Routed experts of each token by layer, [tokens, top_k], best first; empty for a layer without experts.
using ExpertChoice = std::vector<std::vector<int32_t>>;

class CalibrationRouting final : public RoutingPolicy {
 public:
  explicit CalibrationRouting(Backend* backend) : backend_(backend) {}

  // `single_layer` uses its best expert alone, with the weight of all; -1: none. `choice` (may be null) fixes
  // the experts: a small change of the input changes weights but never swaps experts, as a derivative
  // assumes. Routers whose weights depend on more than scores (SparseMixer, scaled inputs) keep their own
  // choice. `gating` (may be null) applies to every row.
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

}  // namespace sluice::inferd
