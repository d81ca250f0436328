// LFM2-MoE (LiquidAI/LFM2-8B-A1B): short convolutions between attention with norms on each head of q and k,
// dense first layers, sigmoid router with a selection correction.
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

MoeConfig ReadLfm2Mixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = fields->Flag("use_expert_bias", true);
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  moe.norm_epsilon = 1e-6f;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  return moe;
}

void MapConvolution(LayerMapper* layer) {
  const ShortConvConfig& conv = layer->attention().conv;
  layer->Dense(dense::kConvIn,
               layer->Matrix("conv.in_proj.weight", uint64_t{3} * conv.width, layer->hidden()));
  // Depthwise convolution: [channels, 1, kernel].
  layer->Dense(dense::kConvKernel, Transposed(layer->Stack("conv.conv.weight", conv.width, 1, conv.kernel)));
  layer->Dense(dense::kO, layer->Matrix("conv.out_proj.weight", layer->hidden(), conv.width));
}

}  // namespace

ModelConfig ReadLfm2Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("lfm2_moe", {.max_position = 128000}, fields);
  model.norm_epsilon = static_cast<float>(fields->Real("norm_eps", 0, 1, 1e-5));
  model.tied_embeddings = fields->Flag("tie_embedding", fields->Flag("tie_word_embeddings", true));
  AttentionConfig attention = ReadGrouped({.kv_heads = 8, .rope = {.theta = 1e6}}, model, fields);
  attention.qk_norm = QkNorm::kPerHead;
  AttentionConfig conv;
  conv.kind = AttentionKind::kShortConv;
  conv.rope = RopeConfig{.kind = RopeKind::kNone};
  conv.conv.width = model.hidden;
  conv.conv.kernel = fields->Number("conv_L_cache", 2, kMaxConvKernel, 3);
  fields->RequireOff("conv_bias");
  const MoeConfig moe = ReadLfm2Mixture(fields);
  const MoeConfig dense = DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth), moe.activation);
  const uint32_t dense_layers = fields->Number("num_dense_layers", 0, kMaxLayers, 2);
  const std::vector<std::string> types =
      ReadLayerTypes({"conv", "full_attention"}, model.layers.size(), fields);
  if (types.empty()) fields->Fail("layer_types", "is missing");
  for (size_t i = 0; i < types.size(); ++i) {
    model.layers[i] = {types[i] == "conv" ? conv : attention, i < dense_layers ? dense : moe};
  }
  return model;
}

void MapLfm2Moe(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {.norm = "model.embedding_norm"}, mapper);
  MapLayers(
      config, "model.layers.", mapper,
      [](LayerMapper* layer) {
        const MoeConfig& moe = layer->moe();
        const FfnNames parts = {.gate = "w1", .up = "w3", .down = "w2"};
        if (layer->attention().kind == AttentionKind::kShortConv) {
          MapConvolution(layer);
        } else {
          layer->GroupedAttention({.q_norm = "q_layernorm", .k_norm = "k_layernorm", .o = "out_proj"});
        }
        if (moe.experts == 0) return layer->DenseFfn("feed_forward.", parts);
        layer->Dense(dense::kRouter, layer->Matrix("feed_forward.gate.weight", moe.experts, layer->hidden()));
        if (moe.router_correction) {
          layer->Dense(dense::kRouterCorrection, layer->Vector("feed_forward.expert_bias", moe.experts));
        }
        layer->Experts("feed_forward.experts.", parts);
      },
      {.attention = "operator_norm", .ffn = "ffn_norm"});
}

}  // namespace sluice
