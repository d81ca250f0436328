// Routing policies: router scores and the residency view become the experts of each token.
//
// Thread safety: thread-compatible; belongs to the engine thread.
#ifndef SLUICE_INFERD_POLICY_ROUTING_H_
#define SLUICE_INFERD_POLICY_ROUTING_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "inferd/policy/preset.h"
#include "inferd/residency/residency.h"
#include "kernels/backend.h"

namespace sluice {

struct RoutingInput {
  uint32_t layer = 0;
  const MoeConfig* moe = nullptr;
  uint32_t tokens = 0;
  Rows scores;        // [tokens, experts], the router's logits
  BufferRef ids;      // out: int32 [tokens, top_k], host-visible
  BufferRef weights;  // out: float32 [tokens, top_k], host-visible; 0 leaves a rank out
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
