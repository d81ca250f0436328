// Rules of prefix reuse between sequences, by the engine's options and policies.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "inferd/engine/parts/engine_options.h"
#include "inferd/policy/preset/preset.h"
#include "inferd/schedule/prefix_cache.h"

namespace sluice::inferd {

struct PrefixRule {
  PrefixReuse reuse = PrefixReuse::kNone;
  std::string why;  // reason for the start-up log; empty if everything is reused
};

// Returns the rule that keeps logits equal to those without reuse. If policies treat generated tokens
// differently, or compute them with the resident experts only, just prompts may be reused, and only for
// prompts: every policy computes prompts exactly.
PrefixRule PrefixRuleOf(const EngineOptions& options, const Policies& policies);

// Returns everything that K and V of a sequence depend on besides its tokens.
std::string PrefixIdentity(const std::string& model_id, const EngineOptions& options,
                           const Policies& policies);

}  // namespace sluice::inferd
