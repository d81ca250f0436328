// Families with a recurrent state: linear attention or Mamba-2 between attention layers.
#include "common/model/gguf/gguf_families.h"

namespace sluice {
namespace {

using nlohmann::json;

// Gated DeltaNet between full attention with an output gate. The state's numbers have the names of Mamba's
// keys.
json QwenLinear(const char* model_type, const char* architecture, const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig(model_type, architecture, frame, q);
  AddGgufGrouped(frame, false, q, &config);
  config["partial_rotary_factor"] = static_cast<double>(q->Whole("rope.dimension_count", frame.head_dim)) /
                                    static_cast<double>(frame.head_dim);
  AddGgufExperts("num_experts", "moe_intermediate_size", frame, q, &config);
  RequireGgufGating(1, q);
  config["shared_expert_intermediate_size"] =
      q->Whole("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, frame.layers), 1);
  const uint64_t value_heads = q->NeedWhole("ssm.time_step_rank");
  const uint64_t inner = q->NeedWhole("ssm.inner_size");
  if (inner % value_heads != 0)
    q->Refuse("ssm.inner_size", absl::StrCat(inner, " for ", value_heads, " heads"));
  config["linear_num_key_heads"] = q->NeedWhole("ssm.group_count");
  config["linear_num_value_heads"] = value_heads;
  config["linear_key_head_dim"] = q->NeedWhole("ssm.state_size");
  config["linear_value_head_dim"] = inner / value_heads;
  config["linear_conv_kernel_dim"] = q->NeedWhole("ssm.conv_kernel");
  json types = json::array();
  for (uint64_t i = 0; i < frame.layers; ++i) {
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
MambaNumbers ReadMamba(GgufQuestions* q) {
  MambaNumbers mamba;
  mamba.heads = q->NeedWhole("ssm.time_step_rank");
  const uint64_t inner = q->NeedWhole("ssm.inner_size");
  if (inner % mamba.heads != 0)
    q->Refuse("ssm.inner_size", absl::StrCat(inner, " for ", mamba.heads, " heads"));
  mamba.head_dim = std::max<uint64_t>(inner / mamba.heads, 1);
  mamba.groups = q->Whole("ssm.group_count", 1, 1);
  mamba.state = q->NeedWhole("ssm.state_size");
  mamba.kernel = q->NeedWhole("ssm.conv_kernel");
  return mamba;
}

}  // namespace

json ReadGgufQwen3Next(const GgufFrame& frame, GgufQuestions* q) {
  json config = QwenLinear("qwen3_next", "Qwen3NextForCausalLM", frame, q);
  config["norm_topk_prob"] = true;
  config["intermediate_size"] = q->Whole("feed_forward_length", 1, 1);
  config["mlp_only_layers"] = GgufDenseLayers(frame, *q);
  return config;
}

// rope.dimension_sections splits the positions of images; for text all parts are equal.
json ReadGgufQwen35Moe(const GgufFrame& frame, GgufQuestions* q) {
  return QwenLinear("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", frame, q);
}

json ReadGgufGraniteHybrid(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("granitemoehybrid", "GraniteMoeHybridForCausalLM", frame, q);
  AddGgufHeads(frame, GgufHeadsOfSomeLayers(frame, q), false, q, &config);
  RequireWholeHeadRope(frame, q);
  // A trained rope implies that the model has one.
  config["position_embedding_type"] = q->Whole("rope.scaling.finetuned", 1) != 0 ? "rope" : "nope";
  config["embedding_multiplier"] = q->Real("embedding_scale", 1);
  config["residual_multiplier"] = q->Real("residual_scale", 1);
  config["attention_multiplier"] =
      q->Real("attention.scale", 1 / std::sqrt(static_cast<double>(frame.head_dim)));
  config["logits_scaling"] = q->Real("logit_scale", 1);
  const MambaNumbers mamba = ReadMamba(q);
  config["mamba_n_heads"] = mamba.heads;
  config["mamba_d_head"] = mamba.head_dim;
  config["mamba_n_groups"] = mamba.groups;
  config["mamba_d_state"] = mamba.state;
  config["mamba_d_conv"] = mamba.kernel;
  config["mamba_expand"] = mamba.heads * mamba.head_dim / std::max<uint64_t>(frame.hidden, 1);
  json types = json::array();
  for (uint64_t i = 0; i < frame.layers; ++i) {
    types.push_back(q->LayerHas(i, "ssm_out.weight") ? "mamba" : "attention");
  }
  config["layer_types"] = types;
  if (q->Whole("expert_count", 0) == 0) {
    config["num_local_experts"] = 0;
    config["shared_intermediate_size"] = q->DimOf("ffn_up.weight", 1, frame.layers);
    return config;
  }
  AddGgufExperts("num_local_experts", "intermediate_size", frame, q, &config);
  config["shared_intermediate_size"] =
      q->Whole("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, frame.layers), 1);
  return config;
}

// Every block of the file is a mixer or an FFN.
json ReadGgufNemotronHMoe(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("nemotron_h", "NemotronHForCausalLM", frame, q);
  config["layer_norm_epsilon"] = config["rms_norm_eps"];
  config.erase("rms_norm_eps");
  config.erase("rope_theta");  // it has no rope
  config["num_key_value_heads"] = GgufHeadsOfSomeLayers(frame, q);
  config["head_dim"] = frame.head_dim;
  const MambaNumbers mamba = ReadMamba(q);
  config["mamba_num_heads"] = mamba.heads;
  config["mamba_head_dim"] = mamba.head_dim;
  config["n_groups"] = mamba.groups;
  config["ssm_state_size"] = mamba.state;
  config["conv_kernel"] = mamba.kernel;
  std::string blocks;
  for (uint64_t i = 0; i < frame.layers; ++i) {
    blocks += q->LayerHas(i, "ssm_out.weight")        ? 'M'
              : q->LayerHas(i, "attn_q.weight")       ? '*'
              : q->LayerHas(i, "ffn_gate_inp.weight") ? 'E'
                                                      : '-';
  }
  config["hybrid_override_pattern"] = blocks;
  config["n_routed_experts"] = q->NeedWhole("expert_count");
  config["num_experts_per_tok"] = q->NeedWhole("expert_used_count");
  config["moe_intermediate_size"] = GgufExpertWidth(frame, q);
  config["n_shared_experts"] = q->Whole("expert_shared_count", 0);
  config["moe_shared_expert_intermediate_size"] =
      q->Whole("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, frame.layers), 1);
  config["norm_topk_prob"] = q->Whole("expert_weights_norm", 1) != 0;
  config["routed_scaling_factor"] = q->Real("expert_weights_scale", 1);
  config["n_group"] = q->Whole("expert_group_count", 1, 1);
  config["topk_group"] = q->Whole("expert_group_used_count", 1, 1);
  RequireGgufGating(2, q);
  if (q->Whole("moe_latent_size", 0) != 0) q->Refuse("moe_latent_size", "other than 0");
  config["intermediate_size"] = std::max<uint64_t>(q->DimOf("ffn_up.weight", 1, frame.layers), 1);
  return config;
}

}  // namespace sluice
