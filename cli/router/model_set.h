// The models of `sluice serve` with several of them: their packs, the memory that each takes, and the
// daemons' command lines.
//
// Thread safety: free functions; for the main thread, since they may print.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/command_line.h"
#include "cli/daemon_options.h"
#include "cli/router/model_router.h"

namespace sluice::cli {

// Returns the packs in `folder`, by name. NOT_FOUND: it has none.
absl::StatusOr<std::vector<std::string>> PacksIn(const std::string& folder);

// Returns the packs of a command's models, in their order; makes those that are missing (PackOf()).
absl::StatusOr<std::vector<std::string>> PacksOf(const CommandContext& context, const CommonOptions& options);

struct SetRequest {
  std::vector<std::string> packs;
  std::string runtime_dir;
  std::string binary_dir;
};

// Describes and sizes the models of `packs`, and the daemons that serve them in folders of the runtime
// directory, which it makes. Budgets that were not given: weightd's default for all packs, and the rest of
// the machine's memory for inferds; on device cuda one model at a time. INVALID_ARGUMENT: an option of one
// model, two packs of the same name or id, an invalid address; errors of Pack::Open and PlanEngine().
absl::StatusOr<RouterOptions> PlanRouter(const SetRequest& request, const CommonOptions& options);

}  // namespace sluice::cli
