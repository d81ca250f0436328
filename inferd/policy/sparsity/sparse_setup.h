// Gives a backend the machine's measurement of when masked experts are computed densely
// (kernels/sparse/sparse_profile.h), for every kind of routed expert that a pack has.
//
// Thread safety: a free function; the backend's owner calls it, outside of a step.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "inferd/policy/preset/preset.h"
#include "kernels/backend.h"
#include "pack/pack.h"

namespace sluice {

// Reads measurements from `folder`, or makes and keeps them: a few seconds for each kind of expert, once per
// machine. Returns a line about them for the log, empty without sparsity. Errors as
// LoadOrMeasureSparseSwitch; the backend then goes by its defaults, which give the same results.
absl::StatusOr<std::string> SetUpSparseSwitches(const Pack& pack, const SparsityConfig& sparsity,
                                                const BackendLimits& limits, const std::string& folder,
                                                Backend& backend);

}  // namespace sluice
