// Runs a plan of presets through the daemons, one after the other, and collects the measurements.
//
// Thread safety: thread-compatible; the threads of a run end before it returns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/daemon_options.h"
#include "lab/preset_report.h"
#include "lab/work_packs.h"

namespace sluice::cli {

struct PresetBenchOptions {
  CommonOptions common;  // shared by all rows; `pack` may be empty if every row names its own
  PackWork work;
  std::string text;  // path of a file for prompts and perplexity; empty: random prompts
  uint64_t prompt = 64;
  uint64_t generate = 64;
  std::vector<uint64_t> batches = {1, 3};
  uint64_t repetitions = 3;
  double temperature = 1;
  uint64_t quality_tokens = 1024;  // of the text; 0: no perplexity
  std::string scratch;             // folder for the base run
};

// Returns results by row. A row that failed, or whose policies this build, device or pack refuses, has the
// reason in its result. Errors: CANCELLED; errors of packs and text; errors of the first row.
absl::StatusOr<std::vector<PresetResult>> RunPresets(const CommandContext& context,
                                                     const PresetBenchOptions& options,
                                                     const PresetPlan& plan);

}  // namespace sluice::cli
