// Packs that commands make by themselves: the options of their rows, the state of a model's files, and the
// cache.
//
// Thread safety: stated at each part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/command_line.h"
#include "pack/writer/recipe.h"

namespace sluice::cli {

// The options of `sluice pack` and `sluice synth` that say what a pack's rows are stored as.
// Thread-compatible.
struct RowOptions {
  std::optional<std::string> bits;
  std::string recipe;
  std::optional<uint64_t> group;
  std::optional<std::string> meta_bits;
  std::optional<std::string> dense_bits;
  std::optional<std::string> down_bits;
  std::string layout;
  std::optional<double> hot_share;

  RecipeOptions Words() const;
};

// `options` outlives Parse.
void DeclareRowOptions(ArgParser* parser, RowOptions* options);

// State of a model's files, compared without reading their contents.
//
// Thread safety: free functions, safe to call from any thread.

// The names, sizes and times of change of a folder's files, or of a GGUF file and the others of a split one.
// Empty if there are none.
std::string ModelState(const std::string& model);

// The packs that commands make by themselves: a model that is given as a folder or a GGUF file is packed once
// into a cache folder, and later commands take what is there.
//
// A pack's folder is NAME-BITS-KEY.pack, the key a digest of the model's path and files and
// of BITS, so that another model, a changed file or other bits get a folder of their own. Beside it lies
// NAME-BITS-KEY.lock, which whoever makes, takes or removes the pack holds meanwhile; its time of change says
// when the pack was last taken.
//
// Thread safety: thread-compatible; several processes may use one cache.

// $SLUICE_CACHE_DIR, else $XDG_CACHE_HOME/sluice, else ~/.cache/sluice; and in it `name`.
// FAILED_PRECONDITION if none of the three variables is set.
absl::StatusOr<std::string> CacheFolder(const std::string& name);
// That of the packs: "packs".
absl::StatusOr<std::string> PackCacheFolder();

struct ModelRequest {
  std::string model;                // a folder, a GGUF file (of a split one the first), or a pack
  std::optional<std::string> bits;  // what rows are stored as; none: the choice of cli/plan
  bool quiet = false;               // no progress
};

// The folder of the model's pack: `model` itself if it is one, else the cached one, made if it is not there.
// Prints the decision to stderr. Waits while another process makes the same pack.
// INVALID_ARGUMENT for bits beside a pack; RESOURCE_EXHAUSTED with the numbers where the disk is too small;
// CANCELLED (what was packed stays, to be resumed); errors of PackModel().
absl::StatusOr<std::string> PackOf(const CommandContext& context, const ModelRequest& request);

struct CachedPack {
  std::string name;  // of the folder, without ".pack"
  std::string path;
  uint64_t bytes = 0;  // on disk
  absl::Time used;
  bool complete = false;  // false: packing was interrupted, or goes on
};
// By name. Empty if there is no cache yet.
absl::StatusOr<std::vector<CachedPack>> ListCachedPacks(const std::string& folder);
// Also what an interrupted packing left. NOT_FOUND; UNAVAILABLE while it is being made.
absl::Status RemoveCachedPack(const std::string& folder, const std::string& name);

}  // namespace sluice::cli
