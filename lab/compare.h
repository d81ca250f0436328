// Command of `sluice-lab`: runs presets (`--preset all`) or the rows of a file one after the other, sweeps an
// option over them, and prints tables, ratios and curves.
//
// Thread safety: thread-compatible; used by the main thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/daemon_options.h"

namespace sluice::cli {

struct CompareOptions {
  CommonOptions common;
  std::optional<uint64_t> prompt;
  std::optional<uint64_t> generate;
  std::optional<std::string> batches;  // "1,3"
  std::optional<uint64_t> repetitions;
  std::string rows;
  std::string text;
  std::string out;
  std::string model;
  std::string work;
  std::string calibration;
  std::optional<uint64_t> calibration_tokens;
  std::optional<uint64_t> quality_tokens;
  std::optional<double> temperature;
  std::vector<std::string> sweeps;
  bool explain = false;

  void Declare(ArgParser* parser);
};

// Measures and prints; returns the exit code. INVALID_ARGUMENT for contradictory options.
absl::StatusOr<int> ComparePresets(const CommandContext& context, const CompareOptions& options, bool json);

}  // namespace sluice::cli
