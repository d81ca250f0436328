// MiniMax-M2 (MiniMaxAI/MiniMax-M2, 2.1, 2.5): norms across all heads of q and k, partial rotary, sigmoid
// router with a selection correction, no shared expert.
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// Reads published members that repeat the family's fixed behaviour, and those of the layers that predict
// further tokens.
void ReadRepeated(HfFields* fields) {
  fields->RequireFlag("use_qk_norm", true);
  fields->RequireWord("qk_norm_type", "per_layer");
  fields->RequireWord("scoring_func", "sigmoid");
  fields->RequireFlag("use_routing_bias", true);
  fields->RequireNumber("shared_intermediate_size", 0);
  fields->RequireOff("attention_bias");
  for (const uint32_t type : fields->Numbers("attn_type_list", kMaxLayers)) {
    if (type != 1) fields->Refuse("attn_type_list");
  }
  for (const char* key :
       {"layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"}) {
    fields->RequireNumber(key, 1);
  }
  for (const char* key : {"use_mtp", "num_mtp_modules", "mtp_transformer_layers"}) fields->Skip(key);
}

}  // namespace

ModelConfig ReadMinimaxM2(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("minimax_m2", {.max_position = 196608}, fields);
  LayerConfig layer;
  layer.attention = ReadGrouped(
      {.kv_heads = 8, .head_dim = 128, .rope = {.theta = 5e6, .may_be_partial = true}}, model, fields);
  // Published folders hold the number of rotated values, newer files the rotated share of a head.
  RopeConfig& rope = layer.attention.rope;
  rope.dimensions = fields->Number("rotary_dim", 2, layer.attention.head_dim, rope.dimensions);
  if (rope.dimensions % 2 != 0) fields->Refuse("rotary_dim");
  layer.attention.qk_norm = QkNorm::kAcrossHeads;
  MoeConfig& moe = layer.moe;
  ReadExperts({"num_local_experts", "num_experts"}, &moe, fields);
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.activation = ReadActivation(fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  ReadRepeated(fields);
  model.layers.assign(model.layers.size(), layer);
  return model;
}

void MapMinimaxM2(const ModelConfig& config, TensorMapper* mapper) {
  IgnorePredictionLayers(config, mapper);
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const uint32_t experts = layer->moe().experts;
    layer->GroupedAttention();
    const bool old_names = layer->Has("block_sparse_moe.gate.weight");
    const std::string moe = old_names ? "block_sparse_moe." : "mlp.";
    const std::string correction = layer->Has(moe + "e_score_correction_bias")
                                       ? moe + "e_score_correction_bias"
                                       : moe + "gate.e_score_correction_bias";
    layer->Dense(dense::kRouter, layer->Matrix(moe + "gate.weight", experts, layer->hidden()));
    layer->Dense(dense::kRouterCorrection, layer->Vector(correction, experts));
    layer->Experts(moe + "experts.", {.gate = "w1", .up = "w3", .down = "w2"});
  });
}

}  // namespace sluice
