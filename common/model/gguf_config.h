// GGUF keys as the hub's config.json and tokenizer files.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/model/gguf_files.h"
#include "common/model/gguf_views.h"

namespace sluice {

// ReadGgufConfig: converts a GGUF model's keys to the config.json that the family's reader expects.
//
// Private to common/model. Thread safety: a free function.

struct GgufConfig {
  const GgufArchitecture* architecture = nullptr;
  GgufShape shape;
  std::string config_json;
  std::string generation_json;  // empty: none
  std::string chat_template;    // empty: none
};

// InvalidArgument naming a key that is missing or wrong; Unimplemented naming an unsupported setting.
absl::StatusOr<GgufConfig> ReadGgufConfig(const GgufFiles& files);

// The families of GGUF architectures: conversion of each one's keys to the config.json that its reader
// expects, and the parts that they share. Rows of the table in gguf_config.cc.
//
// Private to common/model. Thread safety: free functions, safe to call from any thread.

constexpr int64_t kMaxGgufInt = INT32_MAX;

// Typed reads of the keys of one architecture. Keeps the first error for the end; an invalid key reads as the
// lowest allowed value.
class GgufKeyReader {
 public:
  GgufKeyReader(const GgufFiles& files, const std::string& architecture)
      : files_(files), keys_(files.keys()), prefix_(architecture + ".") {}

  const GgufFiles& files() const { return files_; }
  std::string Key(const std::string& name) const { return prefix_ + name; }
  bool Has(const std::string& name) const { return keys_.Has(Key(name)); }
  bool HasTensor(const std::string& name) const { return files_.Find(name) != nullptr; }
  const absl::Status& status() const { return status_; }

  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  void Refuse(const std::string& name, const std::string& what) { Keep(keys_.Unsupported(Key(name), what)); }

  template <typename T>
  T Take(const absl::StatusOr<std::optional<T>>& value, const T& otherwise) {
    if (!value.ok()) Keep(value.status());
    return value.ok() && value->has_value() ? **value : otherwise;
  }
  uint64_t IntOr(const std::string& name, uint64_t fallback, int64_t low = 0) {
    const uint64_t otherwise = std::max<uint64_t>(fallback, static_cast<uint64_t>(low));
    return static_cast<uint64_t>(
        Take(keys_.Int(Key(name), low, kMaxGgufInt), static_cast<int64_t>(otherwise)));
  }
  uint64_t RequiredInt(const std::string& name, int64_t low = 1) {
    if (!Has(name)) Keep(keys_.Error(Key(name), "is missing"));
    return IntOr(name, 0, low);
  }
  // Reads a number for all layers, or a list of one per layer whose entries must be equal.
  uint64_t UniformInt(const std::string& name, uint64_t fallback) {
    const auto list = keys_.Ints(Key(name));
    if (!list.ok() || *list == nullptr) return IntOr(name, fallback, 1);
    const std::vector<int64_t>& values = **list;
    if (values.empty() || values[0] < 1 || values[0] > kMaxGgufInt)
      Keep(keys_.Error(Key(name), "is no such list"));
    for (const int64_t value : values) {
      if (value != values[0]) Refuse(name, "with another number in each layer");
    }
    return status_.ok() ? static_cast<uint64_t>(values[0]) : 1;
  }
  double Real(const std::string& name, double fallback) { return Take(keys_.Real(Key(name)), fallback); }
  bool Flag(const std::string& name) { return IntOr(name, 0) != 0; }
  std::string Word(const std::string& name, const std::string& fallback) {
    return Take(keys_.Text(Key(name)), fallback);
  }
  std::string Text(const std::string& key) { return Take(keys_.Text(key), std::string()); }
  uint64_t Id(const std::string& key, bool* found) {
    const int64_t id = Take(keys_.Int(key, -1, UINT32_MAX), int64_t{-1});
    *found = id >= 0;
    return static_cast<uint64_t>(id);
  }

