#include "inferd/policy/routing.h"

namespace sluice {

RouterArgs ModelRouterArgs(const MoeConfig& moe, const LayerWeights& weights) {
  RouterArgs args;
  args.experts = moe.experts;
  args.kind = moe.router;
  args.top_k = moe.top_k;
  args.norm_topk_prob = moe.norm_topk_prob;
  args.routed_scale = moe.routed_scale;
  args.correction = weights.router_correction;
  args.jitter = moe.router_jitter;
  args.groups = moe.groups;
  args.top_groups = moe.top_groups;
  args.group_score = moe.group_score;
  return args;
}

absl::Status TopKRouting::Choose(const RoutingInput& input, Queue* queue) {
  return queue->Router(input.model);
}

std::unique_ptr<RoutingPolicy> MakeRouting(const Policies& policies) {
  switch (policies.routing) {
    case RoutingKind::kTopK:
    case RoutingKind::kSensitivity:  // CheckPolicies refuses the other two
    case RoutingKind::kCacheAware:
      break;
  }
  return std::make_unique<TopKRouting>();
}

}  // namespace sluice
