// DeepSeek: MoE-16B (deepseek: Llama's attention), V2 and V2-Lite (latent attention, softmax router) and V3
// (sigmoid router with groups and a selection correction); V3.2 and GLM-5 as far as they equal V3; Mistral's
// Small 4, whose attention is V3's with a temperature.
#include <algorithm>

#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_latent.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// V3 and models of the same design.
ModelConfig ReadV3(const std::string& family, const BaseDefaults& defaults, uint32_t first_dense,
                   HfFields* fields) {
  ModelConfig model = ReadBaseConfig(family, defaults, fields);
  const bool interleaved = fields->Flag("rope_interleave", true);
  const AttentionConfig attention = ReadLatent({.interleaved = interleaved}, model, fields);
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe = ReadDeepseekMixture(1, true, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 2.5));
  fields->RequireWord("scoring_func", "sigmoid");
  fields->RequireWord("topk_method", "noaux_tc");
  moe.group_score = GroupScore::kTopTwoSum;
  ReadGroups(8, 4, &moe, fields);
  SetDeepseekFfns(first_dense, moe, &model, fields);
  fields->Skip("num_nextn_predict_layers");
  fields->Skip("num_mtp_layers");
  return model;
}

ModelConfig ReadIndexed(const std::string& family, const BaseDefaults& defaults, HfFields* fields) {
  ModelConfig model = ReadV3(family, defaults, 3, fields);
  fields->Skip("index_head_dim");
  fields->Skip("index_n_heads");
  model.max_position = std::min(model.max_position, fields->Number("index_topk", 1, kMaxPosition, 2048));
  return model;
}

}  // namespace

ModelConfig ReadDeepseek(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("deepseek", {.max_position = 2048}, fields);
  AttentionConfig attention = ReadGrouped({}, model, fields);
  fields->RequireOff("attention_bias");
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  fields->RequireWord("scoring_func", "softmax");
  SetDeepseekFfns(0, ReadDeepseekMixture(0, false, fields), &model, fields);
  return model;
}

ModelConfig ReadDeepseekV2(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("deepseek_v2", {.max_position = 2048}, fields);
  const AttentionConfig attention = ReadLatent({}, model, fields);
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe = ReadDeepseekMixture(2, false, fields);
  moe.norm_topk_prob = false;  // transformers' router has the member and never normalizes
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  fields->RequireWord("scoring_func", "softmax");
  // V2 has groups; V2-Lite has their members but does not use them.
  const std::string method = fields->Word("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    ReadGroups(1, 1, &moe, fields);
  } else {
    fields->RequireWord("topk_method", "greedy");
    fields->Skip("n_group");
    fields->Skip("topk_group");
  }
  SetDeepseekFfns(0, moe, &model, fields);
  return model;
}

ModelConfig ReadDeepseekV3(HfFields* fields) {
  return ReadV3("deepseek_v3", {.max_position = 4096}, 3, fields);
}

// The indexer chooses the index_topk positions that a query attends to; up to that length it is all of them.
ModelConfig ReadDeepseekV32(HfFields* fields) {
  return ReadIndexed("deepseek_v32", {.max_position = 163840}, fields);
}
ModelConfig ReadGlmMoeDsa(HfFields* fields) {
  fields->Skip("indexer_rope_interleave");
  return ReadIndexed("glm_moe_dsa", {.max_position = 202752, .epsilon = 1e-5}, fields);
}

ModelConfig ReadMistral4(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("mistral4", {.max_position = 1048576}, fields);
  const bool interleaved = fields->Flag("rope_interleave", true);
  const AttentionConfig attention = ReadLatent(
      {.q_rank = 1024, .kv_rank = 256, .nope_dim = 64, .interleaved = interleaved, .temperature = true},
      model, fields);
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe = ReadDeepseekMixture(1, true, fields);
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  moe.group_score = GroupScore::kTopTwoSum;
  ReadGroups(1, 1, &moe, fields);
  SetDeepseekFfns(0, moe, &model, fields);
  return model;
}

void MapDeepseek(const ModelConfig& config, TensorMapper* mapper) {
  IgnorePredictionLayers(config, mapper);
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    if (layer->attention().kind == AttentionKind::kLatent) {
      MapLatent(layer);
    } else {
      layer->GroupedAttention();
    }
    layer->DeepseekFfn();
  });
}

void MapIndexedDeepseek(const ModelConfig& config, TensorMapper* mapper) {
  for (size_t i = 0; i < config.layers.size(); ++i) {
    mapper->IgnorePrefix(absl::StrCat("model.layers.", i, ".self_attn.indexer."));
  }
  MapDeepseek(config, mapper);
}

}  // namespace sluice
