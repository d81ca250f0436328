// GLM-4-MoE (zai-org/GLM-4.5, 4.5-Air, 4.6): partial rotary, optional q/k norms, sigmoid router with a
// selection correction, dense first layers, a shared expert. GLM-4-MoE-Lite (GLM-4.7-Flash) has DeepSeek's
// latent attention, dots.llm1 has norms on each head of q and k.
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_latent.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// Sigmoid scores; a group's score is the sum of its two best.
MoeConfig ReadCorrected(uint32_t shared, bool norm_topk_prob, double routed_scale, HfFields* fields) {
  MoeConfig moe = ReadDeepseekMixture(shared, norm_topk_prob, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.group_score = GroupScore::kTopTwoSum;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, routed_scale));
  ReadGroups(1, 1, &moe, fields);
  return moe;
}

}  // namespace

ModelConfig ReadGlm4Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("glm4_moe", {.max_position = 131072, .epsilon = 1e-5}, fields);
  AttentionConfig attention =
      ReadGrouped({.kv_heads = 8, .rope = {.partial = 0.5, .may_be_partial = true}}, model, fields);
  attention.qkv_bias = fields->Flag("attention_bias", false);
  if (fields->Flag("use_qk_norm", false)) attention.qk_norm = QkNorm::kPerHead;
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  SetDeepseekFfns(1, ReadCorrected(1, true, 1, fields), &model, fields);
  fields->Skip("num_nextn_predict_layers");
  fields->Skip("num_mtp_layers");
  return model;
}

ModelConfig ReadGlm4MoeLite(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("glm4_moe_lite", {.max_position = 202752, .epsilon = 1e-5}, fields);
  const bool interleaved = fields->Flag("rope_interleave", true);
  const AttentionConfig attention = ReadLatent(
      {.q_rank = 768, .nope_dim = 192, .value_dim = 256, .interleaved = interleaved}, model, fields);
  const MoeConfig moe = ReadCorrected(1, true, 1.8, fields);
  const MoeConfig dense = DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth, 10240), moe.activation);
  fields->Skip("first_k_dense_replace");  // the reference class does not read it
  const std::vector<std::string> types =
      ReadLayerTypes({"dense", "sparse"}, model.layers.size(), fields, "mlp_layer_types");
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const bool is_dense = types.empty() ? i == 0 : types[i] == "dense";
    model.layers[i] = {attention, is_dense ? dense : moe};
  }
  fields->RequireWord("topk_method", "noaux_tc");
  fields->Skip("num_nextn_predict_layers");
  return model;
}

ModelConfig ReadDots1(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("dots1", {.max_position = 2048}, fields);
  AttentionConfig attention = ReadGrouped({.kv_heads = 32}, model, fields);
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", false);
  attention.qk_norm = QkNorm::kPerHead;
  SetDeepseekFfns(0, ReadCorrected(0, false, 1, fields), &model, fields);
  // Published folders name the method in place of the function.
  if (fields->Word("scoring_func", "noaux_tc") != "noaux_tc") fields->RequireWord("scoring_func", "sigmoid");
  const uint32_t window =
      fields->Number("sliding_window", 0, kMaxPosition, fields->IsNull("sliding_window") ? 0 : 4096);
  const uint32_t from = fields->Number("max_window_layers", 0, kMaxLayers, 62);
  const std::vector<std::string> types =
      ReadLayerTypes({"full_attention", "sliding_attention"}, model.layers.size(), fields);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i].attention = attention;
    const bool slides = types.empty() ? i >= from : types[i] == "sliding_attention";
    if (slides) model.layers[i].attention.sliding_window = window;
  }
  return model;
}

void MapGlm4Moe(const ModelConfig& config, TensorMapper* mapper) {
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

}  // namespace sluice
