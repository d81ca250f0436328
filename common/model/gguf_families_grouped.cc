// GGUF families of grouped attention with DeepSeek's router or windows: Hy3, K-EXAONE, Mellum 2, Laguna,
// North-Mini, Step-3.5, MiMo-V2-Flash.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/model/gguf_config.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

using nlohmann::json;

// Returns the rope of one type of layer: the file's scaling, if it is that type's, with its own theta.
json RopeOfType(double theta, const json& scaling) {
  json rope = scaling.is_null() ? json{{"rope_type", "default"}} : scaling;
  rope["rope_theta"] = theta;
  return rope;
}

// Returns yarn or null. yarn_attn_factor is the hub's attention_factor itself.
json YarnOfHub(const GgufBaseConfig& base, GgufKeyReader* q) {
  json scaling = GgufRopeScaling(base, 0, false, q);
  if (scaling.is_null() || !q->Has("rope.scaling.yarn_attn_factor")) return scaling;
  scaling["attention_factor"] = q->Real("rope.scaling.yarn_attn_factor", 1);
  return scaling;
}

// Requires values to be as wide as keys.
void RequireEqualHeads(const GgufBaseConfig& base, GgufKeyReader* q) {
  if (q->IntOr("attention.value_length", base.head_dim) != base.head_dim) {
    q->Refuse("attention.value_length", "other than attention.key_length");
  }
}

// Returns the share of a head that makes this number of rotated values when the product is cut.
double ShareOf(uint64_t rotated, uint64_t head_dim) {
  return std::min(1.0, (static_cast<double>(rotated) + 0.25) / static_cast<double>(head_dim));
}

// Returns the one number that the layers of a type have in a list by layer; 0 if there are none.
uint64_t HeadsOfType(const std::string& key, const std::vector<bool>& slides, bool of_windows,
                     GgufKeyReader* q) {
  const std::vector<int64_t> heads = q->IntList(key);
  uint64_t found = 0;
  for (size_t i = 0; i < slides.size(); ++i) {
    if (slides[i] != of_windows) continue;
    const int64_t of_layer = i < heads.size() ? heads[i] : 0;
    if (of_layer < 1 || of_layer > kMaxGgufInt || (found != 0 && found != static_cast<uint64_t>(of_layer))) {
      q->Refuse(key, "with other than one number for each type of layer");
      return 1;
    }
    found = static_cast<uint64_t>(of_layer);
  }
  return found;
}

// Like HeadsOfType, of a key that may be one number for all layers.
uint64_t HeadsOr(const std::string& key, uint64_t fallback, const std::vector<bool>& slides, bool of_windows,
                 GgufKeyReader* q) {
  if (!q->IsList(key)) return q->IntOr(key, fallback, 1);
  const uint64_t heads = HeadsOfType(key, slides, of_windows, q);
  return heads == 0 ? HeadsOfType(key, slides, !of_windows, q) : heads;
}

}  // namespace

