// Runs a command of `sluice` and takes its JSON.
//
// Thread safety: thread-compatible; the child's standard error and signals are this process's.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/ui/command.h"

namespace sluice::cli {

// Standard output of `sluice ARGS...` (give --json among them). An exit code other than 0 is an error with
// the code and words of the command, INTERNAL where it left none; CANCELLED after an interrupt.
absl::StatusOr<std::string> RunSluice(const CommandContext& context, const std::vector<std::string>& args);

}  // namespace sluice::cli
