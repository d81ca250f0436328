// XVERSE-MoE (xverse/XVERSE-MoE-A4.2B): Llama's attention, fine-grained experts of which the first are
// shared.
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {

ModelConfig ReadXverse(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("xverse", {.max_position = 8192}, fields);
  LayerConfig layer;
  layer.attention = ReadGrouped({}, model, fields);
  fields->RequireOff("attention_bias");
  layer.moe.experts = fields->Number("num_experts", 1, kMaxExperts);
  layer.moe.top_k = fields->Number("moe_top_k", 1, layer.moe.experts);
  layer.moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  const uint64_t shared = fields->Number("num_shared_experts", 0, kMaxExperts, 0);
  if (shared * layer.moe.expert_width > kMaxWidth) {
    fields->Fail("num_shared_experts", absl::StrCat("is ", shared, "; the shared FFN passes ", kMaxWidth));
  } else {
    layer.moe.shared_width = static_cast<uint32_t>(shared * layer.moe.expert_width);
  }
  layer.moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  layer.moe.activation = ReadActivation(fields);
  fields->Skip("max_tokenizer_truncation");
  model.layers.assign(model.layers.size(), layer);
  return model;
}

void MapXverse(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention();
    const bool router = layer->Has("mlp.router.weight");
    layer->Dense(dense::kRouter, layer->Matrix(router ? "mlp.router.weight" : "mlp.gate.weight", moe.experts,
                                               layer->hidden()));
    layer->Experts("mlp.experts.", {});
    if (moe.shared_width != 0) layer->SharedExpert("mlp.shared_experts.");
  });
}

}  // namespace sluice