  // Returns dimension `dim` of a layer's tensor, from the first layer that has it; 0 if none has.
  uint64_t DimOf(const std::string& module, size_t dim, uint64_t layers) const {
    for (uint64_t i = 0; i < layers; ++i) {
      const GgufTensorInfo* tensor = files_.Find(absl::StrCat("blk.", i, ".", module));
      if (tensor != nullptr && tensor->dims.size() > dim) return tensor->dims[dim];
    }
    return 0;
  }
  bool AnyLayerHas(const std::string& module, uint64_t layers) const { return DimOf(module, 0, layers) != 0; }
  bool LayerHas(uint64_t layer, const std::string& module) const {
    return HasTensor(absl::StrCat("blk.", layer, ".", module));
  }
  // Reads a list of whole numbers; empty if absent.
  std::vector<int64_t> IntList(const std::string& name) {
    const auto list = keys_.Ints(Key(name));
    if (!list.ok()) Keep(list.status());
    return list.ok() && *list != nullptr ? **list : std::vector<int64_t>();
  }
  // True if the key is there and is a list.
  bool IsList(const std::string& name) const {
    const auto list = keys_.Ints(Key(name));
    return list.ok() && *list != nullptr;
  }
  // Reads a list of numbers; empty if absent.
  std::vector<double> RealList(const std::string& name) {
    const auto list = keys_.Reals(Key(name));
    if (!list.ok()) Keep(list.status());
    return list.ok() && *list != nullptr ? **list : std::vector<double>();
  }
  // Reads the values of a small tensor; empty if absent.
  std::vector<double> Values(const std::string& name) {
    const GgufTensorInfo* tensor = files_.Find(name);
    if (tensor == nullptr) return {};
    const absl::StatusOr<std::vector<float>> values = files_.ReadSmall(*tensor);
    if (!values.ok()) Keep(values.status());
    if (!values.ok()) return {};
    for (const float value : *values) {
      if (!std::isfinite(value))
        Keep(absl::InvalidArgumentError(absl::StrCat(files_.path(), ": tensor ", name, " holds ", value)));
    }
    return {values->begin(), values->end()};
  }

