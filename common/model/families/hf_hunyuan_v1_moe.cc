// Hunyuan-V1-MoE (tencent/Hunyuan-A13B): norms on each head of q and k after rope, a theta stretched by
// alpha, a shared expert of the routed ones' width.

#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// Reads a number, or one for each layer; differing values are refused.
uint32_t ReadPerLayer(const char* key, size_t layers, uint64_t high, HfFields* fields) {
  if (fields->IsUnsigned(key)) return fields->Number(key, 1, high);
  const std::vector<uint32_t> numbers = fields->Numbers(key, high);
  if (numbers.empty() || numbers.size() < layers || numbers[0] == 0) {
    fields->Fail(key, absl::StrCat("has ", numbers.size(), " entries for ", layers, " layers, or zeros"));
    return 1;
  }
  for (const uint32_t number : numbers) {
    if (number != numbers[0]) fields->Refuse(key);
  }
  return numbers[0];
}

// Requires the member to be absent or to repeat the given value.
void OnlyRepeats(const char* key, uint32_t value, size_t layers, HfFields* fields) {
  if (fields->Has(key) && ReadPerLayer(key, layers, kMaxWidth, fields) != value) fields->Refuse(key);
}

}  // namespace

ModelConfig ReadHunyuanV1Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("hunyuan_v1_moe", {.max_position = 2048, .epsilon = 1e-5}, fields);
  const size_t layers = model.layers.size();
  LayerConfig layer;
  layer.attention = ReadGrouped({.rope = {.alpha = true}}, model, fields);
  layer.attention.qk_norm = QkNorm::kWeightedAfterRope;
  fields->RequireFlag("use_qk_norm", true);
  layer.attention.qkv_bias = layer.attention.output_bias = fields->Flag("attention_bias", false);
  MoeConfig& moe = layer.moe;
  moe.experts = ReadPerLayer("num_experts", layers, kMaxExperts, fields);
  moe.top_k = ReadPerLayer("moe_topk", layers, kMaxExperts, fields);
  if (moe.top_k > moe.experts) {
    fields->Fail("moe_topk", absl::StrCat("is ", moe.top_k, ", but there are ", moe.experts, " experts"));
  }
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.shared_width = moe.expert_width;
  moe.activation = ReadActivation(fields);
  OnlyRepeats("moe_intermediate_size", moe.expert_width, layers, fields);
  OnlyRepeats("num_shared_expert", 1, layers, fields);
  fields->RequireFlag("use_mixed_mlp_moe", true);
  fields->RequireFlag("norm_topk_prob", true);
  fields->Skip("eod_token_id");
  model.layers.assign(layers, layer);
  return model;
}

void MapHunyuanV1Moe(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention({.q_norm = "query_layernorm", .k_norm = "key_layernorm"});
    layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.wg.weight", moe.experts, layer->hidden()));
    layer->Experts("mlp.experts.", {});
    layer->SharedExpert("mlp.shared_mlp.");
  });
}

}  // namespace sluice
