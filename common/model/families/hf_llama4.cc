// Llama-4 text (meta-llama/Llama-4-Scout, Maverick): chunked attention in layers with rope, a temperature in
// layers without rope; top-1 sigmoid router that scales the expert's input; a shared expert; dense layers in
// between.
#include <algorithm>

#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// no_rope_layers holds 1 for layers WITH rope, in spite of its name; without the list every
// no_rope_layer_interval-th layer is without.
std::vector<bool> LayersWithRope(size_t layers, HfFields* fields) {
  const uint32_t interval = fields->Number("no_rope_layer_interval", 1, kMaxLayers, 4);
  const std::vector<uint32_t> listed = fields->Numbers("no_rope_layers", 1);
  std::vector<bool> with_rope(layers);
  if (!listed.empty() && listed.size() < layers) {
    fields->Fail("no_rope_layers", absl::StrCat("has ", listed.size(), " entries for ", layers, " layers"));
    return with_rope;
  }
  for (size_t i = 0; i < layers; ++i) {
    with_rope[i] = listed.empty() ? (i + 1) % interval != 0 : listed[i] != 0;
  }
  return with_rope;
}

std::vector<bool> LayersWithExperts(size_t layers, HfFields* fields) {
  const uint32_t step = fields->Number("interleave_moe_layer_step", 1, kMaxLayers, 1);
  const bool is_listed = fields->Has("moe_layers");
  const std::vector<uint32_t> listed = fields->Numbers("moe_layers", kMaxLayers);
  std::vector<bool> with_experts(layers);
  for (size_t i = 0; i < layers; ++i) {
    with_experts[i] =
        is_listed ? std::find(listed.begin(), listed.end(), i) != listed.end() : (i + 1) % step == 0;
  }
  return with_experts;
}

MoeConfig ReadLlama4Mixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_local_experts", "num_experts"}, &moe, fields);
  if (moe.top_k != 1) fields->Refuse("num_experts_per_tok");
  moe.router = RouterKind::kSigmoidInput;
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.shared_width = moe.expert_width;
  moe.activation = ReadActivation(fields);
  return moe;
}

// attn_temperature_tuning was a number in the first files and is a flag in later ones.
bool ReadTemperatureTuning(HfFields* fields) {
  if (!fields->IsUnsigned("attn_temperature_tuning")) return fields->Flag("attn_temperature_tuning", true);
  return fields->Number("attn_temperature_tuning", 0, kMaxPosition) != 0;
}

}  // namespace

ModelConfig ReadLlama4(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("llama4_text", {.max_position = 4096 * 32, .epsilon = 1e-5}, fields);
  AttentionConfig attention =
      ReadGrouped({.kv_heads = 8, .head_dim = 128, .rope = {.theta = 5e5}}, model, fields);
  attention.rope.interleaved = true;
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", false);
  const bool qk_norm = fields->Flag("use_qk_norm", true);
  const bool tuned = ReadTemperatureTuning(fields);
  const double temperature = fields->Real("attn_scale", 0, 1e6, 0.1);
  const uint32_t floor = fields->Number("floor_scale", 1, kMaxPosition, 8192);
  // An explicit null turns chunked attention off; an absent member means the default.
  const uint32_t chunk = fields->Number("attention_chunk_size", 1, kMaxPosition,
                                        fields->IsNull("attention_chunk_size") ? 0 : 8192);
  const MoeConfig moe = ReadLlama4Mixture(fields);
  const MoeConfig dense =
      DenseFfn(fields->Number("intermediate_size_mlp", 1, kMaxWidth, 16384), moe.activation);
  const size_t layers = model.layers.size();
  const std::vector<bool> with_rope = LayersWithRope(layers, fields);
  const std::vector<bool> with_experts = LayersWithExperts(layers, fields);
  const std::vector<std::string> types =
      ReadLayerTypes({"chunked_attention", "full_attention"}, layers, fields);
  for (size_t i = 0; i < layers; ++i) {
    LayerConfig& layer = model.layers[i];
    layer = {attention, with_experts[i] ? moe : dense};
    const bool chunked = types.empty() ? with_rope[i] : types[i] == "chunked_attention";
    if (chunked) layer.attention.chunk = chunk;
    if (with_rope[i]) {
      if (qk_norm) layer.attention.qk_norm = QkNorm::kPerHeadAfterRope;
      continue;
    }
    layer.attention.rope = RopeConfig{.kind = RopeKind::kNone};
    if (!tuned || temperature == 0) continue;
    layer.attention.temperature_scale = static_cast<float>(temperature);
    layer.attention.temperature_floor = floor;
  }
  return model;
}

// Maps text checkpoints, and the language model of multimodal ones.
void MapLlama4(const ModelConfig& config, TensorMapper* mapper) {
  const bool nested = mapper->Has("language_model.model.embed_tokens.weight");
  const std::string outer = nested ? "language_model." : "";
  if (nested) {
    mapper->IgnorePrefix("vision_model.");
    mapper->IgnorePrefix("multi_modal_projector.");
  }
  MapEmbeddingAndHead(config, {outer + "model.embed_tokens.weight", outer + "model.norm", outer + "lm_head"},
                      mapper);
  MapLayers(config, outer + "model.layers.", mapper, [](LayerMapper* layer) {
    layer->GroupedAttention();
    if (layer->moe().experts == 0) return layer->DenseFfn("feed_forward.");
    layer->Dense(dense::kRouter,
                 layer->Matrix("feed_forward.router.weight", layer->moe().experts, layer->hidden()));
    if (layer->Has("feed_forward.experts.0.gate_proj.weight")) {
      layer->Experts("feed_forward.experts.", {});
    } else {
      MapStackedInputs("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj", layer);
    }
    layer->SharedExpert("feed_forward.shared_expert.");
  });
}

}  // namespace sluice
