// Packs that a comparison needs (`sluice-lab quality`, `sluice-lab --rows`): made from a model and calibrated
// once in a work folder; a later call with the same arguments and the same model and text takes them as they
// are.
//
// Thread safety: thread-compatible; it runs commands of `sluice`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "lab/quality_rows.h"

namespace sluice::cli {

struct PackWork {
  std::string model;        // a folder that `sluice pack` takes
  std::string work;         // where packs and results are kept
  std::string calibration;  // a text; used by packs that are calibrated
  std::optional<uint64_t> calibration_tokens;
  bool whole_profile = false;  // sensitivities and predictors too, not only usage and thresholds
};

// 32 hex digits, the same for the same text.
std::string DigestName(const std::string& text);
// A text file's path and what is in it. Errors of ReadWholeFile().
absl::StatusOr<std::string> TextIdentity(const std::string& path);

// The folder and those above it, unless they are there. Errors name it.
absl::Status MakeFolder(const std::string& path);

// The folder of the pack `name` of `packs`, made and calibrated. Errors of the commands; NOT_FOUND.
absl::StatusOr<std::string> EnsurePack(const CommandContext& context, const PackWork& work,
                                       const std::vector<QualityPack>& packs, const std::string& name);

}  // namespace sluice::cli
