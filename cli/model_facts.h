// A model as sizes: what its pack stores and what a token reads, for each way to store it. From a pack, or
// from a description without any weights.
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

// One way to store a model. Bytes.
struct StoredSizes {
  std::string bits;  // "q4", "file"; of a pack what most experts' up rows are
  weightd::WeightSizes weights;
  uint64_t dense_read = 0;            // by a token: all but embeddings that are only looked up
  uint64_t head_read = 0;             // of these by what makes logits
  uint64_t routed_read = 0;           // by a token: its experts of all layers
  EncodingDescriptor dense_encoding;  // of most dense rows
  ExpertFormat expert_format;         // of most experts

  uint64_t experts() const { return weights.all - weights.dense; }
};

struct ModelFacts {
  std::string name;
  ModelConfig config;
  bool is_pack = false;
  // One entry for a pack, else one for each of `bits`.
  std::vector<StoredSizes> stored;
  // Frequency of each routed expert, [layer][expert]; empty: unknown, assumed uniform.
  std::vector<std::vector<uint64_t>> usage;
  // A file on the model's disk to be read for a measurement; empty: none is large enough.
  std::string large_file;
};

// Bits of a GGUF file: its rows unchanged, down rows as q8; and the same with q4 for smaller memories.
inline constexpr char kAsInFile[] = "file";
inline constexpr char kAsInFileSmaller[] = "file-q4";

// A model that is a file is a GGUF file, whatever its name; other files are refused when they are opened.
bool IsGgufFile(const std::string& model);

bool IsAsInFile(const std::string& bits);

// Recipe for `bits`: a word of --bits, or one of the two above. INVALID_ARGUMENT.
absl::StatusOr<Recipe> RecipeOfBits(const std::string& bits);

// `path`: a pack, a model's folder, a config.json, or a GGUF file of which the head is enough unless `bits`
// has the two words above. Errors of Pack::Open, ReadModelConfig and EstimatePack; NOT_FOUND.
absl::StatusOr<ModelFacts> ReadModelFacts(const std::string& path, const std::vector<std::string>& bits);

// Sizes of a model packed with these bits.
absl::StatusOr<StoredSizes> SizesOf(const ModelConfig& config, const std::string& bits);

}  // namespace sluice::cli
