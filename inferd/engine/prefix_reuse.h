// What sequences may take over of what others computed, by the engine's options and policies.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "inferd/engine/parts/engine_options.h"
#include "inferd/policy/preset/preset.h"
#include "inferd/schedule/prefix_cache.h"

namespace sluice {

struct PrefixRule {
  PrefixReuse reuse = PrefixReuse::kNone;
  std::string why;  // for the start-up log; empty where everything is reused
};

// Logits must be what they would be without reuse. Where policies treat generated tokens in a way of their
// own, or compute them with what happens to be resident, only what was computed as a prompt may serve
// prompts: prompts are computed without a loss by every policy.
PrefixRule PrefixRuleOf(const EngineOptions& options, const Policies& policies);

// Everything that K and V of a text depend on beside its tokens.
std::string PrefixIdentity(const std::string& model_id, const EngineOptions& options,
                           const Policies& policies);

}  // namespace sluice
