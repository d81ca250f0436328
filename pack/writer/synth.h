// Synthetic packs for benchmarks: any size, random weights, given routing, written at disk speed.
//
// Thread safety: free functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "pack/writer/pack_writer.h"

namespace sluice {

// Synthetic packs of any size with random weights and a chosen routing spread, written at disk speed. For
// benchmarks.
struct SynthOptions {
  std::string shape;    // one of SynthShapeNames()
  uint32_t layers = 0;  // 0: the shape's; a flagship's (synth_flagships.h) may be fewer, not more
  // First prime of the hashes of a shape with n-grams, of which a table has 16 times as many rows; 0: the
  // shape's.
  uint64_t ngram_base = 0;
  uint32_t vocab = 0;  // 0: the shape's; at least 258 (the embedded tokenizer's bytes, BOS and EOS)
  // As the options of `sluice pack`. Recipes that use usage counts take the experts of each layer by
  // ascending id.
  RecipeOptions rows;
  // "uniform", or "zipf:S" with 0 < S <= 4: a layer's i-th most used expert is chosen about i^-S as often as
  // its first. The ranking differs from layer to layer, unless similarity is set.
  std::string routing = "uniform";
  // Share of a token's experts that the previous token used too, [0, 1), for tokens in ascending order, as in
  // greedy decoding of a synthetic pack. 0, or a share below chance: independent tokens.
  double reuse = 0;
  double similarity = 0;  // correlation of neighbouring layers' router rows, [0, 1]
  uint64_t seed = 1;
  bool force = false;
  uint32_t threads = 0;  // 0: CPUs in the affinity mask
};

std::vector<std::string> SynthShapeNames();

// Writes the pack `out_dir`. The summary's `bytes` counts all files. InvalidArgument naming the option;
// Unimplemented naming a feature of the shape that the forward pass lacks; ResourceExhausted without space.
absl::StatusOr<PackSummary> SynthesizePack(const SynthOptions& options, const std::string& out_dir,
                                           const PackingProgressFn& progress,
                                           const std::atomic<bool>* cancel);

// The model of `options.shape` with its overrides: the sizes of a real model, and, for the models of
// synth_flagships.h, its attention, router and streams too. InvalidArgument naming the option.
absl::StatusOr<ModelConfig> SynthModel(const SynthOptions& options);

}  // namespace sluice
