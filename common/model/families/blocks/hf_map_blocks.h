// Tensor maps that the families share: the names that most checkpoints use.
//
// Private to common/model. Thread safety: free functions; a TensorMapper is used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/families/blocks/tensor_mapper.h"
#include "common/model/model_config.h"

namespace sluice {

// Norms of a layer, without ".weight"; nullptr: none. `plus_one`: the checkpoint holds weights minus one.
struct LayerNormNames {
  const char* attention = "input_layernorm";
  const char* ffn = "post_attention_layernorm";
  const char* attention_post = nullptr;  // on the output of attention
  const char* ffn_post = nullptr;        // on the output of the MoE block
  bool plus_one = false;
};

// Tensor names of grouped attention.
struct AttentionNames {
  std::string base = "self_attn.";
  std::string q_norm = "q_norm";
  std::string k_norm = "k_norm";
  std::string o = "o_proj";
};

// Matrix names of an FFN, without ".weight"; an FFN without gates has no gate.
struct FfnNames {
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
};

// LayerMapper: the tensors of one layer. Checkpoint names begin with `base` ("model.layers.3."), canonical
// names with the layer's number.
class LayerMapper {
 public:
  LayerMapper(const ModelConfig& config, uint32_t layer, const std::string& base, TensorMapper* mapper)
      : config_(config), layer_(layer), base_(base), mapper_(mapper) {}

  const AttentionConfig& attention() const { return config_.layers[layer_].attention; }
  const MoeConfig& moe() const { return config_.layers[layer_].moe; }
  uint32_t hidden() const { return config_.hidden; }
  bool Has(const std::string& name) const { return mapper_->Has(base_ + name); }
  bool IsMxfp4(const std::string& name) const { return mapper_->IsMxfp4(base_ + name); }
  bool HasShape(const std::string& name, const std::vector<uint64_t>& shape) const {
    return mapper_->HasShape(base_ + name, shape);
  }
  void IgnorePrefix(const std::string& prefix) { mapper_->IgnorePrefix(base_ + prefix); }
  bool ok() const { return mapper_->ok(); }

  SourceMatrix Matrix(const std::string& name, uint64_t rows, uint64_t cols) {
    return mapper_->Tensor(base_ + name, {rows, cols});
  }
  SourceMatrix Vector(const std::string& name, uint64_t length) {
    return mapper_->Tensor(base_ + name, {length});
  }
  SourceMatrix Stack(const std::string& name, uint64_t count, uint64_t lines, uint64_t length) {
    return mapper_->Tensor(base_ + name, {count, lines, length});
  }
  void Dense(std::string_view canonical, const SourceMatrix& matrix);
  void AddExpert(const ExpertSource& expert) { mapper_->AddExpert(layer_, expert); }

  // Maps the norms, with biases if the model's norm has them.
  void Norms(const LayerNormNames& names);
  // Maps {q,k,v,o}_proj with the biases and norms that the layer's description requires.
  void GroupedAttention(const AttentionNames& names = {});
  // Maps `base`{in,out}_proj, conv1d and the vectors of Mamba-2.
  void Mamba(const std::string& base);
  // Maps `mlp`{gate,up,down}_proj.weight to dense_*, shared_* or beside_*.
  void DenseFfn(const std::string& mlp, const FfnNames& names = {});
  void SharedExpert(const std::string& mlp, const FfnNames& names = {});
  void ParallelFfn(const std::string& mlp);
  // Maps DeepSeek's and GLM-4's tensors under "mlp.": a dense FFN, or router (with its correction), experts
  // and shared FFN.
  void DeepseekFfn();
  // Maps the experts: separate matrices `experts`E.{gate,up,down}.weight, or stacked in `experts`gate_up_proj
  // [experts, 2 * width, hidden] (gate first) and down_proj [experts, hidden, width].
  void Experts(const std::string& experts, const FfnNames& names);

 private:
  void Ffn(const std::string& mlp, const FfnNames& names, uint32_t width, std::string_view up,
           std::string_view gate, std::string_view down);

  const ModelConfig& config_;
  const uint32_t layer_;
  const std::string base_;
  TensorMapper* const mapper_;
};

// Maps experts stacked in two tensors of these names, in the layout of LayerMapper::Experts.
void MapStackedExperts(const std::string& gate_up, const std::string& down, LayerMapper* layer);
// Maps stacked experts stored input-major: [experts, hidden, 2 * width], gate in the first half of the last
// dimension, and [experts, width, hidden].
void MapStackedInputs(const std::string& gate_up, const std::string& down, LayerMapper* layer);

// Ignores the layers behind the last one that predict further tokens (recognised by their eh_proj).
void IgnorePredictionLayers(const ModelConfig& config, TensorMapper* mapper);

// Names of embedding, final norm (with bias for layer norm) and head.
struct EmbeddingAndHeadNames {
  std::string embed = "model.embed_tokens.weight";
  std::string norm = "model.norm";
  std::string head = "lm_head";
  bool plus_one = false;  // the norm's weights, see LayerNormNames
};
void MapEmbeddingAndHead(const ModelConfig& config, const EmbeddingAndHeadNames& names, TensorMapper* mapper);

// Calls `map` for every layer while the mapper has room for errors; `prefix` is "model.layers." in most
// families.
template <typename Map>
void MapLayers(const ModelConfig& config, const std::string& prefix, TensorMapper* mapper, const Map& map,
               const LayerNormNames& norms = {}) {
  for (uint32_t i = 0; i < config.layers.size() && mapper->ok(); ++i) {
    LayerMapper layer(config, i, prefix + std::to_string(i) + ".", mapper);
    layer.Norms(norms);
    map(&layer);
  }
}

}  // namespace sluice
