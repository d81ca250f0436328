// Gemma-4 with experts (google/gemma-4-26B-A4B): sliding-window layers between full-attention layers of wider
// heads whose values are their keys, a dense FFN parallel to the experts, norms before and after every block,
// a factor for each layer, a cap on the logits.
#include <cmath>

#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// One rope for each type of layer: full layers rotate only the first share of the pairs of a head.
struct Ropes {
  RopeConfig sliding{.theta = 1e4};
  RopeConfig full{.kind = RopeKind::kProportional, .theta = 1e6};
  double turned_share = 0.25;
};

Ropes ReadRopes(HfFields* fields) {
  Ropes ropes;
  fields->Group("rope_parameters", [&](HfFields* types) {
    types->Group("sliding_attention", [&](HfFields* group) {
      group->RequireWord("rope_type", "default");
      ropes.sliding.theta = group->Real("rope_theta", 1e-3, 1e30, ropes.sliding.theta);
    });
    types->Group("full_attention", [&](HfFields* group) {
      group->RequireWord("rope_type", "proportional");
      ropes.full.theta = group->Real("rope_theta", 1e-3, 1e30, ropes.full.theta);
      ropes.turned_share = group->Real("partial_rotary_factor", 0, 1, 1);
    });
  });
  return ropes;
}

// Heads of full layers: global_head_dim and num_global_key_value_heads of published folders, an entry of
// per_layer_config for each such layer in newer files.
void ReadFullHeads(size_t layer, AttentionConfig* full, HfFields* fields) {
  fields->Group("per_layer_config", [&](HfFields* layers) {
    layers->Group(std::to_string(layer), [&](HfFields* group) {
      full->head_dim = group->Number("head_dim", 2, kMaxHeadDim, full->head_dim);
      full->kv_heads = group->Number("num_key_value_heads", 1, kMaxHeads, full->kv_heads);
    });
    for (const auto& key : layers->Keys()) layers->Skip(key);
  });
}

void ReadGemmaAttention(ModelConfig* model, HfFields* fields) {
  AttentionConfig sliding;
  sliding.heads = fields->Number("num_attention_heads", 1, kMaxHeads, 8);
  sliding.kv_heads = fields->Number("num_key_value_heads", 1, kMaxHeads, 4);
  sliding.head_dim = fields->Number("head_dim", 2, kMaxHeadDim, 256);
  sliding.scale = 1;  // the norms of q and k replace the usual scaling
  sliding.qk_norm = QkNorm::kPerHead;
  sliding.value_norm = true;
  fields->RequireOff("attention_bias");
  const Ropes ropes = ReadRopes(fields);
  AttentionConfig full = sliding;
  full.head_dim = fields->Number("global_head_dim", 2, kMaxHeadDim, 512);
  full.value_is_key = fields->Flag("attention_k_eq_v", false);
  const uint32_t global_kv = fields->Number("num_global_key_value_heads", 1, kMaxHeads, sliding.kv_heads);
  if (full.value_is_key) full.kv_heads = global_kv;
  sliding.rope = ropes.sliding;
  sliding.rope.dimensions = sliding.head_dim;
  sliding.sliding_window = fields->Number("sliding_window", 1, kMaxPosition, 512);
  const size_t layers = model->layers.size();
  const std::vector<std::string> types =
      ReadLayerTypes({"sliding_attention", "full_attention"}, layers, fields);
  for (size_t i = 0; i < layers; ++i) {
    const bool slides = types.empty() ? (i + 1) % 6 != 0 : types[i] == "sliding_attention";
    if (slides && i + 1 < layers) {
      model->layers[i].attention = sliding;
      continue;
    }
    AttentionConfig& attention = model->layers[i].attention;
    attention = full;
    ReadFullHeads(i, &attention, fields);
    attention.rope = ropes.full;
    attention.rope.dimensions = attention.head_dim;
    attention.rope.turned = 2 * static_cast<uint32_t>(ropes.turned_share * attention.head_dim / 2);
  }
}

MoeConfig ReadGemmaMixture(HfFields* fields) {
  if (!fields->Flag("enable_moe_block", false)) fields->Refuse("enable_moe_block", "false or missing");
  MoeConfig moe;
  moe.experts = fields->Number("num_experts", 1, kMaxExperts);
  moe.top_k = fields->Number("top_k_experts", 1, moe.experts);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.dense_ffn_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.expert_scale = true;
  moe.activation = ReadActivation(fields, "hidden_activation", "gelu_pytorch_tanh");
  return moe;
}

}  // namespace

ModelConfig ReadGemma4(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("gemma4_text", {.max_position = 131072}, fields);
  model.tied_embeddings = fields->Flag("tie_word_embeddings", true);
  model.embedding_scale = std::sqrt(static_cast<float>(model.hidden));
  model.logit_cap = static_cast<float>(fields->Real("final_logit_softcapping", 0, 1e6, 0));
  const MoeConfig moe = ReadGemmaMixture(fields);
  for (LayerConfig& layer : model.layers) {
    layer.moe = moe;
    layer.post_norms = layer.layer_scale = true;
  }
  ReadGemmaAttention(&model, fields);
  if (fields->Number("hidden_size_per_layer_input", 0, kMaxHidden, 256) != 0) {
    fields->Refuse("hidden_size_per_layer_input");
  }
  fields->Skip("vocab_size_per_layer_input");
  fields->RequireNumber("num_kv_shared_layers", 0);
  fields->RequireOff("use_double_wide_mlp");
  fields->RequireWord("use_bidirectional_attention", "vision");  // applies to images only
  return model;
}

// Maps text checkpoints, and the language model of multimodal ones.
void MapGemma4(const ModelConfig& config, TensorMapper* mapper) {
  const bool nested = mapper->Has("model.language_model.embed_tokens.weight");
  const std::string inner = nested ? "model.language_model." : "model.";
  for (const char* prefix :
       {"model.vision_tower.", "model.embed_vision.", "model.audio_tower.", "model.embed_audio."}) {
    if (nested) mapper->IgnorePrefix(prefix);
  }
  MapEmbeddingAndHead(config, {.embed = inner + "embed_tokens.weight", .norm = inner + "norm"}, mapper);
  const LayerNormNames norms = {.ffn = "pre_feedforward_layernorm",
                                .attention_post = "post_attention_layernorm",
                                .ffn_post = "post_feedforward_layernorm"};
  MapLayers(
      config, inner + "layers.", mapper,
      [](LayerMapper* layer) {
        const MoeConfig& moe = layer->moe();
        const uint32_t hidden = layer->hidden();
        layer->GroupedAttention();
        layer->ParallelFfn("mlp.");
        layer->Dense(dense::kParallelPostNorm, layer->Vector("post_feedforward_layernorm_1.weight", hidden));
        layer->Dense(dense::kExpertsNorm, layer->Vector("pre_feedforward_layernorm_2.weight", hidden));
        layer->Dense(dense::kExpertsPostNorm, layer->Vector("post_feedforward_layernorm_2.weight", hidden));
        layer->Dense(dense::kRouter, layer->Matrix("router.proj.weight", moe.experts, hidden));
        // The router's norm has no weight, but its output is scaled by these.
        layer->Dense(dense::kRouterNorm, Scaled(layer->Vector("router.scale", hidden),
                                                1 / std::sqrt(static_cast<float>(hidden))));
        layer->Dense(dense::kExpertScale, layer->Vector("router.per_expert_scale", moe.experts));
        layer->Dense(dense::kLayerScale, layer->Vector("layer_scalar", 1));
        layer->Experts("experts.", {});
      },
      norms);
}

}  // namespace sluice
