// Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B: shared expert with a gate, q/k/v biases) and Qwen3-MoE
// (Qwen3-30B-A3B, 235B-A22B: q/k norms, separate head_dim), which is also the text model of Qwen3-VL-MoE.
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// Reads the MoE members common to both generations.
MoeConfig ReadQwenMixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", false);
  moe.activation = ReadActivation(fields);
  return moe;
}

}  // namespace

ModelConfig ReadQwen2Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("qwen2_moe", {.max_position = 32768}, fields);
  AttentionConfig attention = ReadGrouped({.kv_heads = 16}, model, fields);
  attention.qkv_bias = fields->Flag("qkv_bias", true);
  MoeConfig moe = ReadQwenMixture(fields);
  moe.shared_width = fields->Number("shared_expert_intermediate_size", 1, kMaxWidth);
  moe.shared_gate = true;
  SetQwenFfns(moe, &model, fields);
  const bool sliding = fields->Flag("use_sliding_window", false);
  const uint32_t window = fields->Number("sliding_window", 0, kMaxPosition, sliding ? 4096 : 0);
  const uint32_t max_window_layers = fields->Number("max_window_layers", 0, kMaxLayers, 28);
  const std::vector<std::string> types =
      ReadLayerTypes({"full_attention", "sliding_attention"}, model.layers.size(), fields);
  for (uint32_t i = 0; i < model.layers.size(); ++i) {
    const bool slides =
        // Default of transformers without a list of types: a window in every second layer below
        // max_window_layers.
        types.empty() ? sliding && i % 2 == 0 && i < max_window_layers : types[i] == "sliding_attention";
    model.layers[i].attention = attention;
    if (!slides) continue;
    if (!sliding || window == 0)
      fields->Fail("sliding_window", "is missing, but there are layers that slide");
    model.layers[i].attention.sliding_window = window;
  }
  return model;
}

ModelConfig ReadQwen3Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("qwen3_moe", {.max_position = 32768}, fields);
  AttentionConfig attention = ReadGrouped({.kv_heads = 4}, model, fields);
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", false);
  attention.qk_norm = QkNorm::kPerHead;
  fields->Skip("max_window_layers");  // the window applies to every layer
  const uint32_t window = fields->Number("sliding_window", 0, kMaxPosition, 4096);
  if (fields->Flag("use_sliding_window", false) && !fields->IsNull("sliding_window")) {
    attention.sliding_window = window;
  }
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  SetQwenFfns(ReadQwenMixture(fields), &model, fields);
  return model;
}

// Positions have three parts, which are equal for text; the router always normalizes.
ModelConfig ReadQwen3VlMoe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("qwen3_vl_moe_text", {.max_position = 128000}, fields);
  AttentionConfig attention = ReadGrouped({.kv_heads = 16, .rope = {.theta = 5e5}}, model, fields);
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", false);
  attention.qk_norm = QkNorm::kPerHead;
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe = ReadQwenMixture(fields);
  moe.norm_topk_prob = true;
  SetQwenFfns(moe, &model, fields);
  fields->RequireOff("sliding_window");
  fields->RequireOff("use_sliding_window");
  return model;
}

void MapQwen3VlMoe(const ModelConfig& config, TensorMapper* mapper) {
  const std::string inner = "model.language_model.";
  mapper->IgnorePrefix("model.visual.");
  MapEmbeddingAndHead(config, {.embed = inner + "embed_tokens.weight", .norm = inner + "norm"}, mapper);
  MapLayers(config, inner + "layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention();
    if (moe.experts == 0) return layer->DenseFfn("mlp.");
    layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", moe.experts, layer->hidden()));
    // Published folders stack experts input-major, newer ones output-major. The shape of gate_up_proj tells
    // them apart; if hidden is twice the width, the shape of down_proj does.
    const std::string gate_up = "mlp.experts.gate_up_proj";
    const std::string down = "mlp.experts.down_proj";
    if (layer->HasShape(gate_up, {moe.experts, layer->hidden(), uint64_t{2} * moe.expert_width}) &&
        layer->HasShape(down, {moe.experts, moe.expert_width, layer->hidden()})) {
      MapStackedInputs(gate_up, down, layer);
    } else {
      layer->Experts("mlp.experts.", {});
    }
  });
}

void MapQwenMoe(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention();
    if (moe.experts == 0) return layer->DenseFfn("mlp.");
    layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", moe.experts, layer->hidden()));
    layer->Experts("mlp.experts.", {});
    if (moe.shared_width == 0) return;
    layer->SharedExpert("mlp.shared_expert.");
    layer->Dense(dense::kSharedRouter, layer->Matrix("mlp.shared_expert_gate.weight", 1, layer->hidden()));
  });
}

}  // namespace sluice
