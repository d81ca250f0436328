// Which policies an engine runs with.
//
// Thread safety: a free function, safe to call from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/engine/parts/engine_options.h"
#include "inferd/policy/preset/preset.h"
#include "pack/pack.h"

namespace sluice {

struct PolicyChoice {
  Policies policies;
  std::vector<std::string> reasons;  // why the preset `auto` chose them; empty for others
};

// The preset's; `auto` decides by what the options, the machine (which is measured for some tenths of a
// second) and the pack's profile say. Errors of PoliciesOf.
absl::StatusOr<PolicyChoice> ChoosePoliciesFor(const EngineOptions& options, const Pack& pack);

}  // namespace sluice
