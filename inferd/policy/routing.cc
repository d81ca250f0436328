#include "inferd/policy/routing.h"

namespace sluice {

absl::Status TopKRouting::Choose(const RoutingInput& input, Queue* queue) {
  RouterArgs args;
  args.logits = input.scores;
  args.tokens = input.tokens;
  args.experts = input.moe->experts;
  args.kind = input.moe->router;
  args.top_k = input.moe->top_k;
  args.norm_topk_prob = input.moe->norm_topk_prob;
  args.routed_scale = input.moe->routed_scale;
  args.ids = input.ids;
  args.weights = input.weights;
  return queue->Router(args);
}

std::unique_ptr<RoutingPolicy> MakeRouting(const Policies& policies) {
  switch (policies.routing) {
    case RoutingKind::kTopK:
      break;
  }
  return std::make_unique<TopKRouting>();
}

}  // namespace sluice
