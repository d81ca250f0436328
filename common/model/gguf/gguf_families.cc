#include "common/model/gguf/gguf_families.h"

#include <cmath>

namespace sluice {
namespace {

using nlohmann::json;

json Qwen(const char* model_type, const char* architecture, bool norm, const GgufFrame& frame,
          GgufQuestions* q) {
  json config = GgufFrameConfig(model_type, architecture, frame, q);
  AddGgufGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  AddGgufExperts("num_experts", "moe_intermediate_size", frame, q, &config);
  RequireGgufGating(1, q);
  config["norm_topk_prob"] = norm;
  config["intermediate_size"] = q->Whole("feed_forward_length", 1, 1);
  config["mlp_only_layers"] = GgufDenseLayers(frame, *q);
  return config;
}

}  // namespace

json ReadGgufMixtral(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("mixtral", "MixtralForCausalLM", frame, q);
  AddGgufGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  if (!q->Has("expert_count") || q->Whole("expert_count", 0) == 0) {
    q->Keep(absl::UnimplementedError(
        absl::StrCat(q->files().path(),
                     ": a dense llama without experts is not supported; Sluice runs mixtures of experts")));
    return config;
  }
  AddGgufExperts("num_local_experts", "intermediate_size", frame, q, &config);
  return config;
}

json ReadGgufQwen2Moe(const GgufFrame& frame, GgufQuestions* q) {
  json config = Qwen("qwen2_moe", "Qwen2MoeForCausalLM", false, frame, q);
  config["qkv_bias"] =
      q->AnyLayerHas("attn_q.bias", frame.layers) || q->AnyLayerHas("attn_qkv.bias", frame.layers);
  config["shared_expert_intermediate_size"] =
      q->Whole("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, frame.layers), 1);
  return config;
}

json ReadGgufQwen3Moe(const GgufFrame& frame, GgufQuestions* q) {
  return Qwen("qwen3_moe", "Qwen3MoeForCausalLM", true, frame, q);
}

json ReadGgufOlmoe(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("olmoe", "OlmoeForCausalLM", frame, q);
  AddGgufGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  AddGgufExperts("num_experts", "intermediate_size", frame, q, &config);
  config["norm_topk_prob"] = false;
  return config;
}

json ReadGgufGraniteMoe(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("granitemoe", "GraniteMoeForCausalLM", frame, q);
  AddGgufGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  AddGgufExperts("num_local_experts", "intermediate_size", frame, q, &config);
  config["embedding_multiplier"] = q->Real("embedding_scale", 1);
  config["residual_multiplier"] = q->Real("residual_scale", 1);
  config["attention_multiplier"] =
      q->Real("attention.scale", 1 / std::sqrt(static_cast<double>(frame.head_dim)));
  config["logits_scaling"] = q->Real("logit_scale", 1);
  return config;
}

json ReadGgufPhimoe(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("phimoe", "PhimoeForCausalLM", frame, q);
  AddGgufGrouped(frame, true, q, &config);
  RequireWholeHeadRope(frame, q);
  AddGgufExperts("num_local_experts", "intermediate_size", frame, q, &config);
  config["attention_bias"] =
      q->AnyLayerHas("attn_q.bias", frame.layers) || q->AnyLayerHas("attn_qkv.bias", frame.layers);
  config["lm_head_bias"] = q->HasTensor("output.bias");
  const uint64_t window = q->Whole("attention.sliding_window", 0);
  if (window != 0) config["sliding_window"] = window;
  return config;
}

// Text sequences of Qwen3-VL equal Qwen3's: all sections of a position are the same, and images are not
// supported.
json ReadGgufQwen3VlMoe(const GgufFrame& frame, GgufQuestions* q) { return ReadGgufQwen3Moe(frame, q); }

json ReadGgufGptOss(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("gpt_oss", "GptOssForCausalLM", frame, q);
  AddGgufGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  // The file has no key for the unrounded ends of the ramp; no model of the family rounds them.
  if (config.contains("rope_scaling")) {
    config["rope_scaling"]["truncate"] = false;
  } else {
    config["rope_scaling"] = {{"rope_type", "default"}};
  }
  AddGgufExperts("num_local_experts", "intermediate_size", frame, q, &config);
  config["sliding_window"] = q->Whole("attention.sliding_window", 128, 1);
  config["attention_bias"] = true;
  return config;
}

json ReadGgufHunyuanMoe(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", frame, q);
  AddGgufGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  config["num_experts"] = q->NeedWhole("expert_count");
  config["moe_topk"] = q->NeedWhole("expert_used_count");
  const uint64_t width = GgufExpertWidth(frame, q);
  config["intermediate_size"] = width;
  if (q->DimOf("ffn_up_shexp.weight", 1, frame.layers) != width) {
    q->Refuse("expert_shared_feed_forward_length", absl::StrCat("other than the experts' width ", width));
  }
  RequireGgufGating(1, q);
  return config;
}

json ReadGgufLlama4(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("llama4_text", "Llama4ForCausalLM", frame, q);
  AddGgufGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  AddGgufExperts("num_local_experts", "intermediate_size", frame, q, &config);
  config["intermediate_size_mlp"] = q->Whole("feed_forward_length", 1, 1);
  config["interleave_moe_layer_step"] = q->Whole("interleave_moe_layer_step", 1, 1);
  // The file lacks this setting: Maverick, the model of 128 experts, has no norms of q and k.
  config["use_qk_norm"] = config["num_local_experts"] != 128;
  if (q->Has("attention.sliding_window")) q->Refuse("attention.sliding_window", "of a llama4");
  return config;
}

json ReadGgufMinimaxM2(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("minimax_m2", "MiniMaxM2ForCausalLM", frame, q);
  AddGgufGrouped(frame, false, q, &config);
  config["rotary_dim"] = q->Whole("rope.dimension_count", frame.head_dim);
  RequireGgufGating(2, q);
  AddGgufExperts("num_local_experts", "intermediate_size", frame, q, &config);
  return config;
}

}  // namespace sluice
