// Granite-MoE (ibm-granite/granite-3.x-1b-a400m, 3b-a800m): multipliers, experts fused in two tensors.
#include "common/model/dense_names.h"
#include "common/model/families/hf_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/families/hf_map_blocks.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// Bounds of the multipliers: anything beyond them is a broken file, and keeps products finite.
constexpr double kSmallest = 1e-9;
constexpr double kLargest = 1e9;

}  // namespace

ModelConfig ReadGraniteMoe(HfFields* fields) {
  ModelConfig model = ReadFrame("granitemoe", {.max_position = 2048}, fields);
  const auto factor = [&](const char* key) {
    return static_cast<float>(fields->Real(key, kSmallest, kLargest, 1));
  };
  model.embedding_scale = factor("embedding_multiplier");
  model.residual_scale = factor("residual_multiplier");
  model.logit_scale = static_cast<float>(1 / fields->Real("logits_scaling", kSmallest, kLargest, 1));
  LayerConfig layer;
  layer.attention = ReadGrouped({}, model, fields);
  layer.attention.scale = factor("attention_multiplier");
  layer.attention.qkv_bias = layer.attention.output_bias = fields->Flag("attention_bias", false);
  ReadExperts({"num_local_experts", "num_experts"}, &layer.moe, fields);
  layer.moe.router = RouterKind::kTopKSoftmax;
  layer.moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  layer.moe.activation = ReadActivation(fields);
  model.layers.assign(model.layers.size(), layer);
  return model;
}

void MapGraniteMoe(const ModelConfig& config, TensorMapper* mapper) {
  MapEnds(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    layer->GroupedAttention();
    const std::string moe = "block_sparse_moe.";
    const bool fused = layer->Has(moe + "input_linear.weight");
    layer->Dense(dense::kRouter, layer->Matrix(moe + (fused ? "router.layer.weight" : "router.weight"),
                                               layer->moe().experts, layer->hidden()));
    if (fused) {
      MapStackedExperts(moe + "input_linear.weight", moe + "output_linear.weight", layer);
    } else {
      layer->Experts(moe + "experts.", {});
    }
  });
}

}  // namespace sluice
