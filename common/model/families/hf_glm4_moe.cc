// GLM-4-MoE (zai-org/GLM-4.5, 4.5-Air, 4.6): partial rotary, optional q/k norms, sigmoid router with a
// correction for the choice, dense first layers, a shared expert.
#include "common/model/families/hf_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/families/hf_map_blocks.h"
#include "common/model/model_limits.h"

namespace sluice {

ModelConfig ReadGlm4Moe(HfFields* fields) {
  ModelConfig model = ReadFrame("glm4_moe", {.max_position = 131072, .epsilon = 1e-5}, fields);
  AttentionConfig attention =
      ReadGrouped({.kv_heads = 8, .rope = {.partial = 0.5, .may_be_partial = true}}, model, fields);
  attention.qkv_bias = fields->Flag("attention_bias", false);
  if (fields->Flag("use_qk_norm", false)) attention.qk_norm = QkNorm::kPerHead;
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe = ReadDeepseekMixture(1, true, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.group_score = GroupScore::kTopTwoSum;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  ReadGroups(1, 1, &moe, fields);
  SetDeepseekFfns(1, moe, &model, fields);
  fields->Skip("num_nextn_predict_layers");
  fields->Skip("num_mtp_layers");
  return model;
}

void MapGlm4Moe(const ModelConfig& config, TensorMapper* mapper) {
  IgnorePredictionLayers(config, mapper);
  MapEnds(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    layer->GroupedAttention();
    layer->DeepseekFfn();
  });
}

}  // namespace sluice
