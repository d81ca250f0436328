// OLMoE (allenai/OLMoE-1B-7B): norms across all heads of q and k, optional clipping of q, k and v.
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {

ModelConfig ReadOlmoe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("olmoe", {.max_position = 4096, .epsilon = 1e-5}, fields);
  LayerConfig layer;
  layer.attention = ReadGrouped({}, model, fields);
  layer.attention.qkv_bias = layer.attention.output_bias = fields->Flag("attention_bias", false);
  layer.attention.qk_norm = QkNorm::kAcrossHeads;
  layer.attention.clip_qkv = static_cast<float>(fields->Real("clip_qkv", 1e-6, 1e9, 0));
  if (layer.attention.heads * layer.attention.head_dim != model.hidden) fields->Refuse("head_dim");
  ReadExperts({"num_experts", "num_local_experts"}, &layer.moe, fields);
  layer.moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  layer.moe.norm_topk_prob = fields->Flag("norm_topk_prob", false);
  layer.moe.activation = ReadActivation(fields);
  model.layers.assign(model.layers.size(), layer);
  return model;
}

void MapOlmoe(const ModelConfig& config, TensorMapper* mapper) { MapQwenMoe(config, mapper); }

}  // namespace sluice
