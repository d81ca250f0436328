// Qwen3-Next (Qwen/Qwen3-Next-80B-A3B, Qwen3-Coder-Next) and Qwen3.5-MoE text (Qwen/Qwen3.5-35B-A3B): gated
// DeltaNet layers between full attention with an output gate; norms that add 1 to their weights; shared
// expert with a gate.
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

AttentionConfig ReadDelta(HfFields* fields) {
  AttentionConfig attention;
  attention.kind = AttentionKind::kGatedDelta;
  attention.rope = RopeConfig{.kind = RopeKind::kNone};
  attention.delta.key_heads = fields->Number("linear_num_key_heads", 1, kMaxHeads, 16);
  attention.delta.value_heads = fields->Number("linear_num_value_heads", 1, kMaxHeads, 32);
  attention.delta.key_dim = fields->Number("linear_key_head_dim", 1, kMaxHeadDim, 128);
  attention.delta.value_dim = fields->Number("linear_value_head_dim", 1, kMaxHeadDim, 128);
  attention.delta.conv_kernel = fields->Number("linear_conv_kernel_dim", 1, kMaxConvKernel, 4);
  // Rows of the convolution kernel are stored without gaps, and a pack pads rows to 16 bytes, four floats.
  if (attention.delta.conv_kernel % 4 != 0) fields->Refuse("linear_conv_kernel_dim");
  if (attention.delta.value_heads % attention.delta.key_heads != 0) {
    fields->Fail("linear_num_key_heads",
                 absl::StrCat("is ", attention.delta.key_heads, ", which does not divide the ",
                              attention.delta.value_heads, " value heads"));
  }
  return attention;
}

// Qwen3-Next's two projections: each key head has its rows of q, k, v and z, and of beta and decay.
void MapGroupedDelta(LayerMapper* layer) {
  const DeltaConfig& delta = layer->attention().delta;
  const uint32_t heads = delta.key_heads;
  const uint32_t sharers = delta.value_heads / heads;
  const uint32_t keys = delta.key_dim;
  const uint32_t values = sharers * delta.value_dim;
  const SourceMatrix all = layer->Matrix("linear_attn.in_proj_qkvz.weight",
                                         uint64_t{2} * heads * (keys + values), layer->hidden());
  layer->Dense(dense::kDeltaQkv,
               Stacked(RowsOfBlocks(all, heads, 0, keys),
                       {RowsOfBlocks(all, heads, keys, keys), RowsOfBlocks(all, heads, 2 * keys, values)}));
  layer->Dense(dense::kDeltaZ, RowsOfBlocks(all, heads, 2 * keys + values, values));
  const SourceMatrix gates =
      layer->Matrix("linear_attn.in_proj_ba.weight", uint64_t{2} * delta.value_heads, layer->hidden());
  layer->Dense(dense::kDeltaBeta, RowsOfBlocks(gates, heads, 0, sharers));
  layer->Dense(dense::kDeltaDecay, RowsOfBlocks(gates, heads, sharers, sharers));
}

void MapDelta(LayerMapper* layer) {
  const DeltaConfig& delta = layer->attention().delta;
  const uint32_t values = delta.value_heads * delta.value_dim;
  const uint32_t conv_cols = 2 * delta.key_heads * delta.key_dim + values;
  const uint32_t hidden = layer->hidden();
  if (layer->Has("linear_attn.in_proj_qkvz.weight")) {
    MapGroupedDelta(layer);
  } else {
    layer->Dense(dense::kDeltaQkv, layer->Matrix("linear_attn.in_proj_qkv.weight", conv_cols, hidden));
    layer->Dense(dense::kDeltaZ, layer->Matrix("linear_attn.in_proj_z.weight", values, hidden));
    layer->Dense(dense::kDeltaBeta, layer->Matrix("linear_attn.in_proj_b.weight", delta.value_heads, hidden));
    layer->Dense(dense::kDeltaDecay,
                 layer->Matrix("linear_attn.in_proj_a.weight", delta.value_heads, hidden));
  }
  // Depthwise convolution: [channels, 1, kernel].
  layer->Dense(dense::kDeltaConv, layer->Stack("linear_attn.conv1d.weight", conv_cols, 1, delta.conv_kernel));
  layer->Dense(dense::kDeltaALog, layer->Vector("linear_attn.A_log", delta.value_heads));
  layer->Dense(dense::kDeltaDtBias, layer->Vector("linear_attn.dt_bias", delta.value_heads));
  layer->Dense(dense::kDeltaNorm, layer->Vector("linear_attn.norm.weight", delta.value_dim));
  layer->Dense(dense::kO, layer->Matrix("linear_attn.out_proj.weight", hidden, values));
}

