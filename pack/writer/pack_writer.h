// Creation of packs from a Hugging Face folder or a GGUF file: streaming, resumable, deterministic.
//
// Thread safety: free functions; two runs may not write the same folder at once (the second is refused). The
// progress callback is called from one thread at a time, not always the caller's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pack/pack_format.h"
#include "pack/writer/recipe.h"
#include "pack/writer/staging.h"

namespace sluice {

struct PackOptions {
  // Storage formats of rows; bf16 by default.
  Recipe recipe = UniformRecipe({});
  // Folder with the usage profile (a pack, or its profile/) of this source, for recipes that need one.
  std::string profile;
  // Size limit: a new dense extent begins where the current one would exceed it (one tensor is never split).
  uint64_t dense_extent_bytes = 64ull << 20;
  // Replaces the model folder's chat template; absent: the folder's own.
  std::optional<std::string> chat_template;
  // Keeps the model's MTP layers, if it has any.
  bool mtp_layers = true;
  // Allows replacing an existing pack (and nothing else: a folder that is not a pack is refused).
  bool force = false;
  // Number of threads that read and encode; 0: CPUs in the affinity mask.
  uint32_t threads = 0;
};

// Returns options with the recipe of these words (RecipeFromOptions).
absl::StatusOr<PackOptions> PackOptionsFromText(const std::string& bits, const std::string& recipe, int group,
                                                const std::string& dense_bits, const std::string& layout);

struct PackingProgress {
  const char* stage = "";   // "packing", "resuming", "finishing", "verifying", "writing"
  uint64_t bytes_done = 0;  // of the pack's payload, including those of a resumed run
  uint64_t bytes_total = 0;
  double bytes_per_second = 0;  // in this run
  double seconds_left = 0;      // 0 while the rate is unknown
};
using PackingProgressFn = std::function<void(const PackingProgress&)>;

struct PackSummary {
  std::string model_id;
  uint64_t bytes = 0;    // of all the pack's files
  uint64_t experts = 0;  // of all layers
  double seconds = 0;
  bool resumed = false;
  OldProfile old_profile = OldProfile::kNone;
};

// Size and format of an expert in the pack.
struct ExpertEstimate {
  uint32_t layer = 0;
  uint64_t bytes = 0;
  ExpertFormat format;
};

// Space and shape of a run before it starts.
struct PackEstimate {
  uint64_t payload_bytes = 0;    // dense.bin and experts.bin
  uint64_t free_bytes = 0;       // on the target's file system
  uint64_t resumable_bytes = 0;  // already present from an interrupted run
  uint64_t memory_bytes = 0;     // peak of the conversion's buffers
  std::string rows_note;         // formats chosen for a GGUF file's rows, for people; else empty
  uint64_t dense_bytes = 0;      // of the payload
  std::vector<DenseTensor> dense_tensors;
  std::vector<ExpertEstimate> experts;  // in the pack's order
  // Texts that a server parses at its start: a caller with a parser checks them before anything is written.
  std::map<std::string, std::string> tokenizer_files;  // by base name; empty: none
  std::string chat_template;                           // empty: none
};
absl::StatusOr<PackEstimate> EstimatePack(const std::string& model_dir, const std::string& out_dir,
                                          const PackOptions& options);

// Converts `model_dir` (a folder, or a file that ends in ".gguf") into the pack `out_dir`, or the folder that
// it links to. Writes `<out_dir>.partial`, resumes it if it belongs to the same source and options, and
// renames it at the end. `progress` may be empty, `cancel` null. Errors: AlreadyExists without force;
// ResourceExhausted with both numbers if space is short; InvalidArgument naming file, tensor and field for a
// bad source; Unimplemented naming an architecture or encoding; FailedPrecondition naming both digests for
// the profile of another source (known once all of it was read); Cancelled once *cancel is true (the partial
// folder stays, to be resumed).
absl::StatusOr<PackSummary> PackModel(const std::string& model_dir, const std::string& out_dir,
                                      const PackOptions& options, const PackingProgressFn& progress,
                                      const std::atomic<bool>* cancel);

// Reads everything: every digest and every checksum. DataLoss naming file or extent at the first damage.
absl::Status VerifyPack(const std::string& dir, const PackingProgressFn& progress,
                        const std::atomic<bool>* cancel);

}  // namespace sluice
