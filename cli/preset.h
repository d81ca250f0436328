// The presets of this build.
//
// Thread safety: pure functions.
#ifndef SLUICE_CLI_PRESET_H_
#define SLUICE_CLI_PRESET_H_

#include <string>

#include "absl/status/status.h"

namespace sluice::cli {

// NotFound naming those there are if `name` is none of them.
absl::Status CheckPreset(const std::string& name);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_PRESET_H_
