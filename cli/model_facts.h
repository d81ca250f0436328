// Sizes of a model: the bytes that its pack stores and that a token reads, for each way to store it. From a
// pack, or from a description without weights.
//
// Thread safety: plain values and free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/encoding.h"
#include "common/model/model_config.h"
#include "pack/pack_format.h"
#include "pack/writer/recipe.h"
#include "weightd/store/memory_budget.h"

namespace sluice::cli {

// Sizes in bytes of a model stored in one way.
struct StoredSizes {
  std::string bits;  // "q4", "file"; for a pack the encoding of most experts' up rows
  weightd::WeightSizes weights;
  uint64_t dense_read = 0;            // per token: all but embeddings that are only looked up
  uint64_t head_read = 0;             // part of dense_read for the logits
  uint64_t routed_read = 0;           // per token: its experts of all layers
  EncodingDescriptor dense_encoding;  // of most dense rows
  ExpertFormat expert_format;         // of most experts

  uint64_t experts() const { return weights.all - weights.dense; }
};

struct ModelFacts {
  std::string name;
  ModelConfig config;
  bool is_pack = false;
  // One entry for a pack, otherwise one for each of `bits`.
  std::vector<StoredSizes> stored;
  // Uses of each routed expert, [layer][expert]; empty: unknown, assumed uniform.
  std::vector<std::vector<uint64_t>> usage;
  // A large file on the model's disk, to measure reads; empty: there is none.
  std::string large_file;
};

// Ways to store a GGUF file: rows unchanged and down rows as q8, or the same with down rows as q4.
inline constexpr char kAsInFile[] = "file";
inline constexpr char kAsInFileSmaller[] = "file-q4";

// A model that is a file counts as GGUF, whatever its name; opening refuses other files.
bool IsGgufFile(const std::string& model);

bool IsAsInFile(const std::string& bits);

// Returns the recipe for `bits`: a value of --bits, or one of the two above. INVALID_ARGUMENT.
absl::StatusOr<Recipe> RecipeOfBits(const std::string& bits);

// `path`: a pack, a model's folder, a config.json, or a GGUF file, of which the head suffices unless `bits`
// has the two words above. Errors of Pack::Open, ReadModelConfig and EstimatePack; NOT_FOUND.
absl::StatusOr<ModelFacts> ReadModelFacts(const std::string& path, const std::vector<std::string>& bits);

// Returns the sizes of a model packed with these bits.
absl::StatusOr<StoredSizes> SizesOf(const ModelConfig& config, const std::string& bits);

}  // namespace sluice::cli
