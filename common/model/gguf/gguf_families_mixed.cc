// Families whose layers differ from each other: dense ones anywhere, windows, mixers without attention.
#include "common/model/gguf/gguf_families.h"
#include "common/model/model_limits.h"

namespace sluice {

using nlohmann::json;

json ReadGgufErnie45Moe(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", frame, q);
  AddGgufGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  RequireGgufGating(1, q);
  const uint64_t width = GgufExpertWidth(frame, q);
  config["moe_num_experts"] = q->NeedWhole("expert_count");
  config["moe_k"] = q->NeedWhole("expert_used_count");
  config["moe_intermediate_size"] = width;
  config["moe_num_shared_experts"] =
      q->Whole("expert_shared_count", q->DimOf("ffn_up_shexp.weight", 1, frame.layers) / width);
  config["intermediate_size"] = q->Whole("feed_forward_length", 1, 1);
  // Which layers are sparse: the keys say where they begin and how far apart they are, the tensors where
  // they end.
  const uint64_t interval = q->Whole("interleave_moe_layer_step", 1, 1);
  uint64_t first = frame.layers;
  uint64_t last = 0;
  for (uint64_t i = 0; i < frame.layers; ++i) {
    if (!q->LayerHas(i, "ffn_gate_inp.weight")) continue;
    first = std::min(first, i);
    last = i;
  }
  for (uint64_t i = first; i <= last && i < frame.layers; ++i) {
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

json ReadGgufAfmoe(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("afmoe", "AfmoeForCausalLM", frame, q);
  AddGgufGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  RequireGgufGating(2, q);
  AddGgufExperts("num_experts", "moe_intermediate_size", frame, q, &config);
  config["num_shared_experts"] = q->Whole("expert_shared_count", 0);
  config["intermediate_size"] = q->Whole("feed_forward_length", 1, 1);
  config["num_dense_layers"] = GgufLeadingDenseLayers(frame, q);
  // Files say it where their model's config did, and the family's default is to norm.
  config["route_norm"] = q->Whole("expert_weights_norm", 1) != 0;
  config["route_scale"] = q->Real("expert_weights_scale", 1);
  // Not in the file: embeddings are multiplied in all models of the family.
  config["mup_enabled"] = true;
  config["sliding_window"] = q->NeedWhole("attention.sliding_window");
  config["global_attn_every_n_layers"] = q->Whole("attention.sliding_window_pattern", 4, 1);
  if (q->Real("rope.freq_base_swa", q->Real("rope.freq_base", 10000)) != q->Real("rope.freq_base", 10000)) {
    q->Refuse("rope.freq_base_swa", "other than rope.freq_base");
  }
  return config;
}

// Layers without heads of k and v are short convolutions.
json ReadGgufLfm2Moe(const GgufFrame& frame, GgufQuestions* q) {
  json config = GgufFrameConfig("lfm2_moe", "Lfm2MoeForCausalLM", frame, q);
  const std::vector<int64_t> kv_heads = q->Wholes("attention.head_count_kv");
  json types = json::array();
  int64_t heads = 0;
  for (const int64_t layer_heads : kv_heads) {
    types.push_back(layer_heads == 0 ? "conv" : "full_attention");
    if (layer_heads < 0 || (heads != 0 && layer_heads != 0 && layer_heads != heads)) {
      q->Refuse("attention.head_count_kv", "with other numbers than one and zeros");
    }
    if (layer_heads > 0) heads = layer_heads;
  }
  if (kv_heads.size() != frame.layers || heads == 0) {
    q->Refuse("attention.head_count_kv",
              absl::StrCat("of ", kv_heads.size(), " numbers for ", frame.layers, " layers, or of zeros"));
  }
  config["layer_types"] = types;
  AddGgufHeads(frame, static_cast<uint64_t>(std::max<int64_t>(heads, 1)), false, q, &config);
  RequireWholeHeadRope(frame, q);
  RequireGgufGating(2, q);
  AddGgufExperts("num_experts", "moe_intermediate_size", frame, q, &config);
  config["intermediate_size"] = q->Whole("feed_forward_length", 1, 1);
  config["num_dense_layers"] = GgufLeadingDenseLayers(frame, q);
  config["conv_L_cache"] = q->NeedWhole("shortconv.l_cache");
  config["norm_eps"] = config["rms_norm_eps"];
  config["use_expert_bias"] = q->AnyLayerHas("exp_probs_b.bias", frame.layers);
  // Fixed in the family's reference.
  config["norm_topk_prob"] = true;
  config["routed_scaling_factor"] = q->Real("expert_weights_scale", 1);
  return config;
}

}  // namespace sluice
