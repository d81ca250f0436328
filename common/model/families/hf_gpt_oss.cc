// GPT-OSS (openai/gpt-oss-20b, 120b): attention sinks, every second layer with a window, biases everywhere,
// clamped SwiGLU; experts stacked in bf16 with gate and up columns alternating, or in MXFP4.
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// Default of transformers for a config without rope_parameters.
RopeConfig DefaultRope(uint32_t head_dim) {
  RopeConfig rope;
  rope.kind = RopeKind::kYarn;
  rope.theta = 150000;
  rope.factor = 32;
  rope.original_max_position = 4096;
  rope.dimensions = head_dim;
  rope.attention_factor = YarnMscale(rope.factor, 1);
  rope.truncate = false;
  return rope;
}

// The bf16 files store experts as [hidden, 2 width] with gate and up in alternating columns, and down in the
// pack's orientation; hence the transposed half of the columns.
void MapBf16Experts(LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  const uint64_t hidden = layer->hidden();
  const SourceMatrix gates_ups =
      layer->Stack("mlp.experts.gate_up_proj", moe.experts, hidden, uint64_t{2} * moe.expert_width);
  const SourceMatrix downs = layer->Stack("mlp.experts.down_proj", moe.experts, moe.expert_width, hidden);
  for (uint64_t e = 0; e < moe.experts && layer->ok(); ++e) {
    const SourceMatrix both = Rows(gates_ups, e * hidden, layer->hidden());
    layer->AddExpert({.up = Transposed(EverySecondColumn(both, 1)),
                      .gate = Transposed(EverySecondColumn(both, 0)),
                      .down = Rows(downs, e * moe.expert_width, moe.expert_width)});
  }
}

// MXFP4 folders keep the transposed matrices, whose rows are outputs.
void MapMxfp4Experts(LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  const uint64_t hidden = layer->hidden();
  const SourceMatrix gates_ups =
      layer->Stack("mlp.experts.gate_up_proj", moe.experts, uint64_t{2} * moe.expert_width, hidden);
  const SourceMatrix downs = layer->Stack("mlp.experts.down_proj", moe.experts, hidden, moe.expert_width);
  for (uint64_t e = 0; e < moe.experts && layer->ok(); ++e) {
    const SourceMatrix both = Rows(gates_ups, e * 2 * moe.expert_width, 2 * moe.expert_width);
    layer->AddExpert({.up = EverySecondRow(both, 1),
                      .gate = EverySecondRow(both, 0),
                      .down = Transposed(Rows(downs, e * hidden, layer->hidden()))});
  }
}

}  // namespace

ModelConfig ReadGptOss(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("gpt_oss", {.max_position = 131072, .epsilon = 1e-5}, fields);
  AttentionConfig attention =
      ReadGrouped({.kv_heads = 8, .head_dim = 64, .rope = {.theta = 150000}}, model, fields);
  if (!fields->Has("rope_parameters") && !fields->Has("rope_scaling")) {
    attention.rope = DefaultRope(attention.head_dim);
  }
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", true);
  attention.sinks = true;
  MoeConfig moe;
  ReadExperts({"num_local_experts", "num_experts"}, &moe, fields);
  fields->Skip("experts_per_token");       // num_experts_per_tok again
  fields->Skip("initial_context_length");  // original_max_position_embeddings again
  moe.router = RouterKind::kTopKSoftmax;
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.router_bias = moe.expert_bias = true;
  if (fields->Word("hidden_act", "silu") != "silu") fields->Refuse("hidden_act");
  moe.activation = Activation::kClampedSwiglu;
  moe.activation_alpha = static_cast<float>(fields->Real("swiglu_alpha", 0, 1e6, 1.702));
  moe.activation_limit = static_cast<float>(fields->Real("swiglu_limit", 0, 1e6, 7.0));
  const uint32_t window =
      fields->Number("sliding_window", 1, kMaxPosition, fields->IsNull("sliding_window") ? 0 : 128);
  const std::vector<std::string> types =
      ReadLayerTypes({"sliding_attention", "full_attention"}, model.layers.size(), fields);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i] = {attention, moe};
    const bool slides = types.empty() ? i % 2 == 0 : types[i] == "sliding_attention";
    if (slides) model.layers[i].attention.sliding_window = window;
  }
  return model;
}

void MapGptOss(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention();
    layer->Dense(dense::kSinks, layer->Vector("self_attn.sinks", layer->attention().heads));
    layer->Dense(dense::kRouter, layer->Matrix("mlp.router.weight", moe.experts, layer->hidden()));
    layer->Dense(dense::kRouterBias, layer->Vector("mlp.router.bias", moe.experts));
    layer->Dense(dense::kExpertsDownBias,
                 layer->Matrix("mlp.experts.down_proj_bias", moe.experts, layer->hidden()));
    if (layer->Has("mlp.experts.gate_proj_bias")) {
      // GGUF files keep gate and up apart.
      layer->Dense(dense::kExpertsGateBias,
                   layer->Matrix("mlp.experts.gate_proj_bias", moe.experts, moe.expert_width));
      layer->Dense(dense::kExpertsUpBias,
                   layer->Matrix("mlp.experts.up_proj_bias", moe.experts, moe.expert_width));
      return layer->Experts("mlp.experts.", {});
    }
    const SourceMatrix biases =
        layer->Matrix("mlp.experts.gate_up_proj_bias", moe.experts, uint64_t{2} * moe.expert_width);
    layer->Dense(dense::kExpertsGateBias, EverySecondColumn(biases, 0));
    layer->Dense(dense::kExpertsUpBias, EverySecondColumn(biases, 1));
    if (layer->IsMxfp4("mlp.experts.gate_up_proj")) {
      MapMxfp4Experts(layer);
    } else {
      MapBf16Experts(layer);
    }
  });
}

}  // namespace sluice
