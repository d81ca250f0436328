// Selects the files of a repository that make a model for `--model`.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/hub/hub_listing.h"

namespace sluice::cli {

struct FileChoice {
  // To be fetched in this order: the last makes what lies there a model.
  std::vector<HubFile> files;
  // Argument of `--model`, relative to the folder; empty for the folder itself.
  std::string model;
  // False for a single file that is no model.
  bool is_model = true;
};

// `wanted` empty: the safetensors in the repository's root with config and tokenizer, else its only GGUF
// model. Else the file of this path, or the only GGUF model whose name contains `wanted` in any case
// ("q4_k_m"); of a split GGUF model all parts. NOT_FOUND or INVALID_ARGUMENT naming what there is.
absl::StatusOr<FileChoice> ChooseFiles(const std::vector<HubFile>& files, const std::string& wanted);

}  // namespace sluice::cli
