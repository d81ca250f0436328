#include "common/model/gguf/gguf_architecture.h"

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr char kMixtralExperts[] = "block_sparse_moe.experts.";
constexpr char kMixtralGate[] = "block_sparse_moe.gate";

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
