// Families of GGUF architectures: their keys as config.json members.

#include <algorithm>
#include <cmath>

#include "common/model/gguf_config.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

using nlohmann::json;

json Qwen(const char* model_type, const char* architecture, bool norm, const GgufBaseConfig& base,
          GgufKeyReader* q) {
  json config = GgufBaseJson(model_type, architecture, base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  AddGgufExperts("num_experts", "moe_intermediate_size", base, q, &config);
  RequireGgufGating(1, q);
  config["norm_topk_prob"] = norm;
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  config["mlp_only_layers"] = GgufDenseLayers(base, *q);
  return config;
}

}  // namespace

json ReadGgufMixtral(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("mixtral", "MixtralForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  if (!q->Has("expert_count") || q->IntOr("expert_count", 0) == 0) {
    q->Keep(absl::UnimplementedError(
        absl::StrCat(q->files().path(),
                     ": a dense llama without experts is not supported; Sluice runs mixtures of experts")));
    return config;
  }
  AddGgufExperts("num_local_experts", "intermediate_size", base, q, &config);
  return config;
}

json ReadGgufQwen2Moe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = Qwen("qwen2_moe", "Qwen2MoeForCausalLM", false, base, q);
  config["qkv_bias"] =
      q->AnyLayerHas("attn_q.bias", base.layers) || q->AnyLayerHas("attn_qkv.bias", base.layers);
  config["shared_expert_intermediate_size"] =
      q->IntOr("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, base.layers), 1);
  return config;
}

json ReadGgufQwen3Moe(const GgufBaseConfig& base, GgufKeyReader* q) {
  return Qwen("qwen3_moe", "Qwen3MoeForCausalLM", true, base, q);
}

json ReadGgufOlmoe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("olmoe", "OlmoeForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  AddGgufExperts("num_experts", "intermediate_size", base, q, &config);
  config["norm_topk_prob"] = false;
  return config;
}

json ReadGgufGraniteMoe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("granitemoe", "GraniteMoeForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  AddGgufExperts("num_local_experts", "intermediate_size", base, q, &config);
  config["embedding_multiplier"] = q->Real("embedding_scale", 1);
  config["residual_multiplier"] = q->Real("residual_scale", 1);
  config["attention_multiplier"] =
      q->Real("attention.scale", 1 / std::sqrt(static_cast<double>(base.head_dim)));
  config["logits_scaling"] = q->Real("logit_scale", 1);
  return config;
}

json ReadGgufPhimoe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("phimoe", "PhimoeForCausalLM", base, q);
  AddGgufGrouped(base, true, q, &config);
  RequireWholeHeadRope(base, q);
  AddGgufExperts("num_local_experts", "intermediate_size", base, q, &config);
  config["attention_bias"] =
      q->AnyLayerHas("attn_q.bias", base.layers) || q->AnyLayerHas("attn_qkv.bias", base.layers);
  config["lm_head_bias"] = q->HasTensor("output.bias");
  const uint64_t window = q->IntOr("attention.sliding_window", 0);
  if (window != 0) config["sliding_window"] = window;
  return config;
}

// Text sequences of Qwen3-VL equal Qwen3's: all sections of a position are the same, and images are not
// supported.
json ReadGgufQwen3VlMoe(const GgufBaseConfig& base, GgufKeyReader* q) { return ReadGgufQwen3Moe(base, q); }

json ReadGgufGptOss(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("gpt_oss", "GptOssForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  // The file has no key for the unrounded ends of the ramp; no model of the family rounds them.
  if (config.contains("rope_scaling")) {
    config["rope_scaling"]["truncate"] = false;
  } else {
    config["rope_scaling"] = {{"rope_type", "default"}};
  }
  AddGgufExperts("num_local_experts", "intermediate_size", base, q, &config);
  config["sliding_window"] = q->IntOr("attention.sliding_window", 128, 1);
  config["attention_bias"] = true;
  return config;
}

json ReadGgufHunyuanMoe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  config["num_experts"] = q->RequiredInt("expert_count");
  config["moe_topk"] = q->RequiredInt("expert_used_count");
  const uint64_t width = GgufExpertWidth(base, q);
  config["intermediate_size"] = width;
  if (q->DimOf("ffn_up_shexp.weight", 1, base.layers) != width) {
    q->Refuse("expert_shared_feed_forward_length", absl::StrCat("other than the experts' width ", width));
  }
  RequireGgufGating(1, q);
  return config;
}

