// Packs for a comparison (`sluice-lab quality`, `sluice-lab --rows`): made from a model and calibrated once
// in a work folder; a later call with the same arguments, model and text reuses them.
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
  std::string model;        // a folder, as for `sluice pack`
  std::string work;         // folder for packs and results
  std::string calibration;  // a text file, for packs that are calibrated
  std::optional<uint64_t> calibration_tokens;
  bool whole_profile = false;  // also sensitivities and predictors, not only usage and thresholds
};

// Returns 32 hex digits that identify the text.
std::string DigestName(const std::string& text);
// Returns a text file's path and a digest of its content. Errors of ReadWholeFile().
absl::StatusOr<std::string> TextIdentity(const std::string& path);

// Makes the folder and its parents if missing. Errors name it.
absl::Status MakeFolder(const std::string& path);

// Returns the folder of the pack `name` of `packs`, made and calibrated if missing. Errors of the commands;
// NOT_FOUND.
absl::StatusOr<std::string> EnsurePack(const CommandContext& context, const PackWork& work,
                                       const std::vector<QualityPack>& packs, const std::string& name);

}  // namespace sluice::cli
