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
constexpr GgufModule kLfm2Modules[] = {
    {"attn_norm", "operator_norm"},           {"ffn_norm", "ffn_norm"},
    {"attn_q_norm", "self_attn.q_layernorm"}, {"attn_k_norm", "self_attn.k_layernorm"},
    {"attn_output", "self_attn.out_proj"},    {"shortconv.in_proj", "conv.in_proj"},
    {"shortconv.conv", "conv.conv"},          {"shortconv.out_proj", "conv.out_proj"}};

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
