#include "common/model/gguf/gguf_architecture.h"

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr char kMixtralExperts[] = "block_sparse_moe.experts.";
constexpr char kMixtralGate[] = "block_sparse_moe.gate";

constexpr GgufModule kHunyuanModules[] = {{"attn_q_norm", "self_attn.query_layernorm"},
                                          {"attn_k_norm", "self_attn.key_layernorm"}};
constexpr GgufModule kAfmoeModules[] = {{"attn_gate", "self_attn.gate_proj"},
                                        {"post_attention_norm", "post_attention_layernorm"},
                                        {"ffn_norm", "pre_mlp_layernorm"},
                                        {"post_ffw_norm", "post_mlp_layernorm"}};
constexpr GgufModule kLfm2Modules[] = {{"attn_norm", "operator_norm"},
                                       {"ffn_norm", "ffn_norm"},
                                       {"attn_q_norm", "self_attn.q_layernorm"},
                                       {"attn_k_norm", "self_attn.k_layernorm"},
                                       {"attn_output", "self_attn.out_proj"},
                                       {"shortconv.in_proj", "conv.in_proj"},
                                       {"shortconv.conv", "conv.conv", GgufTransform::kSqueezed},
                                       {"shortconv.out_proj", "conv.out_proj"}};

// Tensors of linear attention. Qwen3.5 stores its value heads and both of its gates separately; Qwen3-Next's
// files have either the hub's fused projection, as the first ones did, or separate q, k and v and z.
constexpr GgufModule kQwenLinearModules[] = {{"ssm_in", "linear_attn.in_proj_qkvz"},
                                             {"attn_qkv", "linear_attn.in_proj_qkv"},
                                             {"attn_gate", "linear_attn.in_proj_z"},
                                             {"ssm_beta", "linear_attn.in_proj_b"},
                                             {"ssm_alpha", "linear_attn.in_proj_a"},
                                             {"ssm_conv1d", "linear_attn.conv1d", GgufTransform::kSqueezed},
                                             {"ssm_norm", "linear_attn.norm"},
                                             {"ssm_out", "linear_attn.out_proj"},
                                             {"ssm_a", "linear_attn.A_log", GgufTransform::kDecay},
                                             {"ssm_dt.bias", "linear_attn.dt_bias"}};
constexpr GgufModule kGraniteHybridModules[] = {{"ssm_in", "mamba.in_proj"},
                                                {"ssm_conv1d", "mamba.conv1d", GgufTransform::kSqueezed},
                                                {"ssm_norm", "mamba.norm", GgufTransform::kUnsqueezed},
                                                {"ssm_out", "mamba.out_proj"},
                                                {"ssm_a", "mamba.A_log", GgufTransform::kDecay},
                                                {"ssm_d", "mamba.D", GgufTransform::kUnsqueezed},
                                                {"ssm_dt.bias", "mamba.dt_bias"}};
constexpr GgufModule kNemotronModules[] = {{"attn_norm", "norm"},
                                           {"attn_q", "mixer.q_proj"},
                                           {"attn_k", "mixer.k_proj"},
                                           {"attn_v", "mixer.v_proj"},
                                           {"attn_output", "mixer.o_proj"},
                                           {"ssm_in", "mixer.in_proj"},
                                           {"ssm_conv1d", "mixer.conv1d", GgufTransform::kSqueezed},
                                           {"ssm_norm", "mixer.norm", GgufTransform::kUnsqueezed},
                                           {"ssm_out", "mixer.out_proj"},
                                           {"ssm_a", "mixer.A_log", GgufTransform::kDecay},
                                           {"ssm_d", "mixer.D", GgufTransform::kUnsqueezed},
                                           {"ssm_dt.bias", "mixer.dt_bias"}};
