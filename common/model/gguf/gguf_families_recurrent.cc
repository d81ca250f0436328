// Families with a recurrent state: linear attention or Mamba-2 between attention layers.
#include "common/model/gguf/gguf_families.h"

namespace sluice {
namespace {

using nlohmann::json;

// Gated DeltaNet between full attention with an output gate. The state's numbers have the names of Mamba's
// keys.
json QwenLinear(const char* model_type, const char* architecture, const GgufBaseConfig& base,
                GgufKeyReader* q) {
  json config = GgufBaseJson(model_type, architecture, base, q);
  AddGgufGrouped(base, false, q, &config);
  config["partial_rotary_factor"] = static_cast<double>(q->IntOr("rope.dimension_count", base.head_dim)) /
                                    static_cast<double>(base.head_dim);
  AddGgufExperts("num_experts", "moe_intermediate_size", base, q, &config);
  RequireGgufGating(1, q);
  config["shared_expert_intermediate_size"] =
      q->IntOr("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, base.layers), 1);
  const uint64_t value_heads = q->RequiredInt("ssm.time_step_rank");
  const uint64_t inner = q->RequiredInt("ssm.inner_size");
  if (inner % value_heads != 0)
    q->Refuse("ssm.inner_size", absl::StrCat(inner, " for ", value_heads, " heads"));
  config["linear_num_key_heads"] = q->RequiredInt("ssm.group_count");
  config["linear_num_value_heads"] = value_heads;
  config["linear_key_head_dim"] = q->RequiredInt("ssm.state_size");
  config["linear_value_head_dim"] = inner / value_heads;
  config["linear_conv_kernel_dim"] = q->RequiredInt("ssm.conv_kernel");
  json types = json::array();
  for (uint64_t i = 0; i < base.layers; ++i) {
    types.push_back(q->LayerHas(i, "ssm_out.weight") ? "linear_attention" : "full_attention");
  }
  config["layer_types"] = types;
  return config;
}

struct MambaNumbers {
  uint64_t heads = 1;
  uint64_t head_dim = 1;
  uint64_t groups = 1;
  uint64_t state = 1;
  uint64_t kernel = 1;
};
MambaNumbers ReadMamba(GgufKeyReader* q) {
  MambaNumbers mamba;
  mamba.heads = q->RequiredInt("ssm.time_step_rank");
  const uint64_t inner = q->RequiredInt("ssm.inner_size");
  if (inner % mamba.heads != 0)
    q->Refuse("ssm.inner_size", absl::StrCat(inner, " for ", mamba.heads, " heads"));
  mamba.head_dim = std::max<uint64_t>(inner / mamba.heads, 1);
  mamba.groups = q->IntOr("ssm.group_count", 1, 1);
  mamba.state = q->RequiredInt("ssm.state_size");
  mamba.kernel = q->RequiredInt("ssm.conv_kernel");
  return mamba;
}

}  // namespace

json ReadGgufQwen3Next(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = QwenLinear("qwen3_next", "Qwen3NextForCausalLM", base, q);
  config["norm_topk_prob"] = true;
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  config["mlp_only_layers"] = GgufDenseLayers(base, *q);
  return config;
}

// rope.dimension_sections splits the positions of images; for text all parts are equal.
json ReadGgufQwen35Moe(const GgufBaseConfig& base, GgufKeyReader* q) {
  return QwenLinear("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", base, q);
}

json ReadGgufGraniteHybrid(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("granitemoehybrid", "GraniteMoeHybridForCausalLM", base, q);
  AddGgufHeads(base, GgufHeadsOfSomeLayers(base, q), false, q, &config);
  RequireWholeHeadRope(base, q);
  // A trained rope implies that the model has one.
  config["position_embedding_type"] = q->IntOr("rope.scaling.finetuned", 1) != 0 ? "rope" : "nope";
  config["embedding_multiplier"] = q->Real("embedding_scale", 1);
  config["residual_multiplier"] = q->Real("residual_scale", 1);
  config["attention_multiplier"] =
      q->Real("attention.scale", 1 / std::sqrt(static_cast<double>(base.head_dim)));
  config["logits_scaling"] = q->Real("logit_scale", 1);
  const MambaNumbers mamba = ReadMamba(q);
  config["mamba_n_heads"] = mamba.heads;
  config["mamba_d_head"] = mamba.head_dim;
  config["mamba_n_groups"] = mamba.groups;
  config["mamba_d_state"] = mamba.state;
  config["mamba_d_conv"] = mamba.kernel;
  config["mamba_expand"] = mamba.heads * mamba.head_dim / std::max<uint64_t>(base.hidden, 1);
  json types = json::array();
  for (uint64_t i = 0; i < base.layers; ++i) {
    types.push_back(q->LayerHas(i, "ssm_out.weight") ? "mamba" : "attention");
  }
  config["layer_types"] = types;
  if (q->IntOr("expert_count", 0) == 0) {
    config["num_local_experts"] = 0;
    config["shared_intermediate_size"] = q->DimOf("ffn_up.weight", 1, base.layers);
    return config;
  }
  AddGgufExperts("num_local_experts", "intermediate_size", base, q, &config);
  config["shared_intermediate_size"] =
      q->IntOr("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, base.layers), 1);
  return config;
}

// Every block of the file is a mixer or an FFN.
json ReadGgufNemotronHMoe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("nemotron_h", "NemotronHForCausalLM", base, q);
  config["layer_norm_epsilon"] = config["rms_norm_eps"];
  config.erase("rms_norm_eps");
  config.erase("rope_theta");  // it has no rope
  config["num_key_value_heads"] = GgufHeadsOfSomeLayers(base, q);
  config["head_dim"] = base.head_dim;
  const MambaNumbers mamba = ReadMamba(q);
  config["mamba_num_heads"] = mamba.heads;
  config["mamba_head_dim"] = mamba.head_dim;
  config["n_groups"] = mamba.groups;
  config["ssm_state_size"] = mamba.state;
  config["conv_kernel"] = mamba.kernel;
  std::string blocks;
  for (uint64_t i = 0; i < base.layers; ++i) {
    blocks += q->LayerHas(i, "ssm_out.weight")        ? 'M'
              : q->LayerHas(i, "attn_q.weight")       ? '*'
              : q->LayerHas(i, "ffn_gate_inp.weight") ? 'E'
                                                      : '-';
  }
  config["hybrid_override_pattern"] = blocks;
  config["n_routed_experts"] = q->RequiredInt("expert_count");
  config["num_experts_per_tok"] = q->RequiredInt("expert_used_count");
  config["moe_intermediate_size"] = GgufExpertWidth(base, q);
  config["n_shared_experts"] = q->IntOr("expert_shared_count", 0);
  config["moe_shared_expert_intermediate_size"] =
      q->IntOr("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, base.layers), 1);
  config["norm_topk_prob"] = q->IntOr("expert_weights_norm", 1) != 0;
  config["routed_scaling_factor"] = q->Real("expert_weights_scale", 1);
  config["n_group"] = q->IntOr("expert_group_count", 1, 1);
  config["topk_group"] = q->IntOr("expert_group_used_count", 1, 1);
  RequireGgufGating(2, q);
  if (q->IntOr("moe_latent_size", 0) != 0) q->Refuse("moe_latent_size", "other than 0");
  config["intermediate_size"] = std::max<uint64_t>(q->DimOf("ffn_up.weight", 1, base.layers), 1);
  return config;
}

}  // namespace sluice
