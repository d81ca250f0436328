// Reads the options of a running weightd.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/launch/options.h"

namespace sluice::cli {

// The options of weightd that `sluice` knows, with the values in effect, by asking the one at `socket`.
absl::StatusOr<std::vector<OptionSetting>> AskWeightd(const std::string& socket);

}  // namespace sluice::cli
