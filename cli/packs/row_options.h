// The options of `sluice pack` and `sluice synth` that say what a pack's rows are stored as.
//
// Thread safety: thread-compatible; used by the main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/ui/args.h"
#include "pack/writer/recipe.h"

namespace sluice::cli {

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

}  // namespace sluice::cli
