// AFMoE (arcee-ai/Trinity): rope only in layers with a window, attention with an output gate, norms after
// attention and MoE block too, sigmoid router with a selection correction, shared experts.
#include <cmath>

#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

MoeConfig ReadAfmoeMixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  const uint64_t shared = fields->Number("num_shared_experts", 0, kMaxExperts, 0);
  if (shared * moe.expert_width > kMaxWidth) {
    fields->Fail("num_shared_experts", absl::StrCat("is ", shared, "; the shared FFN passes ", kMaxWidth));
  } else {
    moe.shared_width = static_cast<uint32_t>(shared * moe.expert_width);
  }
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

}  // namespace sluice
