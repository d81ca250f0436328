// A model as sizes: what its pack stores and what a token reads, for each way to store it. From a pack, or
// from a description without any weights.
//
// Thread safety: plain values and free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/encoding.h"
#include "common/model/model_config.h"
#include "weightd/dram/dram_default.h"

namespace sluice::cli {

// One way to store a model. Bytes.
struct StoredSizes {
  std::string bits;  // "q4"; of a pack what its options say
  WeightSizes weights;
  uint64_t dense_read = 0;             // by a token: all but embeddings that are only looked up
  uint64_t routed_read = 0;            // by a token: its experts of all layers
  EncodingDescriptor dense_encoding;   // of most dense rows
  EncodingDescriptor expert_encoding;  // of most experts' up rows

  uint64_t experts() const { return weights.all - weights.dense; }
};

struct ModelFacts {
  std::string name;
  ModelConfig config;
  bool is_pack = false;
  // Of a pack one, else of each of `bits`.
  std::vector<StoredSizes> stored;
  // How often each routed expert is chosen, [layer][expert]; empty: not known, taken as even.
  std::vector<std::vector<uint64_t>> usage;
  // A file on the model's disk to be read for a measurement; empty: none is large enough.
  std::string large_file;
};

// `path`: a pack, a model's folder, a config.json, or a GGUF file of which the head is enough. `bits`: words
// of
// --bits. Errors of Pack::Open and ReadModelConfig; NOT_FOUND.
absl::StatusOr<ModelFacts> ReadModelFacts(const std::string& path, const std::vector<std::string>& bits);

// Of a model that is packed with these bits.
absl::StatusOr<StoredSizes> SizesOf(const ModelConfig& config, const std::string& bits);

}  // namespace sluice::cli
