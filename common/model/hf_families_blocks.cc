// Families whose layers put blocks and norms in another order: Cohere2-MoE, FlexOlmo, LongCat-Flash.

#include <algorithm>
#include <cmath>

#include "common/model/dense_names.h"
#include "common/model/hf_blocks.h"
#include "common/model/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
// Cohere2-MoE (CohereLabs): attention and FFN beside each other on one norm, layer norms without biases, rope
// on adjacent values in layers with a window alone, dense first layers.

namespace {

// A layer's place: its window and its FFN.
struct CohereLayer {
  bool slides = false;
  bool sparse = true;
};

// Newer files list the types; older ones have a pattern for the dense first layers and one for the others,
// which are counted anew.
std::vector<CohereLayer> ReadCohereLayers(size_t layers, HfFields* fields) {
  const uint32_t dense = fields->Number("first_k_dense_replace", 0, kMaxLayers, 0);
  const uint32_t prefix = fields->Number("prefix_dense_sliding_window_pattern", 1, kMaxLayers, 1);
  const uint32_t pattern = fields->Number("sliding_window_pattern", 1, kMaxLayers, 4);
  const std::vector<std::string> types =
      ReadLayerTypes({"full_attention", "sliding_attention"}, layers, fields);
  const std::vector<bool> sparse = ReadSparseLayers(layers, fields);
  std::vector<CohereLayer> all(layers);
  for (size_t i = 0; i < layers; ++i) {
    all[i].sparse = sparse.empty() ? i >= dense : sparse[i];
    all[i].slides = i < dense ? (i + 1) % prefix != 0 : (i - dense + 1) % pattern != 0;
    if (!types.empty()) all[i].slides = types[i] == "sliding_attention";
  }
  return all;
}

MoeConfig ReadCohereMixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.shared_width = ReadSharedWidth("num_shared_experts", 0, moe.expert_width, fields);
  moe.activation = ReadActivation(fields);
  moe.router = RouterKind::kTopKSoftmax;
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  if (fields->Word("expert_selection_fn", "softmax") == "sigmoid") {
    moe.router = RouterKind::kSigmoidTopK;
    moe.norm_epsilon = 0;
  } else {
    fields->RequireWord("expert_selection_fn", "softmax");
    moe.norm_topk_prob = true;  // the softmax is over the chosen
  }
  const std::string strategy = fields->Word("shared_expert_combination_strategy", "average");
  if (strategy == "average") {
    if (moe.shared_width > 0) moe.output_scale = 0.5f;
  } else {
    fields->RequireWord("shared_expert_combination_strategy", "sum");
  }
  return moe;
}

}  // namespace

ModelConfig ReadCohere2Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("cohere2_moe", {.max_position = 8192, .epsilon = 1e-5}, fields);
  model.tied_embeddings = fields->Flag("tie_word_embeddings", true);
  model.logit_scale = static_cast<float>(fields->Real("logit_scale", 1e-9, 1e9, 0.0625));
  const double epsilon = fields->Real("layer_norm_eps", 0, 1, 1e-5);
  if (!fields->Has("rms_norm_eps")) {
    model.norm = NormKind::kLayer;
    model.norm_bias = false;
    model.norm_epsilon = static_cast<float>(epsilon);
  }
  AttentionConfig turned = ReadGrouped({.kv_heads = 0}, model, fields);
  turned.rope.interleaved = true;
  turned.qkv_bias = turned.output_bias = fields->Flag("attention_bias", false);
  fields->RequireOff("use_qk_norm");
  const uint32_t window = fields->Number("sliding_window", 1, kMaxPosition, 4096);
  const MoeConfig moe = ReadCohereMixture(fields);
  const MoeConfig dense = DenseFfn(
      fields->Number("prefix_dense_intermediate_size", 1, kMaxWidth, moe.expert_width), moe.activation);
  const bool dense_turns = fields->Number("prefix_dense_sliding_window_pattern", 1, kMaxLayers, 1) == 1;
  const std::vector<CohereLayer> layers = ReadCohereLayers(model.layers.size(), fields);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    LayerConfig& layer = model.layers[i];
    layer = {turned, layers[i].sparse ? moe : dense};
    layer.parallel = true;
    if (layers[i].slides) layer.attention.sliding_window = window;
    if (!layers[i].slides && (layers[i].sparse || !dense_turns)) {
      layer.attention.rope = RopeConfig{.kind = RopeKind::kNone};
    }
  }
  return model;
}

void MapCohere2Moe(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper,
            [](LayerMapper* layer) {
              const MoeConfig& moe = layer->moe();
              layer->GroupedAttention();
              if (moe.experts == 0) return layer->DenseFfn("mlp.");
              layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", moe.experts, layer->hidden()));
              layer->Experts("mlp.experts.", {});
              if (moe.shared_width != 0) layer->SharedExpert("mlp.shared_experts.");
            },
            {.ffn = nullptr});
}

// FlexOlmo (allenai/FlexOlmo-7x7B-1T): OLMoE whose blocks are normed behind, not before.

