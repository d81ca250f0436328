// Choice of an engine's policies.
//
// Thread safety: a free function, safe to call from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/forward/engine_options.h"
#include "inferd/forward/prefix_cache.h"
#include "inferd/policy/policies.h"
#include "pack/pack.h"

namespace sluice::inferd {

struct PolicyChoice {
  Policies policies;
  std::vector<std::string> reasons;  // reasons of the preset `auto`; empty for other presets
};

// FAILED_PRECONDITION naming the preset, its policy and the command, if the policies compute or hold single
// neurons and the pack's down is by outputs.
absl::Status CheckSingleNeurons(const Policies& policies, const Pack& pack);

// Returns the preset's policies; `auto` decides by the options, the machine (measured for a few tenths of a
// second) and the pack's profile. Errors of PoliciesOf and CheckSingleNeurons.
absl::StatusOr<PolicyChoice> ChoosePoliciesFor(const EngineOptions& options, const Pack& pack);

// Rules of prefix reuse between sequences, by the engine's options and policies.
//
// Thread safety: pure functions.

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
