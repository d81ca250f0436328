#include "common/model/families/hf_tensors.h"

#include "common/model/families/hf_families.h"
#include "common/status.h"

namespace sluice {
namespace {

struct FamilyTensors {
  const char* family;
  void (*map)(const ModelConfig& config, TensorMapper* mapper);
};
constexpr FamilyTensors kMaps[] = {
    {"mixtral", &MapMixtral},
    {"qwen2_moe", &MapQwenMoe},
    {"qwen3_moe", &MapQwenMoe},
    {"olmoe", &MapOlmoe},
    {"granitemoe", &MapGraniteMoe},
    {"glm4_moe", &MapGlm4Moe},
    {"deepseek", &MapDeepseek},
    {"deepseek_v2", &MapDeepseek},
    {"deepseek_v3", &MapDeepseek},
    {"minimax_m2", &MapMinimaxM2},
    {"phimoe", &MapPhimoe},
    {"gpt_oss", &MapGptOss},
    {"llama4_text", &MapLlama4},
    {"qwen3_5_moe_text", &MapQwen35Moe},
    {"xverse", &MapXverse},
    {"qwen3_vl_moe_text", &MapQwen3VlMoe},
    {"qwen3_next", &MapQwen35Moe},
    {"gemma4_text", &MapGemma4},
    {"glm4_moe_lite", &MapGlm4Moe},
    {"dots1", &MapGlm4Moe},
    {"ernie4_5_moe", &MapErnie45Moe},
    {"mistral4", &MapDeepseek},
    {"hunyuan_v1_moe", &MapHunyuanV1Moe},
    {"afmoe", &MapAfmoe},
    {"nemotron_h", &MapNemotronH},
    {"granitemoehybrid", &MapGraniteMoeHybrid},
    {"lfm2_moe", &MapLfm2Moe},
    {"deepseek_v32", &MapIndexedDeepseek},
    {"glm_moe_dsa", &MapIndexedDeepseek},
};

}  // namespace

absl::StatusOr<SourceMap> MapTensors(const ModelConfig& config, const Checkpoint& checkpoint) {
  for (const FamilyTensors& family : kMaps) {
    if (config.family != family.family) continue;
    TensorMapper mapper(checkpoint);
    family.map(config, &mapper);
    ASSIGN_OR_RETURN(SourceMap map, mapper.Finish());
    map.experts.resize(config.layers.size());
    return map;
  }
  return absl::UnimplementedError(absl::StrCat("tensor names of family ", config.family, " are not known"));
}

}  // namespace sluice