json ReadGgufHyV3(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("hy_v3", "HYV3ForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  RequireGgufGating(2, q);
  AddGgufExperts("num_experts", "moe_intermediate_size", base, q, &config);
  const uint64_t width = config["moe_intermediate_size"].get<uint64_t>();
  const uint64_t shared =
      q->IntOr("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, base.layers));
  if (shared % width != 0) {
    q->Refuse("expert_shared_feed_forward_length", absl::StrCat(shared, ", no multiple of ", width));
  }
  config["num_shared_experts"] = shared / width;
  config["route_norm"] = q->IntOr("expert_weights_norm", 1) != 0;
  config["router_scaling_factor"] = q->Real("expert_weights_scale", 1);
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  AddGgufMlpTypes(base, *q, &config);
  return config;
}

json ReadGgufExaoneMoe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("exaone_moe", "ExaoneMoeForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  RequireGgufGating(2, q);
  AddGgufExperts("num_experts", "moe_intermediate_size", base, q, &config);
  config["num_shared_experts"] = q->IntOr("expert_shared_count", 0);
  AddGgufRouter(true, q, &config);
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  AddGgufMlpTypes(base, *q, &config);
  AddGgufWindows(GgufSlidingLayers(base, 4, false, q), q, &config);
  return config;
}

json ReadGgufMellum(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("mellum", "MellumForCausalLM", base, q);
  config["num_key_value_heads"] = q->UniformInt("attention.head_count_kv", base.heads);
  config["head_dim"] = base.head_dim;
  RequireEqualHeads(base, q);
  RequireWholeHeadRope(base, q);
  const double theta = config["rope_theta"].get<double>();
  config.erase("rope_theta");
  config["rope_parameters"] = {
      {"full_attention", RopeOfType(theta, YarnOfHub(base, q))},
      {"sliding_attention", RopeOfType(q->Real("rope.freq_base_swa", theta), nullptr)}};
  AddGgufWindows(GgufSlidingLayers(base, 4, false, q), q, &config);
  RequireGgufGating(1, q);
  AddGgufExperts("num_experts", "moe_intermediate_size", base, q, &config);
  config["norm_topk_prob"] = true;  // always in the family
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  AddGgufMlpTypes(base, *q, &config);
  return config;
}

// The gate's tensor shows whether it has one value a head.
json ReadGgufLaguna(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("laguna", "LagunaForCausalLM", base, q);
  config["num_key_value_heads"] = q->UniformInt("attention.head_count_kv", base.heads);
  config["head_dim"] = base.head_dim;
  RequireEqualHeads(base, q);
  std::vector<int64_t> heads = q->IsList("attention.head_count")
                                   ? q->IntList("attention.head_count")
                                   : std::vector<int64_t>(base.layers, static_cast<int64_t>(base.heads));
  heads.resize(base.layers);
  config["num_attention_heads_per_layer"] = heads;
  const uint64_t gate = q->DimOf("attn_gate.weight", 1, 1);
  config["gating"] = gate == base.heads ? "per-head" : "per-element";
  if (gate != base.heads && gate != base.heads * base.head_dim) {
    q->Refuse("attention.head_count", absl::StrCat(base.heads, " beside blk.0.attn_gate of ", gate, " rows"));
  }
  const double theta = config["rope_theta"].get<double>();
  config.erase("rope_theta");
  json full = RopeOfType(theta, YarnOfHub(base, q));
  full["partial_rotary_factor"] = ShareOf(q->IntOr("rope.dimension_count", base.head_dim), base.head_dim);
  json sliding = RopeOfType(q->Real("rope.freq_base_swa", theta), nullptr);
  sliding["partial_rotary_factor"] =
      ShareOf(q->IntOr("rope.dimension_count_swa", base.head_dim), base.head_dim);
  config["rope_parameters"] = {{"full_attention", full}, {"sliding_attention", sliding}};
  AddGgufWindows(GgufSlidingLayers(base, 4, true, q), q, &config);
  RequireGgufGating(2, q);
  if (q->IntOr("expert_weights_norm", 1) == 0) q->Refuse("expert_weights_norm", "false");
  AddGgufExperts("num_experts", "moe_intermediate_size", base, q, &config);
  config["shared_expert_intermediate_size"] =
      q->IntOr("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, base.layers));
  config["moe_routed_scaling_factor"] = q->Real("expert_weights_scale", 1);
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  AddGgufMlpTypes(base, *q, &config);
  return config;
}

// Without an epsilon of RMS norms the norms subtract the mean.
json ReadGgufCohere2Moe(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("cohere2_moe", "Cohere2MoeForCausalLM", base, q);
  if (!q->Has("attention.layer_norm_rms_epsilon")) {
    config.erase("rms_norm_eps");
    config["layer_norm_eps"] = q->Real("attention.layer_norm_epsilon", 1e-5);
  }
  AddGgufGrouped(base, false, q, &config);
  RequireWholeHeadRope(base, q);
  config["logit_scale"] = q->Real("logit_scale", 1);
  AddGgufWindows(GgufSlidingLayers(base, 4, true, q), q, &config);
  AddGgufMlpTypes(base, *q, &config);
  AddGgufExperts("num_experts", "intermediate_size", base, q, &config);
  const uint64_t dense = q->DimOf("ffn_up.weight", 1, base.layers);
  if (dense != 0) config["prefix_dense_intermediate_size"] = dense;
  config["num_shared_experts"] = q->IntOr("expert_shared_count", 0);
  config["norm_topk_prob"] = q->Flag("expert_weights_norm");
  const uint64_t gating = q->IntOr("expert_gating_func", 2);
  if (gating != 2) RequireGgufGating(1, q);
  config["expert_selection_fn"] = gating == 2 ? "sigmoid" : "softmax";
  if (q->Real("expert_weights_scale", 1) != 1) q->Refuse("expert_weights_scale", "other than 1");
  return config;
}

namespace {

// The line of a share against a frequency.
struct Line {
  double slope = 0;
  double origin = 0;
};

// Fits Llama-3's scaling to the divisors of these frequencies: between the two ends of the ramp a divisor d
// makes the share (1/d - 1/factor) / (1 - 1/factor), which is linear in the frequency. False if two points of
// the ramp are missing or the others do not lie on the line.
bool FitRamp(const std::vector<double>& divisors, double factor, double base, double dimension, Line* line) {
  std::vector<std::pair<double, double>> points;
  for (size_t i = 0; i < divisors.size(); ++i) {
    if (divisors[i] <= 1 || divisors[i] >= factor) continue;
    const double share = (1 / divisors[i] - 1 / factor) / (1 - 1 / factor);
    points.emplace_back(std::pow(base, -2 * static_cast<double>(i) / dimension), share);
  }
  if (points.size() < 2) return false;
  const auto& [high, most] = points.front();
  const auto& [low, least] = points.back();
  line->slope = (most - least) / (high - low);
  line->origin = most - line->slope * high;
  return std::all_of(points.begin(), points.end(), [&](const auto& point) {
    return std::abs(line->slope * point.first + line->origin - point.second) < 1e-3;
  });
}

// Returns rope_scaling of the full layers, or null. A file has the divisors alone, of the frequencies of a
// whole head (llama.cpp's converter), though half of a head is rotated; hence the parameters that made them.
json StepScaling(const GgufBaseConfig& base, double theta, uint64_t rotated, GgufKeyReader* q) {
  const std::vector<double> divisors = q->Values("rope_freqs.weight");
  if (std::all_of(divisors.begin(), divisors.end(), [](double divisor) { return divisor == 1; })) {
    return nullptr;
  }
  const double factor = *std::max_element(divisors.begin(), divisors.end());
  Line line;
  if (!FitRamp(divisors, factor, theta, static_cast<double>(base.head_dim), &line) &&
      !FitRamp(divisors, factor, theta, static_cast<double>(rotated), &line)) {
    q->Keep(absl::UnimplementedError(
        absl::StrCat(q->files().path(), ": rope_freqs.weight does not hold the divisors of Llama-3's ramp")));
    return nullptr;
  }
  // The parameters are known up to a common factor.
  const double high = 1 - 1 / line.origin;
  const double original = -2 * std::numbers::pi * line.slope / line.origin;
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", 1},
          {"high_freq_factor", high},
          {"original_max_position_embeddings", std::max<int64_t>(1, std::llround(original))}};
}

// Query and KV heads of each type of layer.
void AddStepHeads(const GgufBaseConfig& base, const std::vector<bool>& slides, GgufKeyReader* q,
                  json* config) {
  const bool any = std::find(slides.begin(), slides.end(), true) != slides.end();
  const auto heads = [&](const char* key, bool of_windows) {
    return HeadsOr(key, base.heads, slides, of_windows, q);
  };
  (*config)["num_attention_heads"] = heads("attention.head_count", false);
  (*config)["num_attention_groups"] = heads("attention.head_count_kv", false);
  if (!any) return;
  (*config)["attention_other_setting"] = {{"attention_type", "sliding_attention"},
                                          {"head_dim", base.head_dim},
                                          {"num_attention_heads", heads("attention.head_count", true)},
                                          {"num_attention_groups", heads("attention.head_count_kv", true)}};
}

// Adds the limits by layer, if the file has any.
void AddStepLimits(const char* key, const char* name, const GgufBaseConfig& base, GgufKeyReader* q,
                   json* config) {
  std::vector<double> limits = q->RealList(key);
  if (limits.empty()) return;
  limits.resize(std::max<size_t>(limits.size(), base.layers));
  (*config)[name] = limits;
}

}  // namespace

// Fixed in the family: half of a head is rotated in full layers, all of it in the others.
json ReadGgufStep35(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("step3p5", "Step3p5ForCausalLM", base, q);
  const std::vector<bool> slides = GgufSlidingLayers(base, 4, true, q);
  config["layer_types"] = GgufWindowTypes(slides);
  config["sliding_window"] = q->RequiredInt("attention.sliding_window");
  config["head_dim"] = base.head_dim;
  RequireEqualHeads(base, q);
  AddStepHeads(base, slides, q, &config);
  const double theta = config["rope_theta"].get<double>();
  const double sliding_theta = q->Real("rope.freq_base_swa", theta);
  json thetas = json::array();
  json shares = json::array();
  for (const bool slide : slides) {
    thetas.push_back(slide ? sliding_theta : theta);
    shares.push_back(slide ? 1.0 : 0.5);
  }
  config["rope_theta"] = thetas;
  config["partial_rotary_factors"] = shares;
  const json scaling = StepScaling(base, theta, base.head_dim / 2, q);
  if (!scaling.is_null()) config["rope_scaling"] = scaling;
  config["yarn_only_types"] = {"full_attention"};
  RequireGgufGating(2, q);
  config["moe_num_experts"] = q->RequiredInt("expert_count");
  config["moe_top_k"] = q->RequiredInt("expert_used_count");
  config["moe_intermediate_size"] = GgufExpertWidth(base, q);
  config["share_expert_dim"] =
      q->IntOr("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, base.layers));
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  config["norm_expert_weight"] = q->IntOr("expert_weights_norm", 1) != 0;
  config["moe_router_scaling_factor"] = q->Real("expert_weights_scale", 1);
  config["use_moe_router_bias"] = q->AnyLayerHas("exp_probs_b.bias", base.layers);
  config["use_head_wise_attn_gate"] = q->AnyLayerHas("attn_gate.weight", base.layers);
  json sparse = json::array();
  for (uint64_t i = 0; i < base.layers; ++i) {
    if (q->LayerHas(i, "ffn_gate_inp.weight")) sparse.push_back(i);
  }
  config["moe_layers_enum"] = sparse;
  AddStepLimits("swiglu_clamp_exp", "swiglu_limits", base, q, &config);
  AddStepLimits("swiglu_clamp_shexp", "swiglu_limits_shared", base, q, &config);
  return config;
}

// The window does not count the own position.
json ReadGgufMimo2(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("mimo_v2_flash", "MiMoV2FlashForCausalLM", base, q);
  const std::vector<bool> slides = GgufSlidingLayers(base, 6, true, q);
  config["layer_types"] = GgufWindowTypes(slides);
  config["sliding_window_size"] = q->RequiredInt("attention.sliding_window");
  config["head_dim"] = base.head_dim;
  config["v_head_dim"] = q->IntOr("attention.value_length", base.head_dim, 1);
  config["num_key_value_heads"] = HeadsOr("attention.head_count_kv", base.heads, slides, false, q);
  config["swa_num_key_value_heads"] = HeadsOr("attention.head_count_kv", base.heads, slides, true, q);
  config["partial_rotary_factor"] =
      ShareOf(q->IntOr("rope.dimension_count", base.head_dim, 1), base.head_dim);
  config["swa_rope_theta"] = q->Real("rope.freq_base_swa", config["rope_theta"].get<double>());
  config["attention_value_scale"] = q->Real("attention.value_scale", 1);
  bool sinks[2] = {};  // of full and of sliding layers
  for (uint64_t i = 0; i < base.layers; ++i) {
    if (q->LayerHas(i, "attn_sinks.weight")) sinks[slides[i] ? 1 : 0] = true;
  }
  config["add_full_attention_sink_bias"] = sinks[0];
  config["add_swa_attention_sink_bias"] = sinks[1];
  config["attention_bias"] = q->AnyLayerHas("attn_q.bias", base.layers);
  RequireGgufGating(2, q);
  AddGgufExperts("n_routed_experts", "moe_intermediate_size", base, q, &config);
  AddGgufRouter(true, q, &config);
  config["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  AddGgufMlpTypes(base, *q, &config);
  return config;
}

}  // namespace sluice
