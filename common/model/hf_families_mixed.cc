// Families whose layers differ in attention: AFMoE, Gemma-4, GPT-OSS, Llama-4.

#include <algorithm>
#include <cmath>

#include "common/model/dense_names.h"
#include "common/model/hf_blocks.h"
#include "common/model/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
// AFMoE (arcee-ai/Trinity): rope only in layers with a window, attention with an output gate, norms after
// attention and MoE block too, sigmoid router with a selection correction, shared experts.

namespace {

MoeConfig ReadAfmoeMixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.shared_width = ReadSharedWidth("num_shared_experts", 0, moe.expert_width, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.routed_scale = static_cast<float>(fields->Real("route_scale", 1e-6, 1e6, 1));
  moe.norm_topk_prob = fields->Flag("route_norm", true);
  moe.activation = ReadActivation(fields);
  fields->RequireWord("score_func", "sigmoid");
  // One group counts as none, regardless of its score.
  fields->RequireNumber("num_expert_groups", 1);
  fields->RequireNumber("num_limited_groups", 1);
  fields->RequireNumber("n_group", 1);
  fields->RequireNumber("topk_group", 1);
  return moe;
}

}  // namespace

ModelConfig ReadAfmoe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("afmoe", {.max_position = 16384, .epsilon = 1e-5}, fields);
  if (fields->Flag("mup_enabled", false)) {
    model.embedding_scale = std::sqrt(static_cast<float>(model.hidden));
  }
  AttentionConfig attention = ReadGrouped({.head_dim = 128}, model, fields);
  attention.qk_norm = QkNorm::kPerHead;
  attention.output_gate = true;
  fields->RequireOff("attention_bias");
  const MoeConfig moe = ReadAfmoeMixture(fields);
  const MoeConfig dense = DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth), moe.activation);
  const uint32_t dense_layers = fields->Number("num_dense_layers", 0, kMaxLayers, 1);
  const uint32_t window = fields->Number("sliding_window", 1, kMaxPosition, 1024);
  const uint32_t interval = fields->Number("global_attn_every_n_layers", 1, kMaxLayers, 4);
  const std::vector<std::string> types =
      ReadLayerTypes({"sliding_attention", "full_attention"}, model.layers.size(), fields);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    LayerConfig& layer = model.layers[i];
    layer = {attention, i < dense_layers ? dense : moe};
    layer.post_norms = true;
    const bool slides = types.empty() ? (i + 1) % interval != 0 : types[i] == "sliding_attention";
    if (slides) {
      layer.attention.sliding_window = window;
    } else {
      layer.attention.rope = RopeConfig{.kind = RopeKind::kNone};
    }
  }
  return model;
}

void MapAfmoe(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  const LayerNormNames norms = {.ffn = "pre_mlp_layernorm",
                                .attention_post = "post_attention_layernorm",
                                .ffn_post = "post_mlp_layernorm"};
  MapLayers(
      config, "model.layers.", mapper,
      [](LayerMapper* layer) {
        const AttentionConfig& a = layer->attention();
        const MoeConfig& moe = layer->moe();
        layer->GroupedAttention();
        layer->Dense(dense::kQGate, layer->Matrix("self_attn.gate_proj.weight",
                                                  uint64_t{a.heads} * a.head_dim, layer->hidden()));
        if (moe.experts == 0) return layer->DenseFfn("mlp.");
        layer->Dense(dense::kRouter, layer->Matrix("mlp.router.gate.weight", moe.experts, layer->hidden()));
        layer->Dense(dense::kRouterCorrection, layer->Vector("mlp.expert_bias", moe.experts));
        layer->Experts("mlp.experts.", {});
        if (moe.shared_width != 0) layer->SharedExpert("mlp.shared_experts.");
      },
      norms);
}

