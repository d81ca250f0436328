// Plan of `sluice-lab`: packs, runs of presets on them, and ratios between runs with their targets. `--preset
// all` makes such a plan; `--rows` reads one:
//
//   [[pack]]                                   # as in quality_rows.h; needs --model and --work
//   name = "q4"
//   args = ["--bits", "q4"]
//   calibrate = true
//
//   [[row]]
//   name = "adapmoe, without gating"           # the first row is the base of shares and of KL divergence
//   pack = "q4"                                # without: --pack
//   preset = "adapmoe"
//   options = ["--policy", "routing=topk"]     # of the daemons
//
//   [[ratio]]
//   name = "all of AdapMoE over its base"
//   row = "adapmoe"
//   of = "base"
//   metric = "tokens_per_second"               # a key of the row's JSON; this if not said
//   batch = 1                                  # this if not said
//   at_least = 1.36                            # or at_most; neither: only shown
//   paper = "1.36"
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/daemon_options.h"
#include "lab/quality_rows.h"

namespace sluice::cli {

struct PresetRow {
  std::string name;
  std::string pack;  // name of one of the plan's packs; empty: the command line's pack
  std::string preset = "exact";
  std::vector<std::string> options;
};

struct PresetRatio {
  std::string name;
  std::string row;
  std::string of;
  std::string metric = "tokens_per_second";
  uint64_t batch = 1;
  std::optional<double> at_least;
  std::optional<double> at_most;
  std::string paper;
};

struct PresetPlan {
  std::vector<QualityPack> packs;
  std::vector<PresetRow> rows;
  std::vector<PresetRatio> ratios;
};

// INVALID_ARGUMENT naming the place in the file.
absl::StatusOr<PresetPlan> ParsePresetPlan(const std::string& toml, const std::string& subject);

// Returns a row for each preset, with `resident` first as the base.
PresetPlan PlanOfPresets(const std::vector<std::string>& presets);

// An option of the daemons, a policy or a virtual cost, and its values.
struct PresetSweep {
  std::string name;
  std::vector<std::string> values;  // "25%", "0.1"
};
// Parses "device-budget=25%,50%"; INVALID_ARGUMENT: no values, or one that is not a number.
absl::StatusOr<PresetSweep> ParseSweep(const std::string& text);

// Application of a sweep's value to a command's options.
//
// Thread safety: a free function without state.

// Returns the options with the sweep's value set. INVALID_ARGUMENT for a name that is neither an option of
// the daemons, a virtual cost nor a policy, or for an invalid value.
absl::StatusOr<CommonOptions> WithSweepValue(const CommonOptions& options, const std::string& name,
                                             const std::string& value);

}  // namespace sluice::cli
