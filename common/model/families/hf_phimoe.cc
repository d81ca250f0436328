// Phi-3.5-MoE (microsoft/Phi-3.5-MoE-instruct): SparseMixer router, layer norm, biases, long rope.
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {

ModelConfig ReadPhimoe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("phimoe", {.max_position = 4096 * 32, .epsilon = 1e-5}, fields);
  model.norm = NormKind::kLayer;
  model.head_bias = fields->Flag("lm_head_bias", false);
  LayerConfig layer;
  layer.attention = ReadGrouped({.kv_heads = 8, .rope = {.theta = 1e6, .mscales = true}}, model, fields);
  layer.attention.qkv_bias = layer.attention.output_bias = fields->Flag("attention_bias", false);
  layer.attention.sliding_window = fields->Number("sliding_window", 1, kMaxPosition, 0);
  ReadExperts({"num_local_experts", "num_experts"}, &layer.moe, fields);
  if (layer.moe.top_k != 2) fields->Refuse("num_experts_per_tok");  // SparseMixer always chooses two
  layer.moe.router = RouterKind::kSparseMixer;
  layer.moe.router_jitter = static_cast<float>(fields->Real("router_jitter_noise", 0, 1, 0.01));
  layer.moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  layer.moe.activation = ReadActivation(fields);
  model.layers.assign(model.layers.size(), layer);
  return model;
}

void MapPhimoe(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    layer->GroupedAttention();
    // The names changed when transformers moved the MoE block to `mlp`.
    const bool old_names = layer->Has("block_sparse_moe.gate.weight");
    const std::string moe = old_names ? "block_sparse_moe." : "mlp.";
    layer->Dense(dense::kRouter, layer->Matrix(moe + (old_names ? "gate.weight" : "router.weight"),
                                               layer->moe().experts, layer->hidden()));
    layer->Experts(moe + "experts.", {.gate = "w1", .up = "w3", .down = "w2"});
  });
}

}  // namespace sluice