constexpr GgufModule kGemma4Modules[] = {{"post_attention_norm", "post_attention_layernorm"},
                                         {"ffn_norm", "pre_feedforward_layernorm"},
                                         {"post_ffw_norm", "post_feedforward_layernorm"},
                                         {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
                                         {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
                                         {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
                                         {"ffn_gate_inp.scale", "router.scale"},
                                         {"ffn_down_exps.scale", "router.per_expert_scale"},
                                         {"layer_output_scale.weight", "layer_scalar"}};

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama",
     .router = kMixtralGate,
     .experts = kMixtralExperts,
     .gate = "w1",
     .up = "w3",
     .down = "w2",
     .permuted = true},
    {.name = "qwen2moe"},
    {.name = "qwen3moe"},
    {.name = "qwen3vlmoe"},
    {.name = "olmoe"},
    {.name = "granitemoe", .router = "block_sparse_moe.router", .experts = kMixtralExperts, .permuted = true},
    {.name = "phimoe",
     .router = kMixtralGate,
     .experts = kMixtralExperts,
     .gate = "w1",
     .up = "w3",
     .down = "w2"},
    {.name = "glm4moe",
     .correction = "mlp.gate.e_score_correction_bias",
     .shared = "mlp.shared_experts.",
     .norm_after_attention = true},
    {.name = "deepseek", .shared = "mlp.shared_experts.", .permuted = true},
    {.name = "deepseek2", .correction = "mlp.gate.e_score_correction_bias", .shared = "mlp.shared_experts."},
    {.name = "gpt-oss", .router = "mlp.router", .norm_after_attention = true},
    {.name = "llama4",
     .mlp = "feed_forward.",
     .router = "feed_forward.router",
     .experts = "feed_forward.experts.",
     .shared = "feed_forward.shared_expert."},
    {.name = "minimax-m2",
     .router = kMixtralGate,
     .correction = "block_sparse_moe.e_score_correction_bias",
     .experts = kMixtralExperts,
     .gate = "w1",
     .up = "w3",
     .down = "w2"},
    {.name = "dots1", .correction = "mlp.gate.e_score_correction_bias", .shared = "mlp.shared_experts."},
    {.name = "ernie4_5-moe",
     .correction = "mlp.moe_statics.e_score_correction_bias",
     .shared = "mlp.shared_experts.",
     .correction_is_row = true},
    {.name = "hunyuan-moe", .router = "mlp.gate.wg", .shared = "mlp.shared_mlp.", .modules = kHunyuanModules},
    {.name = "afmoe",
     .router = "mlp.router.gate",
     .correction = "mlp.expert_bias",
     .shared = "mlp.shared_experts.",
     .modules = kAfmoeModules},
    {.name = "mistral4", .shared = "mlp.shared_experts."},
    {.name = "lfm2moe",
     .mlp = "feed_forward.",
     .router = "feed_forward.gate",
     .correction = "feed_forward.expert_bias",
     .experts = "feed_forward.experts.",
     .gate = "w1",
     .up = "w3",
     .down = "w2",
     .modules = kLfm2Modules,
     .final_norm = "model.embedding_norm",
     .dense_as_experts = true},
    {.name = "qwen3next", .modules = kQwenLinearModules, .plus_one = true, .norm_after_attention = true},
    {.name = "qwen35moe",
     .modules = kQwenLinearModules,
     .plus_one = true,
     .tiled_values = true,
     .norm_after_attention = true},
    {.name = "granitehybrid",
     .mlp = "shared_mlp.",
     .router = "block_sparse_moe.router",
     .experts = kMixtralExperts,
     .shared = "shared_mlp.",
     .modules = kGraniteHybridModules,
     .permuted = true},
    // The converter permuted q and k alike, and without rope the scores are the same.
    {.name = "nemotron_h_moe",
     .layers = "backbone.layers.",
     .embed = "backbone.embeddings.weight",
     .mlp = "mixer.",
     .router = "mixer.gate",
     .correction = "mixer.gate.e_score_correction_bias",
     .experts = "mixer.experts.",
     .shared = "mixer.shared_experts.",
     .modules = kNemotronModules,
     .final_norm = "backbone.norm_f"},
    {.name = "gemma4", .router = "router.proj", .experts = "experts.", .modules = kGemma4Modules},
};

}  // namespace

const GgufArchitecture* FindGgufArchitecture(std::string_view name) {
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (name == architecture.name) return &architecture;
  }
  return nullptr;
}

std::string GgufArchitectureNames() {
  std::string names;
  for (const GgufArchitecture& architecture : kArchitectures) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", architecture.name);
  }
  return names;
}

}  // namespace sluice
