// Making packs: from a Hugging Face folder or a GGUF file, streaming, resumable, deterministic.
//
// Thread safety: free functions; two runs may not write the same folder at once (the second is refused). The
// progress callback is called from one thread at a time, not always the caller's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pack/pack_format.h"
#include "pack/writer/recipe.h"
#include "pack/writer/staging.h"

namespace sluice {

struct PackOptions {
  // What rows are stored as; bf16 unless said.
  Recipe recipe = UniformRecipe({});
  // Folder with the usage profile (a pack, or its profile/) of this source, for recipes that need one.
  std::string profile;
  // A new dense extent begins where the current one would pass this size (one tensor is never split).
  uint64_t dense_extent_bytes = 64ull << 20;
  // Instead of the model folder's; absent: that one.
  std::optional<std::string> chat_template;
  // Replaces an existing pack (and nothing else: a folder that is no pack is refused).
  bool force = false;
  // Threads that read and encode; 0: CPUs in the affinity mask.
  uint32_t threads = 0;
};

// Options with the recipe of these words (RecipeFromWords).
absl::StatusOr<PackOptions> PackOptionsFromWords(const std::string& bits, const std::string& recipe,
                                                 int group, const std::string& dense_bits,
                                                 const std::string& layout);

struct PackingProgress {
  const char* stage = "";   // "packing", "resuming", "finishing", "verifying", "writing"
  uint64_t bytes_done = 0;  // of the pack's payload, those of a resumed run counted
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

// An expert as the pack will have it.
struct ExpertEstimate {
  uint32_t layer = 0;
  uint64_t bytes = 0;
  ExpertFormat format;
};

// Space and shape of a run before it starts.
struct PackEstimate {
  uint64_t payload_bytes = 0;    // dense.bin and experts.bin
  uint64_t free_bytes = 0;       // on the target's file system
  uint64_t resumable_bytes = 0;  // already there from an interrupted run
  uint64_t memory_bytes = 0;     // peak of the conversion's buffers
  std::string rows_note;         // what was chosen for a GGUF file's rows, for people; else empty
  uint64_t dense_bytes = 0;      // of the payload
  std::vector<DenseTensor> dense_tensors;
  std::vector<ExpertEstimate> experts;  // in the pack's order
};
absl::StatusOr<PackEstimate> EstimatePack(const std::string& model_dir, const std::string& out_dir,
                                          const PackOptions& options);

// Converts `model_dir` (a folder, or a file that ends in ".gguf") into the pack `out_dir`, or where that
// links to. Writes `<out_dir>.partial`, resumes it if it belongs to the same source and options, and renames
// it at the end. `progress` may be empty, `cancel` null. Errors: AlreadyExists without force;
// ResourceExhausted with both numbers when space is short; InvalidArgument naming file, tensor and field for
// a bad source; Unimplemented naming an architecture or encoding; FailedPrecondition naming both digests for
// the profile of another source (known once all of it was read); Cancelled once *cancel is true (the partial
// folder stays, to be resumed).
absl::StatusOr<PackSummary> PackModel(const std::string& model_dir, const std::string& out_dir,
                                      const PackOptions& options, const PackingProgressFn& progress,
                                      const std::atomic<bool>* cancel);

// Reads everything: every digest and every checksum. DataLoss naming file or extent at the first damage.
absl::Status VerifyPack(const std::string& dir, const PackingProgressFn& progress,
                        const std::atomic<bool>* cancel);

}  // namespace sluice