void MapGatedAttention(LayerMapper* layer) {
  const AttentionConfig& a = layer->attention();
  const uint32_t q_rows = a.heads * a.head_dim;
  const uint32_t kv_rows = a.kv_heads * a.head_dim;
  // Each head has head_dim lines of q, then as many of its gate.
  const SourceMatrix both = layer->Matrix("self_attn.q_proj.weight", uint64_t{2} * q_rows, layer->hidden());
  layer->Dense(dense::kQ, RowsOfBlocks(both, a.heads, 0, a.head_dim));
  layer->Dense(dense::kQGate, RowsOfBlocks(both, a.heads, a.head_dim, a.head_dim));
  layer->Dense(dense::kK, layer->Matrix("self_attn.k_proj.weight", kv_rows, layer->hidden()));
  layer->Dense(dense::kV, layer->Matrix("self_attn.v_proj.weight", kv_rows, layer->hidden()));
  layer->Dense(dense::kO, layer->Matrix("self_attn.o_proj.weight", layer->hidden(), q_rows));
  layer->Dense(dense::kQNorm, PlusOne(layer->Vector("self_attn.q_norm.weight", a.head_dim)));
  layer->Dense(dense::kKNorm, PlusOne(layer->Vector("self_attn.k_norm.weight", a.head_dim)));
}

MoeConfig ReadMixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.shared_width = fields->Number("shared_expert_intermediate_size", 1, kMaxWidth);
  moe.shared_gate = true;
  fields->RequireWord("hidden_act", "silu");  // also the convolution's activation
  return moe;
}

// Reads the attention kinds: full attention in every full_attention_interval-th layer, or by layer_types.
void ReadAttention(ModelConfig* model, HfFields* fields) {
  AttentionConfig full = ReadGrouped(
      {.kv_heads = 2, .head_dim = 256, .rope = {.partial = 0.25, .may_be_partial = true}}, *model, fields);
  full.qk_norm = QkNorm::kPerHead;
  full.output_gate = true;
  fields->RequireOff("attention_bias");
  const AttentionConfig delta = ReadDelta(fields);
  const uint32_t interval = fields->Number("full_attention_interval", 1, kMaxLayers, 4);
  const std::vector<std::string> types =
      ReadLayerTypes({"linear_attention", "full_attention"}, model->layers.size(), fields);
  for (size_t i = 0; i < model->layers.size(); ++i) {
    const bool is_full = types.empty() ? (i + 1) % interval == 0 : types[i] == "full_attention";
    model->layers[i].attention = is_full ? full : delta;
  }
}

}  // namespace

ModelConfig ReadQwen35Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("qwen3_5_moe_text", {.max_position = 32768}, fields);
  const MoeConfig moe = ReadMixture(fields);
  ReadAttention(&model, fields);
  for (LayerConfig& layer : model.layers) layer.moe = moe;
  fields->Skip("intermediate_size");  // of dense layers; the family has none
  fields->RequireNumber("decoder_sparse_step", 1);
  if (!fields->Numbers("mlp_only_layers", kMaxLayers).empty()) fields->Refuse("mlp_only_layers");
  fields->RequireFlag("attn_output_gate", true);
  fields->RequireFlag("norm_topk_prob", true);
  fields->Skip("mamba_ssm_dtype");
  fields->Skip("mtp_num_hidden_layers");
  fields->RequireOff("mtp_use_dedicated_embeddings");
  return model;
}

ModelConfig ReadQwen3Next(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("qwen3_next", {.max_position = 32768}, fields);
  MoeConfig moe = ReadMixture(fields);
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  ReadAttention(&model, fields);
  SetQwenFfns(moe, &model, fields);
  return model;
}

// Maps text checkpoints, and the language model of multimodal ones.
void MapQwen35Moe(const ModelConfig& config, TensorMapper* mapper) {
  const bool nested = mapper->Has("model.language_model.embed_tokens.weight");
  const std::string inner = nested ? "model.language_model." : "model.";
  mapper->IgnorePrefix("mtp.");
  if (nested) mapper->IgnorePrefix("model.visual.");
  MapEmbeddingAndHead(
      config, {.embed = inner + "embed_tokens.weight", .norm = inner + "norm", .plus_one = true}, mapper);
  MapLayers(config, inner + "layers.", mapper,
            [](LayerMapper* layer) {
              const MoeConfig& moe = layer->moe();
              if (layer->attention().kind == AttentionKind::kGatedDelta) {
                MapDelta(layer);
              } else {
                MapGatedAttention(layer);
              }
              if (moe.experts == 0) return layer->DenseFfn("mlp.");
              layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", moe.experts, layer->hidden()));
              layer->Experts("mlp.experts.", {});
              layer->SharedExpert("mlp.shared_expert.");
              layer->Dense(dense::kSharedRouter,
                           layer->Matrix("mlp.shared_expert_gate.weight", 1, layer->hidden()));
            },
            {.plus_one = true});
}

}  // namespace sluice
