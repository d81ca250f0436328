// Gives a backend the machine's measured break-even for computing masked experts densely
// (kernels/sparse/sparse_profile.h), for every kind of routed expert in a pack.
//
// Thread safety: a free function; called by the backend's owner, outside of a step.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "inferd/policy/preset/preset.h"
#include "kernels/backend.h"
#include "pack/pack.h"

namespace sluice::inferd {

// Reads measurements from `folder`, or makes and stores them: a few seconds for each kind of expert, once per
// machine. Returns a line for the log, empty without sparsity. Errors of LoadOrMeasureSparseSwitch; the
// backend then uses its defaults, which give the same results.
absl::StatusOr<std::string> SetUpSparseSwitches(const Pack& pack, const SparsityConfig& sparsity,
                                                const BackendLimits& limits, const std::string& folder,
                                                Backend& backend);

}  // namespace sluice::inferd
