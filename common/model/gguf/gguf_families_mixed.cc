// Families whose layers differ from each other: dense layers in any position, windows, mixers without
// attention.
#include <algorithm>

#include "common/model/gguf/gguf_families.h"
#include "common/model/model_limits.h"

namespace sluice {

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

}  // namespace sluice