 private:
  const GgufFiles& files_;
  const GgufKeys& keys_;
  const std::string prefix_;
  absl::Status status_;
};

// Numbers of the file that every family has.
struct GgufBaseConfig {
  uint64_t layers = 0;
  uint64_t blocks = 0;  // includes layers that predict further tokens
  uint64_t hidden = 0;
  uint64_t heads = 0;
  uint64_t head_dim = 0;
  uint64_t context = 0;
};

// --- Shared parts ---

// Returns rope_scaling, or null. `mscales`: the family uses these names for its attention factors.
nlohmann::json GgufRopeScaling(const GgufBaseConfig& base, double mscale_all_dim, bool mscales,
                               GgufKeyReader* q);

// Returns the members that every config has.
nlohmann::json GgufBaseJson(const char* model_type, const char* architecture, const GgufBaseConfig& base,
                            GgufKeyReader* q);

// Adds the heads of grouped attention and its rope; `kv_heads` are the heads of k and v.
void AddGgufHeads(const GgufBaseConfig& base, uint64_t kv_heads, bool mscales, GgufKeyReader* q,
                  nlohmann::json* config);
void AddGgufGrouped(const GgufBaseConfig& base, bool mscales, GgufKeyReader* q, nlohmann::json* config);
void RequireWholeHeadRope(const GgufBaseConfig& base, GgufKeyReader* q);

// Adds the counts of the experts and returns their width, which old files determine only by the tensors.
uint64_t GgufExpertWidth(const GgufBaseConfig& base, GgufKeyReader* q);
void AddGgufExperts(const char* count_name, const char* width_name, const GgufBaseConfig& base,
                    GgufKeyReader* q, nlohmann::json* config);

// Requires the gating function to be this one or absent.
void RequireGgufGating(uint64_t function, GgufKeyReader* q);

// Returns the heads of k and v from a list that has 0 for layers without attention; the other entries must be
// equal.
uint64_t GgufHeadsOfSomeLayers(const GgufBaseConfig& base, GgufKeyReader* q);

// Returns the layers that have a dense FFN and no router.
nlohmann::json GgufDenseLayers(const GgufBaseConfig& base, const GgufKeyReader& q);
// Returns the number of those layers, which must be the first ones.
uint64_t GgufLeadingDenseLayers(const GgufBaseConfig& base, GgufKeyReader* q);

// Adds mlp_layer_types by the layers' tensors.
void AddGgufMlpTypes(const GgufBaseConfig& base, const GgufKeyReader& q, nlohmann::json* config);

// Returns the layers with a window: attention.sliding_window_pattern is a list with an entry for each block,
// or the distance of the full layers, of which the first or the last of each run is one; absent: `period`.
// None without attention.sliding_window.
std::vector<bool> GgufSlidingLayers(const GgufBaseConfig& base, uint64_t period, bool full_first,
                                    GgufKeyReader* q);
// Returns layer_types of them.
nlohmann::json GgufWindowTypes(const std::vector<bool>& slides);
// Adds sliding_window and layer_types; without a window the former is null.
void AddGgufWindows(const std::vector<bool>& slides, GgufKeyReader* q, nlohmann::json* config);

// Adds DeepSeek's router: norm_topk_prob, routed_scaling_factor and the groups. `norm`: what the absence of
// expert_weights_norm means.
void AddGgufRouter(bool norm, GgufKeyReader* q, nlohmann::json* config);
// Adds the members of DeepSeek's experts, shared expert and dense first layers.
void AddGgufDeepseekMixture(const GgufBaseConfig& base, GgufKeyReader* q, nlohmann::json* config);
// Adds the sizes of latent attention. Since 2025 the lengths without _mla are those of the absorbed form.
void AddGgufLatent(const GgufBaseConfig& base, GgufKeyReader* q, nlohmann::json* config);

// --- Families ---

using GgufConfigReader = nlohmann::json (*)(const GgufBaseConfig& base, GgufKeyReader* q);

nlohmann::json ReadGgufMixtral(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufQwen2Moe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufQwen3Moe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufQwen3VlMoe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufOlmoe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufGraniteMoe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufPhimoe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufGptOss(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufHunyuanMoe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufLlama4(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufMinimaxM2(const GgufBaseConfig& base, GgufKeyReader* q);

nlohmann::json ReadGgufGlm4Moe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufDeepseek(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufDeepseek2(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufMistral4(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufDots1(const GgufBaseConfig& base, GgufKeyReader* q);

nlohmann::json ReadGgufErnie45Moe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufAfmoe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufLfm2Moe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufGemma4(const GgufBaseConfig& base, GgufKeyReader* q);

// gguf_families_grouped.cc
nlohmann::json ReadGgufHyV3(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufExaoneMoe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufMellum(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufLaguna(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufCohere2Moe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufStep35(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufMimo2(const GgufBaseConfig& base, GgufKeyReader* q);

// gguf_families_indexed.cc
nlohmann::json ReadGgufMinimaxM3(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufDeepseek32(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufGlmDsa(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufDeepseek4(const GgufBaseConfig& base, GgufKeyReader* q);

// gguf_families_linear.cc
nlohmann::json ReadGgufKimiLinear(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufBailingMoe3(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufJamba(const GgufBaseConfig& base, GgufKeyReader* q);

nlohmann::json ReadGgufQwen3Next(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufQwen35Moe(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufGraniteHybrid(const GgufBaseConfig& base, GgufKeyReader* q);
nlohmann::json ReadGgufNemotronHMoe(const GgufBaseConfig& base, GgufKeyReader* q);

// GgufTokenizerFiles: a GGUF file's tokenizer converted to the hub's files: tokenizer.json for byte-level
// BPE, tokenizer.model for SentencePiece, and tokenizer_config.json.
//
// Private to common/model. Thread safety: a free function.

// Returns the files by base name; empty if the file has no tokenizer. InvalidArgument naming the key;
// Unimplemented naming an unsupported model or pre-tokenizer.
absl::StatusOr<std::map<std::string, std::string>> GgufTokenizerFiles(const GgufKeys& keys);

}  // namespace sluice
