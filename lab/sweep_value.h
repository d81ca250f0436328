// Options of a command that a sweep changes.
//
// Thread safety: a free function without state.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/launch/options.h"

namespace sluice::cli {

// The options with the sweep's value: an option of the daemons, a virtual cost or a policy. INVALID_ARGUMENT
// for a name that is none of these, or a value that it does not take.
absl::StatusOr<CommonOptions> WithSweepValue(const CommonOptions& options, const std::string& name,
                                             const std::string& value);

}  // namespace sluice::cli