json ReadGgufLlama4(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("llama4_text", "Llama4ForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  AddGgufExperts("num_local_experts", "intermediate_size", base, q, &config);
  config["intermediate_size_mlp"] = q->IntOr("feed_forward_length", 1, 1);
  config["interleave_moe_layer_step"] = q->IntOr("interleave_moe_layer_step", 1, 1);
  // The file lacks this setting: Maverick, the model of 128 experts, has no norms of q and k.
  config["use_qk_norm"] = config["num_local_experts"] != 128;
  if (q->Has("attention.sliding_window")) q->Refuse("attention.sliding_window", "of a llama4");
  return config;
}

json ReadGgufMinimaxM2(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("minimax_m2", "MiniMaxM2ForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  config["rotary_dim"] = q->IntOr("rope.dimension_count", base.head_dim);
  RequireGgufGating(2, q);
  AddGgufExperts("num_local_experts", "intermediate_size", base, q, &config);
  return config;
}

namespace {

using nlohmann::json;

// A sigmoid router without a correction chooses by its scores alone.
void AddCorrection(const GgufBaseConfig& base, GgufKeyReader* q, json* config) {
  (*config)["use_expert_bias"] = q->AnyLayerHas("exp_probs_b.bias", base.layers);
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
  AddGgufDeepseekMixture(base, q, &config);
  AddGgufRouter(false, q, &config);
  AddCorrection(base, q, &config);
  return config;
}

json ReadGgufDeepseek(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("deepseek", "DeepseekForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  AddGgufDeepseekMixture(base, q, &config);
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
  AddGgufLatent(base, q, &config);
  AddGgufDeepseekMixture(base, q, &config);
  AddGgufRouter(false, q, &config);
  if (sigmoid) {
    AddCorrection(base, q, &config);
    return config;
  }
  if (config["norm_topk_prob"] == true) q->Refuse("expert_weights_norm", "with a softmax router");
  config["topk_method"] = config["n_group"] == 1 ? "greedy" : "group_limited_greedy";
  return config;
}

// Only files converted from the publisher's own layout hold the temperature of the queries. Other files are
// computed without it; sequences up to the original context give the same result.
json ReadGgufMistral4(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("mistral4", "Mistral4ForCausalLM", base, q);
  AddGgufLatent(base, q, &config);
  AddGgufDeepseekMixture(base, q, &config);
  AddGgufRouter(false, q, &config);
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
  AddGgufDeepseekMixture(base, q, &config);
  AddGgufRouter(false, q, &config);
  AddCorrection(base, q, &config);
  return config;
}

// Families whose layers differ from each other: dense layers in any position, windows, mixers without
// attention.

using nlohmann::json;

json ReadGgufErnie45Moe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  RequireGgufGating(1, q);
  const uint64_t width = GgufExpertWidth(base, q);
  config["moe_num_experts"] = q->RequiredInt("expert_count");
  config["moe_k"] = q->RequiredInt("expert_used_count");
  config["moe_intermediate_size"] = width;
  config["moe_num_shared_experts"] =
      q->IntOr("expert_shared_count", q->DimOf("ffn_up_shexp.weight", 1, base.layers) / width);
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  // Sparse layers: the keys hold the first one and their distance, the tensors determine the last one.
  const uint64_t interval = q->IntOr("interleave_moe_layer_step", 1, 1);
  uint64_t first = base.layers;
  uint64_t last = 0;
  for (uint64_t i = 0; i < base.layers; ++i) {
    if (!q->LayerHas(i, "ffn_gate_inp.weight")) continue;
    first = std::min(first, i);
    last = i;
  }
  for (uint64_t i = first; i <= last && i < base.layers; ++i) {
    if (((i + 1) % interval == 0) != q->LayerHas(i, "ffn_gate_inp.weight")) {
      q->Refuse("interleave_moe_layer_step", absl::StrCat(interval, ", which layer ", i, " is no case of"));
      break;
    }
  }
  config["moe_layer_interval"] = interval;
  config["moe_layer_start_index"] = first;
  config["moe_layer_end_index"] = last;
  return config;
}

json ReadGgufAfmoe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("afmoe", "AfmoeForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  RequireGgufGating(2, q);
  AddGgufExperts("num_experts", "moe_intermediate_size", base, q, &config);
  config["num_shared_experts"] = q->IntOr("expert_shared_count", 0);
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  config["num_dense_layers"] = GgufLeadingDenseLayers(base, q);
  // Files hold the key if the model's config had the member; the family's default is to normalize.
  config["route_norm"] = q->IntOr("expert_weights_norm", 1) != 0;
  config["route_scale"] = q->Real("expert_weights_scale", 1);
  // The file lacks this setting: all models of the family multiply their embeddings.
  config["mup_enabled"] = true;
  config["sliding_window"] = q->RequiredInt("attention.sliding_window");
  config["global_attn_every_n_layers"] = q->IntOr("attention.sliding_window_pattern", 4, 1);
  if (q->Real("rope.freq_base_swa", q->Real("rope.freq_base", 10000)) != q->Real("rope.freq_base", 10000)) {
    q->Refuse("rope.freq_base_swa", "other than rope.freq_base");
  }
  return config;
}

// Layers without heads of k and v are short convolutions.
json ReadGgufLfm2Moe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("lfm2_moe", "Lfm2MoeForCausalLM", base, q);
  const uint64_t heads = GgufHeadsOfSomeLayers(base, q);
  json types = json::array();
  for (const int64_t layer_heads : q->IntList("attention.head_count_kv")) {
    types.push_back(layer_heads == 0 ? "conv" : "full_attention");
  }
  config["layer_types"] = types;
  AddGgufHeads(base, heads, false, q, &config);
  RequireWholeHeadRope(base, q);
  RequireGgufGating(2, q);
  AddGgufExperts("num_experts", "moe_intermediate_size", base, q, &config);
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  config["num_dense_layers"] = GgufLeadingDenseLayers(base, q);
  config["conv_L_cache"] = q->RequiredInt("shortconv.l_cache");
  config["norm_eps"] = config["rms_norm_eps"];
  config["use_expert_bias"] = q->AnyLayerHas("exp_probs_b.bias", base.layers);
  // Fixed in the family's reference.
  config["norm_topk_prob"] = true;
  config["routed_scaling_factor"] = q->Real("expert_weights_scale", 1);
  return config;
}

namespace {

// Share of rotated pairs in full layers: pairs with divisor 1 rotate; the other pairs, if the file has any,
// do not.
double TurnedShare(const GgufBaseConfig& base, GgufKeyReader* q) {
  const std::vector<double> divisors = q->Values("rope_freqs.weight");
  if (divisors.empty()) return 1;
  const auto turned = std::count(divisors.begin(), divisors.end(), 1.0);
  constexpr double kStill = 1e20;  // divisor of a pair that never rotates noticeably
  const bool others_stand = std::all_of(divisors.begin() + turned, divisors.end(),
                                        [](double divisor) { return divisor >= kStill; });
  if (!others_stand || divisors.size() != base.head_dim / 2) {
    q->Keep(absl::UnimplementedError(
        absl::StrCat(q->files().path(), ": rope_freqs.weight is not ones and then stops for half of the ",
                     base.head_dim, " values of a head")));
  }
  return static_cast<double>(turned) / static_cast<double>(divisors.size());
}

}  // namespace

// attention.key_length belongs to full layers; their values are their keys if they have no attn_v.
json ReadGgufGemma4(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("gemma4_text", "Gemma4ForCausalLM", base, q);
  config.erase("rope_theta");
  config["final_logit_softcapping"] = q->Real("final_logit_softcapping", 0);
  for (const char* key : {"embedding_length_per_layer_input", "attention.shared_kv_layers"}) {
    if (q->IntOr(key, 0) != 0) q->Refuse(key, "other than 0");
  }
  const std::vector<int64_t> slides = q->IntList("attention.sliding_window_pattern");
  std::vector<int64_t> kv_heads = q->IntList("attention.head_count_kv");
  if (kv_heads.empty())
    kv_heads.assign(base.layers, static_cast<int64_t>(q->IntOr("attention.head_count_kv", 0)));
  if (slides.size() != base.layers || kv_heads.size() != base.layers) {
    q->Refuse(
        "attention.sliding_window_pattern",
        absl::StrCat("of ", slides.size(), " layers, with heads for ", kv_heads.size(), " of ", base.layers));
    return config;
  }
  json types = json::array();
  int64_t heads[2] = {};  // of full and of sliding layers
  bool value_is_key = false;
  for (uint64_t i = 0; i < base.layers; ++i) {
    const bool is_sliding = slides[i] != 0;
    types.push_back(is_sliding ? "sliding_attention" : "full_attention");
    int64_t& known = heads[is_sliding ? 1 : 0];
    if (kv_heads[i] < 1 || (known != 0 && known != kv_heads[i])) {
      q->Refuse("attention.head_count_kv", "with other numbers than one for each type of layer");
    }
    known = kv_heads[i];
    value_is_key = value_is_key || (!is_sliding && !q->LayerHas(i, "attn_v.weight"));
  }
  config["layer_types"] = types;
  config["attention_k_eq_v"] = value_is_key;
  config["num_key_value_heads"] = std::max<int64_t>(heads[1], 1);
  config["num_global_key_value_heads"] = std::max<int64_t>(heads[0], 1);
  if (!value_is_key && heads[0] != heads[1] && heads[0] != 0) {
    q->Refuse("attention.head_count_kv",
              "of full layers with values of their own, other than of sliding ones");
  }
  config["global_head_dim"] = base.head_dim;
  config["head_dim"] = q->IntOr("attention.key_length_swa", base.head_dim, 2);
  config["sliding_window"] = q->RequiredInt("attention.sliding_window");
  config["rope_parameters"] = {
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", q->Real("rope.freq_base_swa", 10000)}}},
      {"full_attention",
       {{"rope_type", "proportional"},
        {"rope_theta", q->Real("rope.freq_base", 1000000)},
        {"partial_rotary_factor", TurnedShare(base, q)}}}};
  config["enable_moe_block"] = true;
  config["num_experts"] = q->RequiredInt("expert_count");
  config["top_k_experts"] = q->RequiredInt("expert_used_count");
  config["moe_intermediate_size"] = GgufExpertWidth(base, q);
  config["intermediate_size"] = q->DimOf("ffn_up.weight", 1, base.layers);
  config["hidden_size_per_layer_input"] = 0;
  return config;
}

// Families with a recurrent state: linear attention or Mamba-2 between attention layers.

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
  const uint64_t latent = q->IntOr("moe_latent_size", 0);
  if (latent != 0) config["moe_latent_size"] = latent;
  config["intermediate_size"] = std::max<uint64_t>(q->DimOf("ffn_up.weight", 1, base.layers), 1);
  return config;
}

}  // namespace sluice
