// Choice of an engine's policies.
//
// Thread safety: a free function, safe to call from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/engine/parts/engine_options.h"
#include "inferd/policy/preset/preset.h"
#include "pack/pack.h"

namespace sluice::inferd {

struct PolicyChoice {
  Policies policies;
  std::vector<std::string> reasons;  // reasons of the preset `auto`; empty for other presets
};

// Returns the preset's policies; `auto` decides by the options, the machine (measured for a few tenths of a
// second) and the pack's profile. Errors of PoliciesOf.
absl::StatusOr<PolicyChoice> ChoosePoliciesFor(const EngineOptions& options, const Pack& pack);

}  // namespace sluice::inferd
