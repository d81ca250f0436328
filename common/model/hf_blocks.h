// Parts shared by families: reading config members, and mapping tensor names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/hf_fields.h"
#include "common/model/model_config.h"
#include "common/model/mtp_layers.h"
#include "common/model/tensor_mapper.h"

namespace sluice {

// Config reading that the families share: base dimensions, grouped attention, position encoding, MoE blocks
// and the choice of dense layers. A family passes its defaults: those of transformers for absent members.
//
// Private to common/model. Thread safety: free functions; the HfFields is used by one thread.

// Base dimensions: vocab_size, hidden_size, num_hidden_layers, max_position_embeddings, rms_norm_eps,
// tie_word_embeddings. Every layer starts as a default one.
struct BaseDefaults {
  uint32_t max_position = 0;
  double epsilon = 1e-6;
  uint32_t layers = 0;  // > 0: num_hidden_layers may be missing
};
ModelConfig ReadBaseConfig(const std::string& family, const BaseDefaults& defaults, HfFields* fields);

// Position encoding: rope_theta and rope_scaling of older files, rope_parameters of newer ones; types
// default, linear, yarn, longrope and llama3 with the attention factors of transformers.
struct RopeDefaults {
  double theta = 10000.0;
  double partial = 1.0;         // partial_rotary_factor, if the family has one
  bool may_be_partial = false;  // otherwise the factor must be 1
  bool mscales = false;         // longrope: short_mscale and long_mscale are the attention factors
  bool temperature = false;     // llama_4_scaling_beta, if the family has it
  bool alpha = false;           // dynamic: alpha stretches theta once and for all
};
struct RopeFields {
  RopeConfig rope;
  double mscale_all_dim = 0;  // yarn; 0: absent
  double temperature = 0;     // llama_4_scaling_beta; 0: absent
};
RopeFields ReadRope(const RopeDefaults& defaults, uint32_t head_dim, uint32_t max_position, HfFields* fields);
// The same from the object `member` alone; absent: the defaults.
RopeFields ReadRopeObject(const char* member, const RopeDefaults& defaults, uint32_t head_dim,
                          uint32_t max_position, HfFields* fields);
// Position encoding of one type of layer: the object `type` ("full_attention", "sliding_attention") of
// rope_parameters, or rope_parameters itself if it holds no types. Absent: the defaults.
RopeConfig ReadRopeOfType(const char* type, const RopeDefaults& defaults, uint32_t head_dim,
                          uint32_t max_position, HfFields* fields);
// Returns yarn's attention factor for a context `scale` times as long.
double YarnMscale(double scale, double mscale);

// Grouped attention: num_attention_heads, num_key_value_heads (absent: `kv_heads`, or the heads if that is 0;
// null: the heads), head_dim (absent: `head_dim`, or hidden / heads if that is 0); rope; scale
// 1/sqrt(head_dim).
struct GroupedDefaults {
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  RopeDefaults rope;
};
AttentionConfig ReadGrouped(const GroupedDefaults& defaults, const ModelConfig& model, HfFields* fields);
// The same without the position encoding, for families whose layers differ in it.
AttentionConfig ReadHeads(const GroupedDefaults& defaults, const ModelConfig& model, HfFields* fields);
// Sets the position encoding; the number of rotated values must be even.
void SetRope(const RopeConfig& rope, AttentionConfig* attention, HfFields* fields);

// Reads hidden_act or the member `key`: silu, swish, gelu, gelu_new, gelu_pytorch_tanh.
Activation ReadActivation(HfFields* fields, const char* key = "hidden_act", const char* fallback = "silu");

// Reads the number of routed experts under the first of `keys` that is present, and num_experts_per_tok.
void ReadExperts(const std::vector<const char*>& keys, MoeConfig* moe, HfFields* fields);

// Returns the dense FFN of layers without experts.
MoeConfig DenseFfn(uint32_t width, Activation activation);

// Reads the MoE members that DeepSeek's and GLM-4's configs use: n_routed_experts, num_experts_per_tok,
// moe_intermediate_size, n_shared_experts (one FFN of that many expert widths), norm_topk_prob.
MoeConfig ReadDeepseekMixture(uint32_t shared, bool norm_topk_prob, HfFields* fields);
// Reads n_group and topk_group; one group counts as none.
void ReadGroups(uint32_t groups, uint32_t top_groups, MoeConfig* moe, HfFields* fields);
// Sets the layers below first_k_dense_replace, and those that moe_layer_freq leaves out, to dense FFNs of
// intermediate_size neurons, the other layers to `moe`.
void SetDeepseekFfns(uint32_t first_dense, const MoeConfig& moe, ModelConfig* model, HfFields* fields);

// Reads time_step_limit if it is present.
void ReadTimeSteps(MambaConfig* mamba, HfFields* fields);

// Reads the width of `count` shared experts of `width` neurons each, which form one FFN; `key` names the
// count.
uint32_t ReadSharedWidth(const char* key, uint32_t fallback, uint32_t width, HfFields* fields);

// Reads mlp_layer_types: true for the layers with experts. Empty if the member is absent.
std::vector<bool> ReadSparseLayers(size_t layers, HfFields* fields);

// Sets the layers of `sparse` to `moe`, the others to dense FFNs of `dense_width` neurons.
void SetFfns(const std::vector<bool>& sparse, const MoeConfig& moe, uint32_t dense_width, ModelConfig* model);

// Applies Qwen's rule: layers of mlp_only_layers, and all but every decoder_sparse_step-th layer, are dense
// FFNs of intermediate_size neurons; the others are `moe`.
void SetQwenFfns(const MoeConfig& moe, ModelConfig* model, HfFields* fields);

// Reads layer_types or the member `key`: one of `words` for each layer. Empty if the member is absent; the
// error is kept in `fields`.
std::vector<std::string> ReadLayerTypes(const std::vector<std::string>& words, size_t layers,
                                        HfFields* fields, const char* key = "layer_types");

// Tensor maps that the families share: the names that most checkpoints use.
//
// Private to common/model. Thread safety: free functions; a TensorMapper is used by one thread.

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
  bool plus_one = false;  // the checkpoint holds the norms' weights minus one
  std::string gate;       // projection of the output's gate; empty: mapped elsewhere
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
  uint32_t vocab() const { return config_.vocab; }
  const NgramConfig& ngrams() const { return config_.layers[layer_].ngrams; }
  const StreamConfig& streams() const { return config_.streams; }
  uint32_t latent_width() const { return config_.latent_width; }
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
  // Whole numbers, or values.
  SourceMatrix Numbers(const std::string& name, uint64_t rows, uint64_t cols) {
    return mapper_->Numbers(base_ + name, {rows, cols});
  }
  SourceMatrix Vector(const std::string& name, uint64_t length) {
    return mapper_->Tensor(base_ + name, {length});
  }
  // A value of each head, of shape [1, 1, heads, 1].
  SourceMatrix HeadColumn(const std::string& name, uint64_t heads) {
    return Transposed(mapper_->Tensor(base_ + name, {1, 1, heads, 1}));
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
  // Maps the sinks under this name.
  void Sinks(const std::string& name);
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
  void FfnBiases(const std::string& mlp, const FfnNames& names, uint32_t width, std::string_view up,
                 std::string_view gate, std::string_view down);
  void Ffn(const std::string& mlp, const FfnNames& names, uint32_t width, std::string_view up,
           std::string_view gate, std::string_view down);

  const ModelConfig& config_;
  const uint32_t layer_;
  const std::string base_;
  TensorMapper* const mapper_;
};

// Maps experts stacked in two tensors of these names, in the layout of LayerMapper::Experts.
void MapStackedExperts(const std::string& gate_up, const std::string& down, LayerMapper* layer);
// Maps experts stacked in three tensors `base`{gate,up,down}_proj.weight: [experts, width, hidden] and down
// [experts, hidden, width].
void MapSeparateStacks(const std::string& base, LayerMapper* layer);
// Maps stacked experts stored input-major: [experts, hidden, 2 * width], gate in the first half of the last
// dimension, and [experts, width, hidden].
void MapStackedInputs(const std::string& gate_up, const std::string& down, LayerMapper* layer);

// Ignores the layers behind the last one that predict further tokens (recognised by their eh_proj).
void IgnorePredictionLayers(const ModelConfig& config, TensorMapper* mapper,
                            const std::string& layers = "model.layers.");

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
    LayerMapper layer(config, i, LayerBase(config, prefix, i), mapper);
    layer.Norms(norms);
    map(&layer);
    MapMtpTensors(config, prefix, i, mapper);
  }
}

