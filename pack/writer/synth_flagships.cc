#include "pack/writer/synth_flagships.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/hf_config.h"

namespace sluice {
namespace {

struct Flagship {
  const char* name;
  const char* config;  // members of the release's config.json that decide sizes and arithmetic
};

constexpr Flagship kFlagships[] = {
    {"deepseek-v3.2", R"(
{"model_type":"deepseek_v32","hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":128,
"num_key_value_heads":128,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,
"qk_rope_head_dim":64,"v_head_dim":128,"index_n_heads":64,"index_head_dim":128,"index_topk":2048,
"intermediate_size":18432,"first_k_dense_replace":3,"n_routed_experts":256,"num_experts_per_tok":8,
"n_shared_experts":1,"moe_intermediate_size":2048,"n_group":8,"topk_group":4,"routed_scaling_factor":2.5,
"scoring_func":"sigmoid","norm_topk_prob":true,"rope_theta":10000,"rope_scaling":{"rope_type":"yarn",
"factor":40,"original_max_position_embeddings":4096,"beta_fast":32,"beta_slow":1,"mscale":1.0,
"mscale_all_dim":1.0},"rms_norm_eps":1e-06,"max_position_embeddings":163840,"vocab_size":129280})"},
    {"deepseek-v4-flash", R"(
{"model_type":"deepseek_v4","hidden_size":4096,"num_hidden_layers":43,"num_attention_heads":64,
"num_key_value_heads":1,"head_dim":512,"q_lora_rank":1024,"o_groups":8,"o_lora_rank":1024,
"qk_rope_head_dim":64,"sliding_window":128,"compress_ratios":[0,0,4,128,4,128,4,128,4,128,4,128,4,128,4,
128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4],"rope_theta":10000,
"compress_rope_theta":160000,"rope_scaling":{"rope_type":"yarn","factor":16,
"original_max_position_embeddings":65536,"beta_fast":32,"beta_slow":1},"index_n_heads":64,
"index_head_dim":128,"index_topk":512,"hc_mult":4,"hc_sinkhorn_iters":20,"hc_eps":1e-06,
"n_routed_experts":256,"num_experts_per_tok":6,"n_shared_experts":1,"moe_intermediate_size":2048,
"num_hash_layers":3,"routed_scaling_factor":1.5,"swiglu_limit":10.0,"scoring_func":"sqrtsoftplus",
"max_position_embeddings":1048576,"vocab_size":129280})"},
    {"glm-5", R"(
{"model_type":"glm_moe_dsa","hidden_size":6144,"num_hidden_layers":78,"num_attention_heads":64,
"num_key_value_heads":64,"q_lora_rank":2048,"kv_lora_rank":512,"qk_nope_head_dim":192,
"qk_rope_head_dim":64,"v_head_dim":256,"index_n_heads":32,"index_head_dim":128,"index_topk":2048,
"intermediate_size":12288,"first_k_dense_replace":3,"n_routed_experts":256,"num_experts_per_tok":8,
"n_shared_experts":1,"moe_intermediate_size":2048,"n_group":1,"topk_group":1,"routed_scaling_factor":2.5,
"scoring_func":"sigmoid","norm_topk_prob":true,"rope_theta":1000000,"rms_norm_eps":1e-05,
"max_position_embeddings":202752,"vocab_size":154880})"},
    // Its heads, latent of q and dense width are not published in words; GLM-5's ranks stand in.
    {"glm-5.3-flash", R"(
{"model_type":"glm5_next","text_config":{"model_type":"glm5_next_text","hidden_size":4096,
"num_hidden_layers":45,"num_attention_heads":64,"num_key_value_heads":64,"q_lora_rank":2048,
"kv_lora_rank":512,"qk_nope_head_dim":192,"qk_rope_head_dim":0,"v_head_dim":256,"index_n_heads":32,
"index_head_dim":128,"index_topk":2048,"index_kpool":16,"layer_types":["linear_attention",
"linear_attention","linear_attention","indexed_attention","linear_attention","linear_attention",
"linear_attention","indexed_attention","linear_attention","linear_attention","linear_attention",
"indexed_attention","linear_attention","linear_attention","linear_attention","indexed_attention",
"linear_attention","linear_attention","linear_attention","indexed_attention","linear_attention",
"linear_attention","linear_attention","indexed_attention","linear_attention","linear_attention",
"linear_attention","indexed_attention","linear_attention","linear_attention","linear_attention",
"indexed_attention","linear_attention","linear_attention","linear_attention","indexed_attention",
"linear_attention","linear_attention","linear_attention","indexed_attention","linear_attention",
"linear_attention","linear_attention","indexed_attention","linear_attention"],
"linear_attn_config":{"head_dim":128,"num_heads":64,"short_conv_kernel_size":4,"gate_lower_bound":-5.0},
"hc_mult":4,"hc_sinkhorn_iters":20,"hc_eps":1e-06,"mlp_layer_types":["dense","dense","dense","sparse",
"sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse",
"sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse",
"sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse",
"sparse","sparse","sparse","sparse","sparse","sparse","sparse","sparse"],"intermediate_size":12288,
"n_routed_experts":288,"num_experts_per_tok":8,"n_shared_experts":1,"moe_intermediate_size":2048,
"routed_scaling_factor":2.5,"swiglu_limit":10.0,"max_position_embeddings":1048576,"vocab_size":154880}})"},
    {"kimi-linear-48b-a3b", R"(
{"model_type":"kimi_linear","hidden_size":2304,"num_hidden_layers":27,"num_attention_heads":32,
"num_key_value_heads":32,"q_lora_rank":null,"kv_lora_rank":512,"qk_nope_head_dim":128,
"qk_rope_head_dim":64,"v_head_dim":128,"mla_use_nope":true,"linear_attn_config":{"full_attn_layers":[4,8,
12,16,20,24,27],"kda_layers":[1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26],"head_dim":128,
"num_heads":32,"short_conv_kernel_size":4},"intermediate_size":9216,"first_k_dense_replace":1,
"num_experts":256,"num_experts_per_token":8,"num_shared_experts":1,"moe_intermediate_size":1024,
"moe_renormalize":true,"moe_router_activation_func":"sigmoid","num_expert_group":1,"topk_group":1,
"routed_scaling_factor":2.446,"rms_norm_eps":1e-05,"max_position_embeddings":1048576,"vocab_size":163840})"},
    {"minimax-m3", R"(
{"model_type":"minimax_m3_vl_text","hidden_size":6144,"num_hidden_layers":60,"num_attention_heads":64,
"num_key_value_heads":4,"head_dim":128,"rotary_dim":64,"rope_theta":5000000,
"sparse_attention_config":{"sparse_attention_freq":[0,0,0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,
1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"sparse_num_index_heads":4,
"sparse_index_dim":128,"sparse_block_size":128,"sparse_topk_blocks":16,"sparse_local_block":1},
"moe_layer_freq":[0,0,0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,
1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"dense_intermediate_size":12288,"num_local_experts":128,
"num_experts_per_tok":4,"intermediate_size":3072,"shared_intermediate_size":3072,
"routed_scaling_factor":2.0,"swiglu_alpha":1.702,"swiglu_limit":7.0,"max_position_embeddings":524288,
"vocab_size":200064})"},
    {"step-3.5-flash", R"(
{"model_type":"step3p5","hidden_size":4096,"num_hidden_layers":45,"num_attention_heads":64,
"num_attention_groups":8,"head_dim":128,"attention_other_setting":{"attention_type":"sliding_attention",
"num_attention_heads":96,"num_attention_groups":8,"head_dim":128},"layer_types":["full_attention",
"sliding_attention","sliding_attention","sliding_attention","full_attention","sliding_attention",
"sliding_attention","sliding_attention","full_attention","sliding_attention","sliding_attention",
"sliding_attention","full_attention","sliding_attention","sliding_attention","sliding_attention",
"full_attention","sliding_attention","sliding_attention","sliding_attention","full_attention",
"sliding_attention","sliding_attention","sliding_attention","full_attention","sliding_attention",
"sliding_attention","sliding_attention","full_attention","sliding_attention","sliding_attention",
"sliding_attention","full_attention","sliding_attention","sliding_attention","sliding_attention",
"full_attention","sliding_attention","sliding_attention","sliding_attention","full_attention",
"sliding_attention","sliding_attention","sliding_attention","full_attention"],"sliding_window":512,
"rope_theta":[5000000.0,10000.0,10000.0,10000.0,5000000.0,10000.0,10000.0,10000.0,5000000.0,10000.0,
10000.0,10000.0,5000000.0,10000.0,10000.0,10000.0,5000000.0,10000.0,10000.0,10000.0,5000000.0,10000.0,
10000.0,10000.0,5000000.0,10000.0,10000.0,10000.0,5000000.0,10000.0,10000.0,10000.0,5000000.0,10000.0,
10000.0,10000.0,5000000.0,10000.0,10000.0,10000.0,5000000.0,10000.0,10000.0,10000.0,5000000.0],
"partial_rotary_factors":[0.5,1.0,1.0,1.0,0.5,1.0,1.0,1.0,0.5,1.0,1.0,1.0,0.5,1.0,1.0,1.0,0.5,1.0,1.0,1.0,
0.5,1.0,1.0,1.0,0.5,1.0,1.0,1.0,0.5,1.0,1.0,1.0,0.5,1.0,1.0,1.0,0.5,1.0,1.0,1.0,0.5,1.0,1.0,1.0,0.5],
"use_head_wise_attn_gate":true,"intermediate_size":11264,"moe_num_experts":288,"moe_top_k":8,
"moe_intermediate_size":1280,"share_expert_dim":1280,"moe_layers_enum":[3,4,5,6,7,8,9,10,11,12,13,14,15,
16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44],
"moe_router_activation":"sigmoid","moe_router_scaling_factor":3.0,"use_moe_router_bias":true,
"norm_expert_weight":true,"max_position_embeddings":262144,"vocab_size":128896})"},
    {"mimo-v2-flash", R"(
{"model_type":"mimo_v2_flash","hidden_size":4096,"num_hidden_layers":48,"num_attention_heads":64,
"num_key_value_heads":4,"head_dim":192,"v_head_dim":128,"swa_num_attention_heads":64,
"swa_num_key_value_heads":8,"swa_head_dim":192,"swa_v_head_dim":128,"sliding_window":128,
"hybrid_layer_pattern":[0,1,1,1,1,0,1,1,1,1,1,0,1,1,1,1,1,0,1,1,1,1,1,0,1,1,1,1,1,0,1,1,1,1,1,0,1,1,1,1,1,
0,1,1,1,1,1,0],"add_swa_attention_sink_bias":true,"add_full_attention_sink_bias":false,
"attention_value_scale":0.707,"partial_rotary_factor":0.334,"rope_theta":5000000,"swa_rope_theta":10000,
"intermediate_size":16384,"moe_layer_freq":[0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,
1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"n_routed_experts":256,"num_experts_per_tok":8,
"moe_intermediate_size":2048,"n_group":1,"topk_group":1,"scoring_func":"sigmoid","norm_topk_prob":true,
"layernorm_epsilon":1e-05,"max_position_embeddings":262144,"vocab_size":152576})"},
};

}  // namespace

std::vector<std::string> FlagshipNames() {
  std::vector<std::string> names;
  for (const Flagship& flagship : kFlagships) names.emplace_back(flagship.name);
  return names;
}

absl::StatusOr<ModelConfig> FlagshipModel(const std::string& name, uint32_t layers) {
  for (const Flagship& flagship : kFlagships) {
    if (name != flagship.name) continue;
    ASSIGN_OR_RETURN(HfConfig hf, ParseHfConfig(flagship.config, "", absl::StrCat("shape ", name)));
    std::vector<LayerConfig>& all = hf.config.layers;
    if (layers > all.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layers is ", layers, "; shape ", name, " has ", all.size()));
    }
    if (layers != 0) all.resize(layers);
    return std::move(hf.config);
  }
  return absl::NotFoundError(absl::StrCat("shape ", name));
}

}  // namespace sluice
