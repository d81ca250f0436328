// The comparing half of `sluice bench`: presets (`--preset all`), rows of a file, sweeps.
//
// Thread safety: thread-compatible; used by the main thread.
#ifndef SLUICE_CLI_BENCH_COMPARE_H_
#define SLUICE_CLI_BENCH_COMPARE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/launch/options.h"
#include "cli/ui/args.h"
#include "cli/ui/command.h"

namespace sluice::cli {

// What bench's own options say that a comparison shares with them; single values here.
struct CompareShape {
  std::optional<uint64_t> prompt;
  std::optional<uint64_t> generate;
  std::vector<uint64_t> batches;  // empty: 1 and 3
  std::optional<uint64_t> repetitions;
};

struct CompareOptions {
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
  // Whether any of these, or the preset "all", was given.
  bool Asked(const CommonOptions& common) const;
};

// Measures and prints; the exit code. Options that contradict each other are INVALID_ARGUMENT.
absl::StatusOr<int> ComparePresets(const CommandContext& context, const CommonOptions& common,
                                   const CompareShape& shape, const CompareOptions& options, bool json);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_BENCH_COMPARE_H_
