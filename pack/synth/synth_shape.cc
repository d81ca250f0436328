#include "pack/synth/synth_shape.h"

#include <cmath>

#include "common/model/model_limits.h"
#include "common/status.h"
#include "pack/synth/synth_tokenizer.h"

namespace sluice {
namespace {

struct Shape {
  const char* name;
  uint32_t hidden;
  uint32_t expert_width;
  uint32_t layers;
  uint32_t experts;
  uint32_t top_k;
  uint32_t shared_width;
  bool shared_gate;      // the shared expert's output is scaled by a sigmoid of its own
  uint32_t first_dense;  // width of the first layer's dense FFN, 0: the first layer has experts too
  uint32_t heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t vocab;
  uint32_t max_position;
  double theta;
};

// Sizes of the models' own config.json; attention extras (biases, q/k norms, gated delta) are left out.
constexpr Shape kShapes[] = {
    {"mixtral-8x7b", 4096, 14336, 32, 8, 2, 0, false, 0, 32, 8, 128, 32000, 32768, 1e6},
    {"mixtral-8x22b", 6144, 16384, 56, 8, 2, 0, false, 0, 48, 8, 128, 32000, 65536, 1e6},
    {"qwen3-30b-a3b", 2048, 768, 48, 128, 8, 0, false, 0, 32, 4, 128, 151936, 40960, 1e6},
    {"qwen2-57b-a14b", 3584, 2560, 28, 64, 8, 20480, true, 0, 28, 4, 128, 151936, 131072, 1e6},
    {"deepseek-moe-16b", 2048, 1408, 28, 64, 6, 2816, false, 10944, 16, 16, 128, 102400, 4096, 1e4},
    {"xverse-a4.2b", 2560, 1728, 28, 64, 6, 3456, false, 0, 32, 32, 80, 100608, 8192, 5e5},
    // For tests and first tries: 6 MB a layer in bf16.
    {"tiny", 128, 256, 4, 32, 4, 0, false, 0, 4, 2, 32, 512, 4096, 1e4},
    // The sample model's sizes with a few more layers: policies at the papers' localities within seconds.
    {"tiny-mixtral", 128, 448, 8, 8, 2, 0, false, 0, 4, 2, 32, 2048, 4096, 1e4},
    {"qwen3.5-35b-a3b", 2048, 512, 40, 256, 8, 512, true, 0, 16, 2, 256, 248320, 262144, 1e7},
};

constexpr float kEpsilon = 1e-5f;

absl::StatusOr<const Shape*> FindShape(const std::string& name) {
  std::string known;
  for (const Shape& shape : kShapes) {
    if (name == shape.name) return &shape;
    absl::StrAppend(&known, known.empty() ? "" : ", ", shape.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown shape \"", name.substr(0, 60), "\" (known: ", known, ")"));
}

LayerConfig LayerOf(const Shape& shape) {
  LayerConfig layer;
  layer.attention.heads = shape.heads;
  layer.attention.kv_heads = shape.kv_heads;
  layer.attention.head_dim = shape.head_dim;
  layer.attention.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  layer.attention.rope.theta = shape.theta;
  layer.attention.rope.dimensions = shape.head_dim;
  layer.moe.experts = shape.experts;
  layer.moe.top_k = shape.top_k;
  layer.moe.expert_width = shape.expert_width;
  layer.moe.shared_width = shape.shared_width;
  layer.moe.shared_gate = shape.shared_gate;
  return layer;
}

}  // namespace

std::vector<std::string> SynthShapeNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

absl::StatusOr<ModelConfig> SynthModel(const SynthOptions& options) {
  ASSIGN_OR_RETURN(const Shape* shape, FindShape(options.shape));
  if (options.layers > kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers is ", options.layers, "; at most ", kMaxLayers, " are possible"));
  }
  ModelConfig config;
  config.family = "synthetic";
  config.vocab = options.vocab != 0 ? options.vocab : shape->vocab;
  if (config.vocab < kSynthTokenizerIds || config.vocab > kMaxVocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab is ", config.vocab, "; ", kSynthTokenizerIds, " to ", kMaxVocab, " is expected"));
  }
  config.hidden = shape->hidden;
  config.max_position = shape->max_position;
  config.norm_epsilon = kEpsilon;
  config.layers.assign(options.layers != 0 ? options.layers : shape->layers, LayerOf(*shape));
  if (shape->first_dense != 0) {
    config.layers[0].moe = {};
    config.layers[0].moe.dense_width = shape->first_dense;
  }
  config.bos_ids = {kSynthBosId};
  config.eos_ids = {kSynthEosId};
  RETURN_IF_ERROR(ValidateModelConfig(config, options.shape));
  return config;
}

}  // namespace sluice