// Latent attention of DeepSeek's configs and checkpoints, and of later models that use the same layout.
//
// Private to common/model. Thread safety: free functions; fields and mapper are used by one thread.

// Reads q_lora_rank (null: none), kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, rope; also
// llama_4_scaling_beta if the family has `temperature`.
struct LatentDefaults {
  double norm_epsilon = 0;  // of the compressed norms; 0: the usual
  bool no_rope = false;     // nothing rotates, and qk_rope_head_dim is 0
  uint32_t q_rank = 1536;
  uint32_t kv_rank = 512;
  uint32_t nope_dim = 128;
  uint32_t value_dim = 128;
  bool interleaved = true;
  bool temperature = false;
  double theta = 10000.0;
  bool skips_head_dim = false;  // the member head_dim says nothing about these heads
};
AttentionConfig ReadLatent(const LatentDefaults& defaults, const ModelConfig& model, HfFields* fields);

// Maps `base`{q_a,q_b or q,kv_a,kv_b}_proj, `o` and the norms between them; the norm on the compressed kv is
// multiplied by `kv_scale`.
struct LatentNames {
  std::string base = "self_attn.";
  std::string o = "o_proj";
  std::string gate;  // projection of the output's gate, if the layer has one
  float kv_scale = 1;
};
void MapLatent(LayerMapper* layer, const LatentNames& names = {});

// True for the layers that take the choice of an indexer before them: indexer_types, or the letters of
// index_topk_pattern, or all but every index_topk_freq-th one.
std::vector<bool> ReadSharedIndexers(size_t layers, HfFields* fields);

// Maps the indexer of latent attention under self_attn.indexer, pooled or not.
void MapIndexer(LayerMapper* layer);

// Gated DeltaNet, attention with an output gate, and experts beside a shared one with a gate (Qwen3-Next and
// later).
AttentionConfig ReadGatedDelta(HfFields* fields);
AttentionConfig ReadGatedAttention(const ModelConfig& model, HfFields* fields);
MoeConfig ReadGatedMixture(HfFields* fields);
void MapGatedDelta(LayerMapper* layer);
void MapGatedAttention(LayerMapper* layer);
void MapGatedMixture(LayerMapper* layer);

// Kimi Delta Attention of `heads` heads, whose gates have no rank and no floor.
AttentionConfig ChannelDelta(uint32_t heads, uint32_t dim, uint32_t kernel);
// Maps it under `base`; gates of a rank have two matrices each.
void MapChannelDelta(const std::string& base, const std::string& o, LayerMapper* layer);

}  // namespace sluice
