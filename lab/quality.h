// `sluice-lab quality`: a table of what compression and sparsity cost, over many packs and runs in one call.
// Finished runs are kept, so that an interrupted call resumes.
//
// Thread safety: a free function; it runs commands of `sluice`.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"

namespace sluice::cli {

// Runs the command with the arguments behind its name; returns the exit code.
int RunQuality(const CommandContext& context, const std::vector<std::string>& args);

}  // namespace sluice::cli