ModelConfig ReadFlexOlmo(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("flex_olmo", {.max_position = 4096}, fields);
  LayerConfig layer;
  layer.attention = ReadGrouped({.rope = {.theta = 5e5}}, model, fields);
  layer.attention.qkv_bias = layer.attention.output_bias = fields->Flag("attention_bias", false);
  layer.attention.qk_norm = QkNorm::kAcrossHeads;
  ReadExperts({"num_experts", "num_local_experts"}, &layer.moe, fields);
  layer.moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  layer.moe.norm_topk_prob = fields->Flag("norm_topk_prob", false);
  layer.moe.activation = ReadActivation(fields);
  layer.pre_norms = false;
  layer.post_norms = true;
  model.layers.assign(model.layers.size(), layer);
  return model;
}

void MapFlexOlmo(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  const LayerNormNames norms = {.attention = nullptr,
                                .ffn = nullptr,
                                .attention_post = "post_attention_layernorm",
                                .ffn_post = "post_feedforward_layernorm"};
  MapLayers(
      config, "model.layers.", mapper,
      [](LayerMapper* layer) {
        layer->GroupedAttention();
        layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", layer->moe().experts, layer->hidden()));
        layer->Experts("mlp.experts.", {});
      },
      norms);
}

// LongCat-Flash (meituan-longcat/LongCat-Flash-Chat): a layer of the checkpoint is two of latent attention
// and a dense FFN each; a mixture over the first FFN's input is added behind the second, and some of its
// experts return their input. The first of the two is a layer with experts and a shared one here.

namespace {

MoeConfig ReadLongcatMixture(HfFields* fields) {
  MoeConfig moe;
  moe.experts = fields->Number("n_routed_experts", 1, kMaxExperts);
  moe.zero_experts = fields->Number("zero_expert_num", 0, kMaxExperts, 0);
  moe.top_k = fields->Number("moe_topk", 1, moe.experts + moe.zero_experts);
  moe.expert_width = fields->Number("expert_ffn_hidden_size", 1, kMaxWidth);
  moe.router_correction = true;
  moe.norm_topk_prob = false;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  moe.activation = ReadActivation(fields);
  fields->RequireOff("router_bias");
  fields->RequireOff("norm_topk_prob");
  fields->RequireWord("zero_expert_type", "identity");
  fields->RequireWord("router_dtype", "float32");
  return moe;
}

}  // namespace

ModelConfig ReadLongcatFlash(HfFields* fields) {
  const uint32_t pairs = fields->Number("num_layers", 1, kMaxLayers / 2);
  ModelConfig model =
      ReadBaseConfig("longcat_flash", {.max_position = 131072, .epsilon = 1e-5, .layers = pairs}, fields);
  AttentionConfig attention = ReadLatent({.theta = 1e7, .skips_head_dim = true}, model, fields);
  const LatentConfig& latent = attention.latent;
  if (fields->Flag("mla_scale_q_lora", true) && latent.q_rank > 0) {
    attention.scale *= std::sqrt(static_cast<float>(model.hidden) / static_cast<float>(latent.q_rank));
  }
  // The map multiplies the compressed kv's norm.
  fields->RequireFlag("mla_scale_kv_lora", true);
  fields->RequireWord("attention_method", "MLA");
  MoeConfig moe = ReadLongcatMixture(fields);
  const uint32_t published = fields->Number("ffn_hidden_size", 1, kMaxWidth);
  const MoeConfig dense =
      DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth, published), moe.activation);
  moe.shared_width = dense.dense_width;
  moe.shared_apart = true;
  model.layers.assign(uint64_t{2} * pairs, {attention, dense});
  for (size_t i = 0; i < model.layers.size(); i += 2) {
    model.layers[i].moe = moe;
    model.layers[i].late_experts = true;
  }
  fields->Skip("num_nextn_predict_layers");
  return model;
}

void MapLongcatFlash(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("model.mtp.");
  MapEmbeddingAndHead(config, {}, mapper);
  for (uint32_t i = 0; i < config.layers.size() && mapper->ok(); ++i) {
    LayerMapper layer(config, i, absl::StrCat("model.layers.", i / 2, "."), mapper);
    const MoeConfig& moe = layer.moe();
    const std::string half = i % 2 == 0 ? "0" : "1";
    const std::string attention_norm = "input_layernorm." + half;
    const std::string ffn_norm = "post_attention_layernorm." + half;
    layer.Norms({.attention = attention_norm.c_str(), .ffn = ffn_norm.c_str()});
    const LatentConfig& latent = layer.attention().latent;
    const float scale = std::sqrt(static_cast<float>(config.hidden) / static_cast<float>(latent.kv_rank));
    MapLatent(&layer, {.base = "self_attn." + half + ".", .kv_scale = scale});
    if (moe.experts == 0) {
      layer.DenseFfn("mlps." + half + ".");
      continue;
    }
    const uint32_t routed = moe.experts + moe.zero_experts;
    layer.Dense(dense::kRouter, layer.Matrix("mlp.router.classifier.weight", routed, config.hidden));
    layer.Dense(dense::kRouterCorrection, layer.Vector("mlp.router.e_score_correction_bias", routed));
    layer.Experts("mlp.experts.", {});
    layer.SharedExpert("mlps." + half + ".");
  }
}

}  // namespace sluice
