// DeepSeek: MoE-16B (deepseek: Llama's attention), V2 and V2-Lite (latent attention, softmax router) and V3
// (sigmoid router with groups and a correction for the choice).
#include <cmath>

#include "common/model/dense_names.h"
#include "common/model/families/hf_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/families/hf_map_blocks.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// The norms on compressed q and kv have their own epsilon, whatever rms_norm_eps says.
constexpr float kLatentEpsilon = 1e-6f;

AttentionConfig ReadLatent(const ModelConfig& model, bool interleaved, HfFields* fields) {
  AttentionConfig attention;
  attention.kind = AttentionKind::kLatent;
  attention.heads = fields->Number("num_attention_heads", 1, kMaxHeads);
  attention.kv_heads = fields->Number("num_key_value_heads", 1, kMaxHeads, attention.heads);
  if (attention.kv_heads != attention.heads) fields->Refuse("num_key_value_heads");
  LatentConfig& latent = attention.latent;
  latent.q_rank = fields->IsNull("q_lora_rank") ? 0 : fields->Number("q_lora_rank", 1, kMaxRank, 1536);
  latent.kv_rank = fields->Number("kv_lora_rank", 1, kMaxRank, 512);
  latent.nope_dim = fields->Number("qk_nope_head_dim", 1, kMaxHeadDim, 128);
  latent.value_dim = fields->Number("v_head_dim", 1, kMaxHeadDim, 128);
  latent.norm_epsilon = kLatentEpsilon;
  const uint32_t rotated = fields->Number("qk_rope_head_dim", 2, kMaxHeadDim, 64);
  attention.head_dim = latent.nope_dim + rotated;
  // Newer files repeat what follows from the members above; a file that contradicts itself is refused.
  if (fields->Number("head_dim", 1, kMaxHeadDim, rotated) != rotated) fields->Refuse("head_dim");
  const uint32_t both = fields->Number("qk_head_dim", 1, 2 * kMaxHeadDim, attention.head_dim);
  if (both != attention.head_dim) fields->Refuse("qk_head_dim");
  fields->OnlyOff("attention_bias");
  const RopeFields rope = ReadRope({}, rotated, model.max_position, fields);
  attention.rope = rope.rope;
  attention.rope.interleaved = interleaved;
  // yarn stretches the logits by the square of its factor at mscale_all_dim.
  double scale = 1 / std::sqrt(static_cast<double>(attention.head_dim));
  if (rope.rope.kind != RopeKind::kDefault && rope.mscale_all_dim != 0) {
    const double mscale = YarnMscale(rope.rope.factor, rope.mscale_all_dim);
    scale *= mscale * mscale;
  }
  attention.scale = static_cast<float>(scale);
  return attention;
}

// The up-projections of K are stored transposed, because attention over the cached latent rows multiplies the
// query by them instead of expanding every cached row to keys.
void MapLatent(LayerMapper* layer) {
  const AttentionConfig& a = layer->attention();
  const LatentConfig& latent = a.latent;
  const uint32_t q_rows = a.heads * a.head_dim;
  if (latent.q_rank != 0) {
    layer->Dense(dense::kQDown, layer->Matrix("self_attn.q_a_proj.weight", latent.q_rank, layer->hidden()));
    layer->Dense(dense::kQDownNorm, layer->Vector("self_attn.q_a_layernorm.weight", latent.q_rank));
    layer->Dense(dense::kQ, layer->Matrix("self_attn.q_b_proj.weight", q_rows, latent.q_rank));
  } else {
    layer->Dense(dense::kQ, layer->Matrix("self_attn.q_proj.weight", q_rows, layer->hidden()));
  }
  layer->Dense(dense::kKvDown, layer->Matrix("self_attn.kv_a_proj_with_mqa.weight",
                                             latent.kv_rank + a.rope.dimensions, layer->hidden()));
  layer->Dense(dense::kKvDownNorm, layer->Vector("self_attn.kv_a_layernorm.weight", latent.kv_rank));
  const uint32_t kv_rank = latent.kv_rank;
  if (layer->Has("self_attn.k_b_proj.weight")) {
    // GGUF files keep the two halves of kv_b_proj apart, the keys' the way they are used here.
    layer->Dense(dense::kKUpT,
                 layer->Matrix("self_attn.k_b_proj.weight", uint64_t{a.heads} * kv_rank, latent.nope_dim));
    layer->Dense(dense::kVUp,
                 layer->Matrix("self_attn.v_b_proj.weight", uint64_t{a.heads} * latent.value_dim, kv_rank));
  } else {
    // Per head: nope_dim rows that make keys of a cached row, then value_dim rows that make values.
    const SourceMatrix up = layer->Matrix("self_attn.kv_b_proj.weight",
                                          uint64_t{a.heads} * (latent.nope_dim + latent.value_dim), kv_rank);
    layer->Dense(dense::kKUpT, Transposed(RowsOfBlocks(up, a.heads, 0, latent.nope_dim)));
    layer->Dense(dense::kVUp, RowsOfBlocks(up, a.heads, latent.nope_dim, latent.value_dim));
  }
  layer->Dense(dense::kO,
               layer->Matrix("self_attn.o_proj.weight", layer->hidden(), a.heads * latent.value_dim));
}

}  // namespace

ModelConfig ReadDeepseek(HfFields* fields) {
  ModelConfig model = ReadFrame("deepseek", {.max_position = 2048}, fields);
  AttentionConfig attention = ReadGrouped({}, model, fields);
  fields->OnlyOff("attention_bias");
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  fields->OnlyWord("scoring_func", "softmax");
  SetDeepseekFfns(0, ReadDeepseekMixture(0, false, fields), &model, fields);
  return model;
}

ModelConfig ReadDeepseekV2(HfFields* fields) {
  ModelConfig model = ReadFrame("deepseek_v2", {.max_position = 2048}, fields);
  const AttentionConfig attention = ReadLatent(model, true, fields);
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe = ReadDeepseekMixture(2, false, fields);
  moe.norm_topk_prob = false;  // transformers' router has the member and never norms
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  fields->OnlyWord("scoring_func", "softmax");
  // V2 has groups; V2-Lite carries their members along and does not use them.
  const std::string method = fields->Word("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    ReadGroups(1, 1, &moe, fields);
  } else {
    fields->OnlyWord("topk_method", "greedy");
    fields->Skip("n_group");
    fields->Skip("topk_group");
  }
  SetDeepseekFfns(0, moe, &model, fields);
  return model;
}

ModelConfig ReadDeepseekV3(HfFields* fields) {
  ModelConfig model = ReadFrame("deepseek_v3", {.max_position = 4096}, fields);
  const bool interleaved = fields->Flag("rope_interleave", true);
  const AttentionConfig attention = ReadLatent(model, interleaved, fields);
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe = ReadDeepseekMixture(1, true, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 2.5));
  fields->OnlyWord("scoring_func", "sigmoid");
  fields->OnlyWord("topk_method", "noaux_tc");
  moe.group_score = GroupScore::kTopTwoSum;
  ReadGroups(8, 4, &moe, fields);
  SetDeepseekFfns(3, moe, &model, fields);
  fields->Skip("num_nextn_predict_layers");
  fields->Skip("num_mtp_layers");
  return model;
}

void MapDeepseek(const ModelConfig& config, TensorMapper* mapper) {
  IgnorePredictionLayers(config, mapper);
  MapEnds(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    if (layer->attention().kind == AttentionKind::kLatent) {
      MapLatent(layer);
    } else {
      layer->GroupedAttention();
    }
    layer->DeepseekFfn();
  });
}

}  // namespace sluice
