// Routing policies: router scores and the residency view become the experts of each token.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#ifndef SLUICE_INFERD_POLICY_ROUTING_H_
#define SLUICE_INFERD_POLICY_ROUTING_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "inferd/dense_tensors.h"
#include "inferd/policy/preset.h"
#include "inferd/residency/residency.h"
#include "kernels/backend.h"

namespace sluice {

// The arguments that a layer's configuration and dense tensors decide: everything but tokens, scores, places
// of the results and whether the shared expert takes a rank.
RouterArgs ModelRouterArgs(const MoeConfig& moe, const LayerWeights& weights);

struct RoutingInput {
  uint32_t layer = 0;
  // The model's own choice, ready to run: ranks [tokens, top_k], and one of the shared expert if there is
  // one; ids and weights host-visible. A policy may leave a routed rank out by a weight of 0.
  RouterArgs model;
  const ResidencyView* residency = nullptr;
};

class RoutingPolicy {
 public:
  virtual ~RoutingPolicy() = default;
  // Fills ids and weights; they are read once the queue has run.
  virtual absl::Status Choose(const RoutingInput& input, Queue* queue) = 0;
};

// The model's own choice.
class TopKRouting final : public RoutingPolicy {
 public:
  absl::Status Choose(const RoutingInput& input, Queue* queue) override;
};

std::unique_ptr<RoutingPolicy> MakeRouting(const Policies& policies);

}  // namespace sluice

#endif  // SLUICE_INFERD_POLICY_ROUTING_H_