// Gemma-4 with experts (google/gemma-4-26B-A4B): sliding-window layers between full-attention layers of wider
// heads whose values are their keys, a dense FFN parallel to the experts, norms before and after every block,
// a factor for each layer, a cap on the logits.

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

// GPT-OSS (openai/gpt-oss-20b, 120b): attention sinks, every second layer with a window, biases everywhere,
// clamped SwiGLU; experts stacked in bf16 with gate and up columns alternating, or in MXFP4.

namespace {

// Default of transformers for a config without rope_parameters.
RopeConfig DefaultRope(uint32_t head_dim) {
  RopeConfig rope;
  rope.kind = RopeKind::kYarn;
  rope.theta = 150000;
  rope.factor = 32;
  rope.original_max_position = 4096;
  rope.dimensions = head_dim;
  rope.attention_factor = YarnMscale(rope.factor, 1);
  rope.truncate = false;
  return rope;
}

// The bf16 files store experts as [hidden, 2 width] with gate and up in alternating columns, and down in the
// pack's orientation; hence the transposed half of the columns.
void MapBf16Experts(LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  const uint64_t hidden = layer->hidden();
  const SourceMatrix gates_ups =
      layer->Stack("mlp.experts.gate_up_proj", moe.experts, hidden, uint64_t{2} * moe.expert_width);
  const SourceMatrix downs = layer->Stack("mlp.experts.down_proj", moe.experts, moe.expert_width, hidden);
  for (uint64_t e = 0; e < moe.experts && layer->ok(); ++e) {
    const SourceMatrix both = SliceRows(gates_ups, e * hidden, layer->hidden());
    layer->AddExpert({.up = Transposed(EverySecondColumn(both, 1)),
                      .gate = Transposed(EverySecondColumn(both, 0)),
                      .down = SliceRows(downs, e * moe.expert_width, moe.expert_width)});
  }
}

// MXFP4 folders keep the transposed matrices, whose rows are outputs.
void MapMxfp4Experts(LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  const uint64_t hidden = layer->hidden();
  const SourceMatrix gates_ups =
      layer->Stack("mlp.experts.gate_up_proj", moe.experts, uint64_t{2} * moe.expert_width, hidden);
  const SourceMatrix downs = layer->Stack("mlp.experts.down_proj", moe.experts, hidden, moe.expert_width);
  for (uint64_t e = 0; e < moe.experts && layer->ok(); ++e) {
    const SourceMatrix both = SliceRows(gates_ups, e * 2 * moe.expert_width, 2 * moe.expert_width);
    layer->AddExpert({.up = EverySecondRow(both, 1),
                      .gate = EverySecondRow(both, 0),
                      .down = Transposed(SliceRows(downs, e * hidden, layer->hidden()))});
  }
}

}  // namespace

ModelConfig ReadGptOss(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("gpt_oss", {.max_position = 131072, .epsilon = 1e-5}, fields);
  AttentionConfig attention =
      ReadGrouped({.kv_heads = 8, .head_dim = 64, .rope = {.theta = 150000}}, model, fields);
  if (!fields->Has("rope_parameters") && !fields->Has("rope_scaling")) {
    attention.rope = DefaultRope(attention.head_dim);
  }
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", true);
  attention.sinks = true;
  MoeConfig moe;
  ReadExperts({"num_local_experts", "num_experts"}, &moe, fields);
  fields->Skip("experts_per_token");       // num_experts_per_tok again
  fields->Skip("initial_context_length");  // original_max_position_embeddings again
  moe.router = RouterKind::kTopKSoftmax;
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.router_bias = moe.expert_bias = true;
  if (fields->Word("hidden_act", "silu") != "silu") fields->Refuse("hidden_act");
  moe.activation = Activation::kClampedSwiglu;
  moe.activation_alpha = static_cast<float>(fields->Real("swiglu_alpha", 0, 1e6, 1.702));
  moe.activation_limit = static_cast<float>(fields->Real("swiglu_limit", 0, 1e6, 7.0));
  const uint32_t window =
      fields->Number("sliding_window", 1, kMaxPosition, fields->IsNull("sliding_window") ? 0 : 128);
  const std::vector<std::string> types =
      ReadLayerTypes({"sliding_attention", "full_attention"}, model.layers.size(), fields);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i] = {attention, moe};
    const bool slides = types.empty() ? i % 2 == 0 : types[i] == "sliding_attention";
    if (slides) model.layers[i].attention.sliding_window = window;
  }
  return model;
}

