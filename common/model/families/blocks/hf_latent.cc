#include "common/model/families/blocks/hf_latent.h"

#include <cmath>

#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// Norms on compressed q and kv have their own epsilon, independent of rms_norm_eps.
constexpr float kLatentEpsilon = 1e-6f;

}  // namespace

AttentionConfig ReadLatent(const LatentDefaults& defaults, const ModelConfig& model, HfFields* fields) {
  AttentionConfig attention;
  attention.kind = AttentionKind::kLatent;
  attention.heads = fields->Number("num_attention_heads", 1, kMaxHeads);
  attention.kv_heads = fields->Number("num_key_value_heads", 1, kMaxHeads, attention.heads);
  if (attention.kv_heads != attention.heads) fields->Refuse("num_key_value_heads");
  LatentConfig& latent = attention.latent;
  latent.q_rank =
      fields->IsNull("q_lora_rank") ? 0 : fields->Number("q_lora_rank", 1, kMaxRank, defaults.q_rank);
  latent.kv_rank = fields->Number("kv_lora_rank", 1, kMaxRank, defaults.kv_rank);
  latent.nope_dim = fields->Number("qk_nope_head_dim", 1, kMaxHeadDim, defaults.nope_dim);
  latent.value_dim = fields->Number("v_head_dim", 1, kMaxHeadDim, defaults.value_dim);
  latent.norm_epsilon = kLatentEpsilon;
  const uint32_t rotated = fields->Number("qk_rope_head_dim", 2, kMaxHeadDim, 64);
  attention.head_dim = latent.nope_dim + rotated;
  // Newer files repeat the dimensions above: head_dim is the rotated part, or the whole head with
  // partial_rotary_factor as its rotated share. A file that contradicts itself is refused.
  const uint32_t named = fields->Number("head_dim", 1, kMaxHeadDim, rotated);
  if (named != rotated && named != attention.head_dim) fields->Refuse("head_dim");
  const uint32_t both = fields->Number("qk_head_dim", 1, 2 * kMaxHeadDim, attention.head_dim);
  if (both != attention.head_dim) fields->Refuse("qk_head_dim");
  fields->RequireOff("attention_bias");
  const RopeDefaults rope_defaults = {.may_be_partial = true, .temperature = defaults.temperature};
  const RopeFields rope = ReadRope(rope_defaults, named, model.max_position, fields);
  attention.rope = rope.rope;
  if (named == attention.head_dim && named != rotated && rope.rope.dimensions == named) {
    attention.rope.dimensions = rotated;  // the whole rotated part, not a share of it
  }
  if (attention.rope.dimensions != rotated) {
    fields->Fail("qk_rope_head_dim", absl::StrCat("is ", rotated, ", but ", attention.rope.dimensions, " of ",
                                                  named, " values are rotated"));
  }
  attention.rope.interleaved = defaults.interleaved;
  if (rope.temperature != 0) {
    attention.temperature_scale = static_cast<float>(rope.temperature);
    attention.temperature_floor = rope.rope.original_max_position;
    attention.temperature_offset = 0;
    if (attention.temperature_floor == 0) {
      fields->Fail("rope_parameters", "has llama_4_scaling_beta and no original_max_position_embeddings");
    }
  }
  // yarn stretches the logits by the square of its factor at mscale_all_dim.
  double scale = 1 / std::sqrt(static_cast<double>(attention.head_dim));
  if (rope.rope.kind != RopeKind::kDefault && rope.mscale_all_dim != 0) {
    const double mscale = YarnMscale(rope.rope.factor, rope.mscale_all_dim);
    scale *= mscale * mscale;
  }
  attention.scale = static_cast<float>(scale);
  return attention;
}

// Up-projections of K are stored transposed, because attention over the cached latent rows multiplies the
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
    // GGUF files keep the two halves of kv_b_proj apart, the keys' half already transposed.
    layer->Dense(dense::kKUpT,
                 layer->Matrix("self_attn.k_b_proj.weight", uint64_t{a.heads} * kv_rank, latent.nope_dim));
    layer->Dense(dense::kVUp,
                 layer->Matrix("self_attn.v_b_proj.weight", uint64_t{a.heads} * latent.value_dim, kv_rank));
  } else {
    // Each head has nope_dim rows that make keys of a cached row, then value_dim rows that make values.
    const SourceMatrix up = layer->Matrix("self_attn.kv_b_proj.weight",
                                          uint64_t{a.heads} * (latent.nope_dim + latent.value_dim), kv_rank);
    layer->Dense(dense::kKUpT, Transposed(RowsOfBlocks(up, a.heads, 0, latent.nope_dim)));
    layer->Dense(dense::kVUp, RowsOfBlocks(up, a.heads, latent.nope_dim, latent.value_dim));
  }
  layer->Dense(dense::kO,
               layer->Matrix("self_attn.o_proj.weight", layer->hidden(), a.heads * latent.value_dim));
}

}  // namespace sluice
