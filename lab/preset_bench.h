// Runs a plan of presets through the daemons, one after the other, and collects what they measured.
//
// Thread safety: thread-compatible; each run uses threads of its own and has ended them when it returns.
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
  CommonOptions common;  // what all rows share; `pack` may be empty if every row names its own
  PackWork work;
  std::string text;  // file: prompts come from it, and perplexity is measured on it; empty: random prompts
  uint64_t prompt = 64;
  uint64_t generate = 64;
  std::vector<uint64_t> batches = {1, 3};
  uint64_t repetitions = 3;
  double temperature = 1;
  uint64_t quality_tokens = 1024;  // of the text; 0: no perplexity
  std::string scratch;             // a folder for the base run
};

// Results by row. A row whose policies this build, device or pack refuses, or that failed, says why in its
// result. Errors: CANCELLED; of packs and text; of the first row.
absl::StatusOr<std::vector<PresetResult>> RunPresets(const CommandContext& context,
                                                     const PresetBenchOptions& options,
                                                     const PresetPlan& plan);

}  // namespace sluice::cli