void MapGptOss(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention();
    layer->Sinks("self_attn.sinks");
    layer->Dense(dense::kRouter, layer->Matrix("mlp.router.weight", moe.experts, layer->hidden()));
    layer->Dense(dense::kRouterBias, layer->Vector("mlp.router.bias", moe.experts));
    layer->Dense(dense::kExpertsDownBias,
                 layer->Matrix("mlp.experts.down_proj_bias", moe.experts, layer->hidden()));
    if (layer->Has("mlp.experts.gate_proj_bias")) {
      // GGUF files keep gate and up apart.
      layer->Dense(dense::kExpertsGateBias,
                   layer->Matrix("mlp.experts.gate_proj_bias", moe.experts, moe.expert_width));
      layer->Dense(dense::kExpertsUpBias,
                   layer->Matrix("mlp.experts.up_proj_bias", moe.experts, moe.expert_width));
      return layer->Experts("mlp.experts.", {});
    }
    const SourceMatrix biases =
        layer->Matrix("mlp.experts.gate_up_proj_bias", moe.experts, uint64_t{2} * moe.expert_width);
    layer->Dense(dense::kExpertsGateBias, EverySecondColumn(biases, 0));
    layer->Dense(dense::kExpertsUpBias, EverySecondColumn(biases, 1));
    if (layer->IsMxfp4("mlp.experts.gate_up_proj")) {
      MapMxfp4Experts(layer);
    } else {
      MapBf16Experts(layer);
    }
  });
}

// Llama-4 text (meta-llama/Llama-4-Scout, Maverick): chunked attention in layers with rope, a temperature in
// layers without rope; top-1 sigmoid router that scales the expert's input; a shared expert; dense layers in
// between.

namespace {

// no_rope_layers holds 1 for layers WITH rope, in spite of its name; without the list every
// no_rope_layer_interval-th layer is without.
std::vector<bool> LayersWithRope(size_t layers, HfFields* fields) {
  const uint32_t interval = fields->Number("no_rope_layer_interval", 1, kMaxLayers, 4);
  const std::vector<uint32_t> listed = fields->Numbers("no_rope_layers", 1);
  std::vector<bool> with_rope(layers);
  if (!listed.empty() && listed.size() < layers) {
    fields->Fail("no_rope_layers", absl::StrCat("has ", listed.size(), " entries for ", layers, " layers"));
    return with_rope;
  }
  for (size_t i = 0; i < layers; ++i) {
    with_rope[i] = listed.empty() ? (i + 1) % interval != 0 : listed[i] != 0;
  }
  return with_rope;
}

std::vector<bool> LayersWithExperts(size_t layers, HfFields* fields) {
  const uint32_t step = fields->Number("interleave_moe_layer_step", 1, kMaxLayers, 1);
  const bool is_listed = fields->Has("moe_layers");
  const std::vector<uint32_t> listed = fields->Numbers("moe_layers", kMaxLayers);
  std::vector<bool> with_experts(layers);
  for (size_t i = 0; i < layers; ++i) {
    with_experts[i] =
        is_listed ? std::find(listed.begin(), listed.end(), i) != listed.end() : (i + 1) % step == 0;
  }
  return with_experts;
}

MoeConfig ReadLlama4Mixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_local_experts", "num_experts"}, &moe, fields);
  if (moe.top_k != 1) fields->Refuse("num_experts_per_tok");
  moe.router = RouterKind::kSigmoidInput;
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.shared_width = moe.expert_width;
  moe.activation = ReadActivation(fields);
  return moe;
}

