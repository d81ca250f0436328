// GGUF families with Kimi Delta Attention or Mamba-1: Kimi-Linear, Ling-3, Jamba.

#include <algorithm>

#include "common/model/gguf_config.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

using nlohmann::json;

// Returns the layers whose entry of attention.head_count_kv is not 0.
std::vector<bool> AttendingLayers(const GgufBaseConfig& base, GgufKeyReader* q) {
  std::vector<bool> attends(base.layers);
  const std::vector<int64_t> heads = q->IntList("attention.head_count_kv");
  if (heads.size() < base.layers) {
    q->Refuse("attention.head_count_kv",
              absl::StrCat("of ", heads.size(), " numbers for ", base.layers, " layers"));
    return attends;
  }
  for (uint64_t i = 0; i < base.layers; ++i) attends[i] = heads[i] != 0;
  return attends;
}

// The layers at offset, offset + period and so on.
struct Period {
  uint64_t period = 1;
  uint64_t offset = 0;
};

// Finds the period of these layers; refuses those that have none. `what` names them.
Period PeriodOf(const std::vector<bool>& layers, const char* key, const char* what, GgufKeyReader* q) {
  const auto first = std::find(layers.begin(), layers.end(), true);
  Period made{.period = std::max<size_t>(layers.size(), 1), .offset = layers.size()};
  if (first == layers.end()) return made;
  made.offset = static_cast<uint64_t>(first - layers.begin());
  const auto second = std::find(first + 1, layers.end(), true);
  if (second != layers.end()) made.period = static_cast<uint64_t>(second - first);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] == (i % made.period == made.offset)) continue;
    q->Refuse(key, absl::StrCat("whose ", what, " do not come in equal distances from one of the first on"));
    break;
  }
  return made;
}

// Adds the sizes of latent attention beside layers whose head count is 0.
void AddHybridLatent(const GgufBaseConfig& base, GgufKeyReader* q, json* config) {
  AddGgufLatent(base, q, config);
  (*config)["num_attention_heads"] = base.heads;
}

}  // namespace

json ReadGgufKimiLinear(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("kimi_linear", "KimiLinearForCausalLM", base, q);
  AddHybridLatent(base, q, &config);
  json linear = json::array();  // counted from 1
  const std::vector<bool> attends = AttendingLayers(base, q);
  for (uint64_t i = 0; i < base.layers; ++i) {
    if (!attends[i]) linear.push_back(i + 1);
  }
  config["linear_attn_config"] = {{"head_dim", q->RequiredInt("kda.head_dim")},
                                  {"num_heads", base.heads},
                                  {"short_conv_kernel_size", q->RequiredInt("ssm.conv_kernel")},
                                  {"kda_layers", linear}};
  RequireGgufGating(2, q);
  config["num_experts"] = q->RequiredInt("expert_count");
  config["num_experts_per_token"] = q->RequiredInt("expert_used_count");
  config["moe_intermediate_size"] = GgufExpertWidth(base, q);
  config["num_shared_experts"] = q->IntOr("expert_shared_count", 0);
  config["moe_renormalize"] = q->IntOr("expert_weights_norm", 1) != 0;
  config["routed_scaling_factor"] = q->Real("expert_weights_scale", 1);
  config["num_expert_group"] = q->IntOr("expert_group_count", 1, 1);
  config["topk_group"] = q->IntOr("expert_group_used_count", 1, 1);
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  config["first_k_dense_replace"] = GgufLeadingDenseLayers(base, q);
  return config;
}

json ReadGgufBailingMoe3(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("bailing_hybrid", "BailingMoeV3ForCausalLM", base, q);
  AddHybridLatent(base, q, &config);
  const Period full = PeriodOf(AttendingLayers(base, q), "attention.head_count_kv", "full layers", q);
  if (full.offset + 1 != full.period && full.offset < base.layers) {
    q->Refuse("attention.head_count_kv", "whose full layers do not end each group of layers");
  }
  config["layer_group_size"] = full.period;
  config["head_dim"] = q->RequiredInt("kda.head_dim");
  config["short_conv_kernel_size"] = q->RequiredInt("ssm.conv_kernel");
  config["kda_safe_gate"] = q->IntOr("kda.safe_gate", 1) != 0;
  config["kda_lower_bound"] = q->Real("kda.gate_lower_bound", -5);
  RequireGgufGating(2, q);
  AddGgufExperts("num_experts", "moe_intermediate_size", base, q, &config);
  config["num_shared_experts"] = q->IntOr("expert_shared_count", 0);
  AddGgufRouter(true, q, &config);
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  config["first_k_dense_replace"] = GgufLeadingDenseLayers(base, q);
  for (const char* key : {"swiglu_clamp_exp", "swiglu_clamp_shexp"}) {
    const std::vector<double> limits = q->RealList(key);
    if (std::any_of(limits.begin(), limits.end(), [](double limit) { return limit != 0; })) {
      q->Refuse(key, "other than 0");
    }
  }
  return config;
}

json ReadGgufJamba(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("jamba", "JambaForCausalLM", base, q);
  config.erase("rope_theta");  // it has no rope
  config["num_key_value_heads"] = GgufHeadsOfSomeLayers(base, q);
  const Period attends = PeriodOf(AttendingLayers(base, q), "attention.head_count_kv", "attention layers", q);
  config["attn_layer_period"] = attends.period;
  config["attn_layer_offset"] = attends.offset;
  std::vector<bool> sparse(base.layers);
  for (uint64_t i = 0; i < base.layers; ++i) sparse[i] = q->LayerHas(i, "ffn_gate_inp.weight");
  const Period experts = PeriodOf(sparse, "expert_count", "layers with experts", q);
  config["expert_layer_period"] = experts.period;
  config["expert_layer_offset"] = experts.offset;
  config["num_experts"] = q->RequiredInt("expert_count");
  config["num_experts_per_tok"] = q->RequiredInt("expert_used_count");
  config["intermediate_size"] = q->RequiredInt("feed_forward_length");
  const uint64_t inner = q->RequiredInt("ssm.inner_size");
  if (inner % base.hidden != 0) q->Refuse("ssm.inner_size", absl::StrCat(inner, " for ", base.hidden));
  config["mamba_expand"] = std::max<uint64_t>(inner / base.hidden, 1);
  config["mamba_d_state"] = q->RequiredInt("ssm.state_size");
  config["mamba_d_conv"] = q->RequiredInt("ssm.conv_kernel");
  config["mamba_dt_rank"] = q->RequiredInt("ssm.time_step_rank");
  return config;
}

}  // namespace sluice
