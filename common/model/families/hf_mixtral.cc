// Mixtral (mistralai/Mixtral-8x7B, 8x22B).
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {

ModelConfig ReadMixtral(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("mixtral", {.max_position = 4096 * 32, .epsilon = 1e-5}, fields);
  LayerConfig layer;
  layer.attention = ReadGrouped({.kv_heads = 8, .rope = {.theta = 1e6}}, model, fields);
  layer.attention.sliding_window = fields->Number("sliding_window", 1, kMaxPosition, 0);
  ReadExperts({"num_local_experts", "num_experts"}, &layer.moe, fields);
  layer.moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  layer.moe.activation = ReadActivation(fields);
  model.layers.assign(model.layers.size(), layer);
  return model;
}

// Maps both generations of names: block_sparse_moe with w1, w3, w2, and mlp with stacked experts.
void MapMixtral(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    layer->GroupedAttention();
    const std::string moe = layer->Has("block_sparse_moe.gate.weight") ? "block_sparse_moe." : "mlp.";
    layer->Dense(dense::kRouter, layer->Matrix(moe + "gate.weight", layer->moe().experts, layer->hidden()));
    layer->Experts(moe + "experts.", {.gate = "w1", .up = "w3", .down = "w2"});
  });
}

}  // namespace sluice
