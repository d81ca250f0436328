#include "common/model/gguf/gguf_families.h"

#include <cmath>

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

}  // namespace sluice
