// `sluice-lab quality`: what compression and sparsity cost, as a table, over many packs and runs in one call.
// Finished runs are kept, so that an interrupted call goes on where it was.
//
// Thread safety: a free function; it runs commands of `sluice`.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"

namespace sluice::cli {

// Runs the command with the words behind its name, and returns the program's exit code.
int RunQuality(const CommandContext& context, const std::vector<std::string>& args);

}  // namespace sluice::cli
