#include <cmath>

#include "common/model/gguf/gguf_families.h"

namespace sluice {
namespace {

using nlohmann::json;

// Adds DeepSeek's MoE members, which GLM-4 shares.
void AddDeepseekMixture(const GgufBaseConfig& base, GgufKeyReader* q, json* config) {
  AddGgufExperts("n_routed_experts", "moe_intermediate_size", base, q, config);
  (*config)["n_shared_experts"] = q->IntOr("expert_shared_count", 0);
  (*config)["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  (*config)["first_k_dense_replace"] = GgufLeadingDenseLayers(base, q);
}

void AddDeepseekRouter(GgufKeyReader* q, json* config) {
  (*config)["norm_topk_prob"] = q->Flag("expert_weights_norm");
  (*config)["routed_scaling_factor"] = q->Real("expert_weights_scale", 1);
  (*config)["n_group"] = q->IntOr("expert_group_count", 1, 1);
  (*config)["topk_group"] = q->IntOr("expert_group_used_count", 1, 1);
}

// Adds the sizes of latent attention. Since 2025 the lengths without _mla are those of the absorbed form.
void AddLatent(const GgufBaseConfig& base, GgufKeyReader* q, json* config) {
  const uint64_t rotated = q->RequiredInt("rope.dimension_count");
  const uint64_t key = q->IntOr("attention.key_length_mla", q->IntOr("attention.key_length", 0));
  if (key <= rotated)
    q->Refuse("attention.key_length", absl::StrCat(key, " beside rope.dimension_count ", rotated));
  (*config)["num_key_value_heads"] = base.heads;
  (*config)["kv_lora_rank"] = q->RequiredInt("attention.kv_lora_rank");
  (*config)["qk_rope_head_dim"] = rotated;
  (*config)["qk_nope_head_dim"] = key > rotated ? key - rotated : 1;
  (*config)["v_head_dim"] =
      q->IntOr("attention.value_length_mla", q->IntOr("attention.value_length", 1, 1), 1);
  (*config)["q_lora_rank"] = nullptr;
  if (q->Has("attention.q_lora_rank")) (*config)["q_lora_rank"] = q->RequiredInt("attention.q_lora_rank");
  const double mscale_all_dim = 10 * q->Real("rope.scaling.yarn_log_multiplier", 0);
  const json rope = GgufRopeScaling(base, mscale_all_dim, false, q);
  if (!rope.is_null()) (*config)["rope_scaling"] = rope;
}

}  // namespace

json ReadGgufGlm4Moe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("glm4_moe", "Glm4MoeForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  const uint64_t rotated = q->IntOr("rope.dimension_count", base.head_dim / 2);
  config["partial_rotary_factor"] = static_cast<double>(rotated) / static_cast<double>(base.head_dim);
  config["attention_bias"] =
      q->AnyLayerHas("attn_q.bias", base.layers) || q->AnyLayerHas("attn_qkv.bias", base.layers);
  config["use_qk_norm"] = q->AnyLayerHas("attn_q_norm.weight", base.layers);
  RequireGgufGating(2, q);
  AddDeepseekMixture(base, q, &config);
  AddDeepseekRouter(q, &config);
  return config;
}

json ReadGgufDeepseek(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("deepseek", "DeepseekForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  AddDeepseekMixture(base, q, &config);
  RequireGgufGating(1, q);
  config["norm_topk_prob"] = q->Flag("expert_weights_norm");
  if (q->Real("expert_weights_scale", 1) != 1) q->Refuse("expert_weights_scale", "other than 1");
  return config;
}

json ReadGgufDeepseek2(const GgufBaseConfig& base, GgufKeyReader* q) {
  const uint64_t gating = q->IntOr("expert_gating_func", 1);
  const bool sigmoid = gating == 2;
  if (!sigmoid) RequireGgufGating(1, q);
  json config = GgufBaseJson(sigmoid ? "deepseek_v3" : "deepseek_v2",
                             sigmoid ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM", base, q);
  AddLatent(base, q, &config);
  AddDeepseekMixture(base, q, &config);
  AddDeepseekRouter(q, &config);
  if (sigmoid) return config;
  if (config["norm_topk_prob"] == true) q->Refuse("expert_weights_norm", "with a softmax router");
  config["topk_method"] = config["n_group"] == 1 ? "greedy" : "group_limited_greedy";
  return config;
}

// Only files converted from the publisher's own layout hold the temperature of the queries. Other files are
// computed without it; sequences up to the original context give the same result.
json ReadGgufMistral4(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("mistral4", "Mistral4ForCausalLM", base, q);
  AddLatent(base, q, &config);
  AddDeepseekMixture(base, q, &config);
  AddDeepseekRouter(q, &config);
  RequireGgufGating(1, q);
  const double beta = q->Real("attention.temperature_scale", 0);
  if (beta == 0) return config;
  const uint64_t original = q->IntOr("rope.scaling.original_context_length", base.context, 1);
  if (q->IntOr("attention.temperature_length", original) != original) {
    q->Refuse("attention.temperature_length", "other than rope.scaling.original_context_length");
  }
  if (!config.contains("rope_scaling")) config["rope_scaling"] = {{"rope_type", "default"}};
  config["rope_scaling"]["llama_4_scaling_beta"] = beta;
  config["rope_scaling"]["original_max_position_embeddings"] = original;
  return config;
}

// GLM-4's MoE block under Qwen3's attention.
json ReadGgufDots1(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("dots1", "Dots1ForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  RequireGgufGating(2, q);
  AddDeepseekMixture(base, q, &config);
  AddDeepseekRouter(q, &config);
  return config;
}

}  // namespace sluice
