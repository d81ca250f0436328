// Families that alternate windows and full attention, each type of layer with a position encoding of its own:
// K-EXAONE, Mellum.

#include "common/model/dense_names.h"
#include "common/model/hf_blocks.h"
#include "common/model/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// True for the layers with a window; empty if layer_types is absent.
std::vector<bool> ReadSlidingLayers(size_t layers, HfFields* fields) {
  std::vector<bool> slides;
  for (const std::string& type : ReadLayerTypes({"full_attention", "sliding_attention"}, layers, fields)) {
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

// Maps DeepSeek's tensors with a router's correction of this name.
void MapCorrected(const std::string& correction, const std::string& shared, LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  if (moe.experts == 0) return layer->DenseFfn("mlp.");
  layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", moe.experts, layer->hidden()));
  const std::string written = "mlp.gate.e_score_correction_bias";
  layer->Dense(dense::kRouterCorrection,
               layer->Vector(layer->Has(correction) ? correction : written, moe.experts));
  layer->Experts("mlp.experts.", {});
  if (moe.shared_width != 0) layer->SharedExpert(shared);
}

}  // namespace

// K-EXAONE (LGAI-EXAONE/K-EXAONE-236B-A23B): rope in layers with a window alone, norms on heads,
// DeepSeek-V3's router and shared expert.

namespace {

std::vector<bool> ReadExaoneTypes(size_t layers, HfFields* fields) {
  std::vector<bool> slides = ReadSlidingLayers(layers, fields);
  if (!slides.empty()) {
    fields->Skip("sliding_window_pattern");
    return slides;
  }
  slides.resize(layers);
  if (fields->IsNull("sliding_window")) {
    fields->Skip("sliding_window_pattern");
    return slides;
  }
  const uint32_t pattern = fields->Number("sliding_window_pattern", 1, kMaxLayers, 4);
  for (size_t i = 0; i < layers; ++i) slides[i] = (i + 1) % pattern != 0;
  return slides;
}

std::vector<bool> ReadExaoneSparse(size_t layers, HfFields* fields) {
  const uint32_t published = fields->Number("first_last_k_dense_replace", 0, kMaxLayers, 1);
  const uint32_t dense = fields->Number("first_k_dense_replace", 0, kMaxLayers, published);
  const std::vector<bool> listed = fields->Flags("is_moe_layer");
  std::vector<bool> sparse = ReadSparseLayers(layers, fields);
  if (!sparse.empty()) return sparse;
  for (size_t i = 0; i < layers; ++i) sparse.push_back(i >= dense);
  if (!listed.empty() && listed != sparse) fields->Refuse("is_moe_layer");
  return sparse;
}

}  // namespace

ModelConfig ReadExaoneMoe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("exaone_moe", {.max_position = 2048, .epsilon = 1e-5}, fields);
  const size_t layers = model.layers.size();
  AttentionConfig sliding = ReadGrouped({.kv_heads = 32}, model, fields);
  sliding.qk_norm = QkNorm::kPerHead;
  fields->RequireOff("attention_bias");
  AttentionConfig full = sliding;
  if (!fields->IsNull("sliding_window")) {
    sliding.sliding_window = fields->Number("sliding_window", 1, kMaxPosition, 4096);
    full.rope = RopeConfig{.kind = RopeKind::kNone};
  }
  const std::vector<bool> slides = ReadExaoneTypes(layers, fields);
  for (size_t i = 0; i < layers; ++i) {
    model.layers[i].attention = slides[i] ? sliding : full;
    if (slides[i] && fields->IsNull("sliding_window")) fields->Refuse("sliding_window");
  }
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth, 1024);
  moe.shared_width = ReadSharedWidth("num_shared_experts", 1, moe.expert_width, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.group_score = GroupScore::kTopTwoSum;
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 2.5));
  ReadGroups(1, 1, &moe, fields);
  moe.activation = ReadActivation(fields);
  fields->RequireWord("scoring_func", "sigmoid");
  fields->RequireWord("topk_method", "noaux_tc");
  SetFfns(ReadExaoneSparse(layers, fields), moe, fields->Number("intermediate_size", 1, kMaxWidth, 16384),
          &model);
  fields->Skip("num_nextn_predict_layers");
  return model;
}

void MapExaoneMoe(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("mtp.");
  IgnorePredictionLayers(config, mapper);
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    layer->GroupedAttention();
    MapCorrected("mlp.e_score_correction_bias", "mlp.shared_experts.", layer);
  });
}

// Mellum 2 (JetBrains/Mellum2-12B-A2.5B): Qwen3-MoE with windows.

ModelConfig ReadMellum(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("mellum", {.max_position = 131072}, fields);
  const size_t layers = model.layers.size();
  AttentionConfig full = ReadHeads({.kv_heads = 4, .head_dim = 128}, model, fields);
  full.qkv_bias = full.output_bias = fields->Flag("attention_bias", false);
  full.qk_norm = QkNorm::kPerHead;
  AttentionConfig sliding = full;
  const uint32_t window =
      fields->Number("sliding_window", 1, kMaxPosition, fields->IsNull("sliding_window") ? 0 : 1024);
  sliding.sliding_window = window;
  SetRope(ReadRopeOfType("full_attention", {.theta = 5e5}, full.head_dim, model.max_position, fields), &full,
          fields);
  SetRope(ReadRopeOfType("sliding_attention", {}, full.head_dim, model.max_position, fields), &sliding,
          fields);
  const std::vector<bool> slides = ReadSlidingLayers(layers, fields);
  for (size_t i = 0; i < layers; ++i) {
    model.layers[i].attention = !slides.empty() && slides[i] ? sliding : full;
  }
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth, 896);
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  moe.activation = ReadActivation(fields);
  std::vector<bool> sparse = ReadSparseLayers(layers, fields);
  if (sparse.empty()) sparse.assign(layers, true);
  SetFfns(sparse, moe, fields->Number("intermediate_size", 1, kMaxWidth, 7168), &model);
  for (const char* key :
       {"num_nextn_predict_layers", "num_mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types"}) {
    fields->Skip(key);
  }
  return model;
}

void MapMellum(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("mtp.");
  MapQwenMoe(config, mapper);
}

}  // namespace sluice