// attn_temperature_tuning was a number in the first files and is a flag in later ones.
bool ReadTemperatureTuning(HfFields* fields) {
  if (!fields->IsUnsigned("attn_temperature_tuning")) return fields->Flag("attn_temperature_tuning", true);
  return fields->Number("attn_temperature_tuning", 0, kMaxPosition) != 0;
}

}  // namespace

ModelConfig ReadLlama4(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("llama4_text", {.max_position = 4096 * 32, .epsilon = 1e-5}, fields);
  AttentionConfig attention =
      ReadGrouped({.kv_heads = 8, .head_dim = 128, .rope = {.theta = 5e5}}, model, fields);
  attention.rope.interleaved = true;
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", false);
  const bool qk_norm = fields->Flag("use_qk_norm", true);
  const bool tuned = ReadTemperatureTuning(fields);
  const double temperature = fields->Real("attn_scale", 0, 1e6, 0.1);
  const uint32_t floor = fields->Number("floor_scale", 1, kMaxPosition, 8192);
  // An explicit null turns chunked attention off; an absent member means the default.
  const uint32_t chunk = fields->Number("attention_chunk_size", 1, kMaxPosition,
                                        fields->IsNull("attention_chunk_size") ? 0 : 8192);
  const MoeConfig moe = ReadLlama4Mixture(fields);
  const MoeConfig dense =
      DenseFfn(fields->Number("intermediate_size_mlp", 1, kMaxWidth, 16384), moe.activation);
  const size_t layers = model.layers.size();
  const std::vector<bool> with_rope = LayersWithRope(layers, fields);
  const std::vector<bool> with_experts = LayersWithExperts(layers, fields);
  const std::vector<std::string> types =
      ReadLayerTypes({"chunked_attention", "full_attention"}, layers, fields);
  for (size_t i = 0; i < layers; ++i) {
    LayerConfig& layer = model.layers[i];
    layer = {attention, with_experts[i] ? moe : dense};
    const bool chunked = types.empty() ? with_rope[i] : types[i] == "chunked_attention";
    if (chunked) layer.attention.chunk = chunk;
    if (with_rope[i]) {
      if (qk_norm) layer.attention.qk_norm = QkNorm::kPerHeadAfterRope;
      continue;
    }
    layer.attention.rope = RopeConfig{.kind = RopeKind::kNone};
    if (!tuned || temperature == 0) continue;
    layer.attention.temperature_scale = static_cast<float>(temperature);
    layer.attention.temperature_floor = floor;
  }
  return model;
}

// Maps text checkpoints, and the language model of multimodal ones.
void MapLlama4(const ModelConfig& config, TensorMapper* mapper) {
  const bool nested = mapper->Has("language_model.model.embed_tokens.weight");
  const std::string outer = nested ? "language_model." : "";
  if (nested) {
    mapper->IgnorePrefix("vision_model.");
    mapper->IgnorePrefix("multi_modal_projector.");
  }
  MapEmbeddingAndHead(config, {outer + "model.embed_tokens.weight", outer + "model.norm", outer + "lm_head"},
                      mapper);
  MapLayers(config, outer + "model.layers.", mapper, [](LayerMapper* layer) {
    layer->GroupedAttention();
    if (layer->moe().experts == 0) return layer->DenseFfn("feed_forward.");
    layer->Dense(dense::kRouter,
                 layer->Matrix("feed_forward.router.weight", layer->moe().experts, layer->hidden()));
    if (layer->Has("feed_forward.experts.0.gate_proj.weight")) {
      layer->Experts("feed_forward.experts.", {});
    } else {
      MapStackedInputs("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj", layer);
    }
    layer->SharedExpert("feed_forward.shared_expert.");
  });
}

}  // namespace sluice
