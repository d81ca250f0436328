// Packs that commands make automatically: the options for their rows, the state of a model's files, and the
// cache.
//
// Thread safety: stated at each part.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/command_line.h"
#include "pack/writer/pack_writer.h"
#include "pack/writer/recipe.h"

namespace sluice::cli {

// Options of `sluice pack` and `sluice synth` for the encodings of a pack's rows. Thread-compatible.
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

// `options` must outlive Parse.
void DeclareRowOptions(ArgParser* parser, RowOptions* options);

// Parses the model's tokenizer and chat template as a server does at its start, so that a pack is not written
// in vain: the tokenizer's error, naming `model`; a template that is not supported is only warned of on
// stderr, since requests without one are served.
absl::Status CheckModelTexts(const std::string& model,
                             const std::map<std::string, std::string>& tokenizer_files,
                             const std::string& chat_template);

// State of a model's files, compared without reading their contents.
//
// Thread safety: free functions, safe to call from any thread.

// Returns names, sizes and modification times of the files of a folder, or of all parts of a GGUF model.
// Empty if there are none.
std::string ModelState(const std::string& model);

// Cache of packs: a model given as a folder or GGUF file is packed once, and later commands reuse the pack.
//
// A GGUF file is served in place (pack/in_place) unless bits are asked for or it was packed before; its index
// stands in the cache like a pack, with BITS "in-place".
//
// A pack's folder is NAME-BITS-KEY.pack, where the key is a digest of BITS and of the model's path and files;
// so another model, changed files or other bits get another folder. The lock file NAME-BITS-KEY.lock is held
// while the pack is made, opened or removed; its modification time is the time of the last use.
//
// Thread safety: thread-compatible; several processes may use one cache.

// Returns the folder `name` within $SLUICE_CACHE_DIR, else $XDG_CACHE_HOME/sluice, else ~/.cache/sluice.
// FAILED_PRECONDITION if none of the variables is set.
absl::StatusOr<std::string> CacheFolder(const std::string& name);
// Returns CacheFolder("packs").
absl::StatusOr<std::string> PackCacheFolder();

struct ModelRequest {
  std::string model;                // a folder, a GGUF file (the first part of a split one), or a pack
  std::optional<std::string> bits;  // encoding of the rows; none: chosen as in `sluice plan`
  bool quiet = false;               // no progress
};

// Returns the folder of the model's pack or index: `model` itself if it is one, else the cached one, made if
// missing.
// Prints the decision to stderr. Waits while another process makes the same pack. INVALID_ARGUMENT if `bits`
// is set for a pack; RESOURCE_EXHAUSTED with the numbers if the disk is too small; CANCELLED (finished work
// is kept and resumed later); errors of PackModel().
absl::StatusOr<std::string> PackOf(const CommandContext& context, const ModelRequest& request);

struct CachedPack {
  std::string name;  // the folder's name without ".pack"
  std::string path;
  uint64_t bytes = 0;  // on disk
  absl::Time used;
  bool complete = false;  // false: packing was interrupted, or is running
};
// Sorted by name. Empty if there is no cache yet.
absl::StatusOr<std::vector<CachedPack>> ListCachedPacks(const std::string& folder);
// Also removes the rest of an interrupted conversion. NOT_FOUND; UNAVAILABLE while the pack is being made.
absl::Status RemoveCachedPack(const std::string& folder, const std::string& name);

}  // namespace sluice::cli
