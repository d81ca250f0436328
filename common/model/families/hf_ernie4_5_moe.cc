// ERNIE-4.5-MoE (baidu/ERNIE-4.5-21B-A3B): rope on adjacent values, softmax router with a selection
// correction, dense layers at both ends, shared experts.
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

MoeConfig ReadErnieMixture(HfFields* fields) {
  MoeConfig moe;
  moe.experts = fields->Number("moe_num_experts", 1, kMaxExperts, 64);
  moe.top_k = fields->Number("moe_k", 1, moe.experts, 6);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth, 1536);
  const uint64_t shared = fields->Number("moe_num_shared_experts", 0, kMaxExperts, 2);
  if (shared * moe.expert_width > kMaxWidth) {
    fields->Fail("moe_num_shared_experts",
                 absl::StrCat("is ", shared, "; the shared FFN passes ", kMaxWidth));
  } else {
    moe.shared_width = static_cast<uint32_t>(shared * moe.expert_width);
  }
  moe.router_correction = true;
  moe.activation = ReadActivation(fields);
  // Lower bound of the sum of the chosen probabilities; the experts of a smaller sum are negligible.
  fields->Real("moe_norm_min", 0, 1e-6, 1e-12);
  fields->RequireFlag("moe_use_aux_free", true);
  return moe;
}

}  // namespace

ModelConfig ReadErnie45Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("ernie4_5_moe", {.max_position = 131072, .epsilon = 1e-5}, fields);
  model.tied_embeddings = fields->Flag("tie_word_embeddings", true);
  AttentionConfig attention = ReadGrouped({.kv_heads = 4, .rope = {.theta = 5e5}}, model, fields);
  attention.rope.interleaved = true;
  fields->RequireOff("use_bias");
  const MoeConfig moe = ReadErnieMixture(fields);
  const MoeConfig dense = DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth), moe.activation);
  const uint32_t layers = static_cast<uint32_t>(model.layers.size());
  const uint32_t interval = fields->Number("moe_layer_interval", 1, kMaxLayers, 1);
  const uint32_t start = fields->Number("moe_layer_start_index", 0, kMaxLayers, 1);
  const double end = fields->Real("moe_layer_end_index", -1, kMaxLayers, -1);  // -1: the last
  for (uint32_t i = 0; i < layers; ++i) {
    const bool is_sparse = (i + 1) % interval == 0 && i >= start && (end < 0 || i <= end);
    model.layers[i] = {attention, is_sparse ? moe : dense};
  }
  fields->Skip("num_nextn_predict_layers");
  return model;
}

void MapErnie45Moe(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("model.mtp_");
  mapper->IgnorePrefix("mtp");
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention();
    if (moe.experts == 0) return layer->DenseFfn("mlp.");
    layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", moe.experts, layer->hidden()));
    layer->Dense(dense::kRouterCorrection,
                 layer->Matrix("mlp.moe_statics.e_score_correction_bias", 1, moe.experts));
    layer->Experts("mlp.experts.", {});
    if (moe.shared_width != 0) layer->SharedExpert("mlp.shared_experts.");
  });
}

}  // namespace sluice
