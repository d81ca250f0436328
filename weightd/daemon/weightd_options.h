// The command line of the weightd program: parsing and checks of its options.
//
// Thread safety: plain values; parsing belongs to main's thread.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "daemon/weightd_option_table.h"

namespace sluice::weightd {

// The parsed command line.
struct WeightdCommand {
  WeightdOptions options;
  std::optional<int> exit_code;  // set: nothing to serve (--help, --version, a usage error: already printed)
};

WeightdCommand ParseWeightdCommand(int argc, const char* const* argv);

// INVALID_ARGUMENT naming the option: values that are never valid, or not supported by this build.
absl::Status CheckWeightdOptions(const WeightdOptions& options);

}  // namespace sluice::weightd
