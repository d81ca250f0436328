// GGUF families whose attention is sparse by an indexer: MiniMax-M3, DeepSeek-V3.2, GLM-5, DeepSeek-V4.

#include <algorithm>

#include "common/model/gguf_config.h"
#include "common/model/model_limits.h"

namespace sluice {

using nlohmann::json;

// Files lack the activation's numbers, which are the reader's defaults.
json ReadGgufMinimaxM3(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("minimax_m3_vl_text", "MiniMaxM3SparseForCausalLM", base, q);
  AddGgufGrouped(base, false, q, &config);
  config["rotary_dim"] = q->IntOr("rope.dimension_count", base.head_dim);
  RequireGgufGating(2, q);
  if (q->IntOr("expert_weights_norm", 1) == 0) q->Refuse("expert_weights_norm", "false");
  AddGgufExperts("num_local_experts", "intermediate_size", base, q, &config);
  config["shared_intermediate_size"] = q->DimOf("ffn_up_shexp.weight", 1, base.layers);
  config["routed_scaling_factor"] = q->Real("expert_weights_scale", 1);
  config["dense_intermediate_size"] = std::max<uint64_t>(q->DimOf("ffn_up.weight", 1, base.layers), 1);
  AddGgufMlpTypes(base, *q, &config);
  json chooses = json::array();
  for (uint64_t i = 0; i < base.layers; ++i)
    chooses.push_back(q->LayerHas(i, "indexer.q_proj.weight") ? 1 : 0);
  if (std::find(chooses.begin(), chooses.end(), json(1)) == chooses.end()) return config;
  config["sparse_attention_config"] = {
      {"sparse_attention_freq", chooses},
      {"sparse_num_index_heads", q->RequiredInt("attention.indexer.head_count")},
      {"sparse_index_dim", q->RequiredInt("attention.indexer.key_length")},
      {"sparse_topk_blocks", q->RequiredInt("attention.indexer.top_k")},
      {"sparse_block_size", q->RequiredInt("attention.indexer.block_size")},
      {"sparse_local_block", q->IntOr("attention.indexer.local_blocks", 1, 1)}};
  return config;
}

namespace {

json IndexedDeepseek(const char* model_type, const char* architecture, const GgufBaseConfig& base,
                     GgufKeyReader* q) {
  json config = GgufBaseJson(model_type, architecture, base, q);
  AddGgufLatent(base, q, &config);
  AddGgufDeepseekMixture(base, q, &config);
  AddGgufRouter(false, q, &config);
  RequireGgufGating(2, q);
  config["use_expert_bias"] = q->AnyLayerHas("exp_probs_b.bias", base.layers);
  config["index_n_heads"] = q->RequiredInt("attention.indexer.head_count");
  config["index_head_dim"] = q->RequiredInt("attention.indexer.key_length");
  config["index_topk"] = q->RequiredInt("attention.indexer.top_k");
  return config;
}

}  // namespace

json ReadGgufDeepseek32(const GgufBaseConfig& base, GgufKeyReader* q) {
  return IndexedDeepseek("deepseek_v32", "DeepseekV32ForCausalLM", base, q);
}

// Files without a list: in GLM-5 and 5.1 all layers have an indexer, in GLM-5.2, which has the longer
// context, the first three and then every fourth.
json ReadGgufGlmDsa(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = IndexedDeepseek("glm_moe_dsa", "GlmMoeDsaForCausalLM", base, q);
  const std::vector<int64_t> full = q->IntList("attention.indexer.types");
  if (!full.empty() && full.size() < base.layers) {
    q->Refuse("attention.indexer.types",
              absl::StrCat("of ", full.size(), " entries for ", base.layers, " layers"));
    return config;
  }
  constexpr uint64_t kLongContext = 1048576;
  if (full.empty() && base.context >= kLongContext) {
    config["index_topk_freq"] = 4;
    config["index_skip_topk_offset"] = 3;
  }
  if (full.empty()) return config;
  json types = json::array();
  for (uint64_t i = 0; i < base.layers; ++i) types.push_back(full[i] != 0 ? "full" : "shared");
  config["indexer_types"] = types;
  return config;
}

namespace {

// The limit of experts' activations, which is one for all layers; 0: none.
double OneLimit(const char* key, const GgufBaseConfig& base, GgufKeyReader* q) {
  const std::vector<double> limits = q->RealList(key);
  if (limits.empty()) return q->Real(key, 0);
  for (size_t i = 1; i < std::min<size_t>(limits.size(), base.layers); ++i) {
    if (limits[i] != limits[0]) q->Refuse(key, "with another number in each layer");
  }
  return limits[0];
}

}  // namespace

json ReadGgufDeepseek4(const GgufBaseConfig& base, GgufKeyReader* q) {
  json config = GgufBaseJson("deepseek_v4", "DeepseekV4ForCausalLM", base, q);
  AddGgufHeads(base, q->UniformInt("attention.head_count_kv", 1), false, q, &config);
  config["qk_rope_head_dim"] = q->RequiredInt("rope.dimension_count");
  config["q_lora_rank"] = q->RequiredInt("attention.q_lora_rank");
  config["o_lora_rank"] = q->RequiredInt("attention.output_lora_rank");
  config["o_groups"] = q->RequiredInt("attention.output_group_count");
  config["sliding_window"] = q->RequiredInt("attention.sliding_window");
  config["compress_rope_theta"] = q->Real("attention.compress_rope_freq_base", 160000);
  const std::vector<int64_t> rates = q->IntList("attention.compress_ratios");
  if (rates.size() < base.layers) {
    q->Refuse("attention.compress_ratios",
              absl::StrCat("of ", rates.size(), " entries for ", base.layers, " layers"));
  }
  config["compress_ratios"] = rates;
  config["index_n_heads"] = q->RequiredInt("attention.indexer.head_count");
  config["index_head_dim"] = q->RequiredInt("attention.indexer.key_length");
  config["index_topk"] = q->RequiredInt("attention.indexer.top_k");
  config["hc_mult"] = q->RequiredInt("hyper_connection.count");
  config["hc_sinkhorn_iters"] = q->RequiredInt("hyper_connection.sinkhorn_iterations");
  config["hc_eps"] = q->Real("hyper_connection.epsilon", 1e-6);
  AddGgufExperts("n_routed_experts", "moe_intermediate_size", base, q, &config);
  config["n_shared_experts"] = q->IntOr("expert_shared_count", 1);
  config["num_hash_layers"] = q->IntOr("hash_layer_count", 0);
  config["routed_scaling_factor"] = q->Real("expert_weights_scale", 1);
  constexpr uint64_t kRootOfSoftplus = 4;
  RequireGgufGating(kRootOfSoftplus, q);
  if (q->IntOr("expert_weights_norm", 1) == 0) q->Refuse("expert_weights_norm", "false");
  const double limit = OneLimit("swiglu_clamp_exp", base, q);
  if (q->Has("swiglu_clamp_shexp") && OneLimit("swiglu_clamp_shexp", base, q) != limit) {
    q->Refuse("swiglu_clamp_shexp", "other than swiglu_clamp_exp");
  }
  config["swiglu_limit"] = limit;
  return config;
}

}  // namespace sluice
