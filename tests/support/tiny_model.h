// Random Mixtral checkpoints of any shape, in the hub's file layout and both generations of it.
//
// Thread safety: free functions on plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/safetensors.h"

namespace sluice {

struct TinyModelSpec {
  uint32_t vocab = 64;
  uint32_t hidden = 32;
  uint32_t layers = 2;
  uint32_t heads = 4;
  uint32_t kv_heads = 2;
  uint32_t head_dim = 0;  // 0: hidden / heads, and config.json has null
  uint32_t experts = 4;
  uint32_t top_k = 2;
  uint32_t width = 48;  // neurons of an expert
  uint32_t sliding_window = 0;
  uint32_t max_position = 512;
  double rope_theta = 10000.0;
  bool tied = false;
  std::vector<int32_t> eos = {2};  // one id is written as a number, several as a list
  uint32_t shards = 1;             // above 1: model-0000i-of-0000n.safetensors and an index
  bool new_config = false;         // rope_parameters and dtype, as transformers 5 writes them
  bool stacked_experts = false;    // mlp.experts.gate_up_proj and down_proj
  ElementType type = ElementType::kBf16;
  uint64_t seed = 1;
};

// A tensor as float32, rounded to the spec's type already.
struct TinyTensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};
using TinyTensors = std::map<std::string, TinyTensor>;

// The tensors of a checkpoint under their hub names. Weights are normal with deviation 1/sqrt(columns), norms
// near 1; the same values whatever the sharding and the names (stacked_experts).
TinyTensors MakeTinyTensors(const TinyModelSpec& spec);

// config.json's text.
std::string TinyConfigJson(const TinyModelSpec& spec);

// A safetensors file's bytes.
std::string SafetensorsBytes(const TinyTensors& tensors, ElementType type);

// Writes config.json, generation_config.json and the tensors into `dir` (created if needed).
absl::Status WriteTinyModel(const TinyModelSpec& spec, const std::string& dir);
// The same with tensors and config of the caller's making.
absl::Status WriteModelFiles(const TinyModelSpec& spec, const TinyTensors& tensors,
                             const std::string& config_json, const std::string& dir);

}  // namespace sluice
