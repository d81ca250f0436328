// Plan of `sluice-lab`: packs, runs of presets on them, and ratios between runs beside the marks they
// are held against. `--preset all` makes such a plan; `--rows` reads one:
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
  std::string pack;  // a name of the plan's packs; empty: the one of the command line
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

// A row for each preset, `resident` first: the base.
PresetPlan PlanOfPresets(const std::vector<std::string>& presets);

// One option of the daemons, a policy or a virtual cost, and the values it takes.
struct PresetSweep {
  std::string name;
  std::vector<std::string> values;  // "25%", "0.1"
};
// The sweep in "device-budget=25%,50%"; INVALID_ARGUMENT: nothing to sweep, or a value that is no number.
absl::StatusOr<PresetSweep> ParseSweep(const std::string& text);

// Options of a command that a sweep changes.
//
// Thread safety: a free function without state.

// The options with the sweep's value: an option of the daemons, a virtual cost or a policy. INVALID_ARGUMENT
// for a name that is none of these, or a value that it does not take.
absl::StatusOr<CommonOptions> WithSweepValue(const CommonOptions& options, const std::string& name,
                                             const std::string& value);

}  // namespace sluice::cli
