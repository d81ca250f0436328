// Families that alternate windows and full attention, each type of layer with a position encoding of its own:
// K-EXAONE, Mellum, Laguna, Step-3.5, MiMo-V2-Flash.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/model/dense_names.h"
#include "common/model/hf_blocks.h"
#include "common/model/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// True for the layers with a window; empty if layer_types is absent.
std::vector<bool> ReadSlidingLayers(size_t layers, HfFields* fields) {
  std::vector<bool> slides;
  for (const std::string& type : ReadLayerTypes({"full_attention", "sliding_attention"}, layers, fields)) {
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

// Maps DeepSeek's tensors with a router's correction of this name.
void MapCorrected(const std::string& correction, const std::string& shared, LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  if (moe.experts == 0) return layer->DenseFfn("mlp.");
  layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", moe.experts, layer->hidden()));
  const std::string written = "mlp.gate.e_score_correction_bias";
  layer->Dense(dense::kRouterCorrection,
               layer->Vector(layer->Has(correction) ? correction : written, moe.experts));
  layer->Experts("mlp.experts.", {});
  if (moe.shared_width != 0) layer->SharedExpert(shared);
}

}  // namespace

// K-EXAONE (LGAI-EXAONE/K-EXAONE-236B-A23B): rope in layers with a window alone, norms on heads,
// DeepSeek-V3's router and shared expert.

namespace {

std::vector<bool> ReadExaoneTypes(size_t layers, HfFields* fields) {
  std::vector<bool> slides = ReadSlidingLayers(layers, fields);
  if (!slides.empty()) {
    fields->Skip("sliding_window_pattern");
    return slides;
  }
  slides.resize(layers);
  if (fields->IsNull("sliding_window")) {
    fields->Skip("sliding_window_pattern");
    return slides;
  }
  const uint32_t pattern = fields->Number("sliding_window_pattern", 1, kMaxLayers, 4);
  for (size_t i = 0; i < layers; ++i) slides[i] = (i + 1) % pattern != 0;
  return slides;
}

std::vector<bool> ReadExaoneSparse(size_t layers, HfFields* fields) {
  const uint32_t published = fields->Number("first_last_k_dense_replace", 0, kMaxLayers, 1);
  const uint32_t dense = fields->Number("first_k_dense_replace", 0, kMaxLayers, published);
  const std::vector<bool> listed = fields->Flags("is_moe_layer");
  std::vector<bool> sparse = ReadSparseLayers(layers, fields);
  if (!sparse.empty()) return sparse;
  for (size_t i = 0; i < layers; ++i) sparse.push_back(i >= dense);
  if (!listed.empty() && listed != sparse) fields->Refuse("is_moe_layer");
  return sparse;
}

}  // namespace

ModelConfig ReadExaoneMoe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("exaone_moe", {.max_position = 2048, .epsilon = 1e-5}, fields);
  const size_t layers = model.layers.size();
  AttentionConfig sliding = ReadGrouped({.kv_heads = 32}, model, fields);
  sliding.qk_norm = QkNorm::kPerHead;
  fields->RequireOff("attention_bias");
  AttentionConfig full = sliding;
  if (!fields->IsNull("sliding_window")) {
    sliding.sliding_window = fields->Number("sliding_window", 1, kMaxPosition, 4096);
    full.rope = RopeConfig{.kind = RopeKind::kNone};
  }
  const std::vector<bool> slides = ReadExaoneTypes(layers, fields);
  for (size_t i = 0; i < layers; ++i) {
    model.layers[i].attention = slides[i] ? sliding : full;
    if (slides[i] && fields->IsNull("sliding_window")) fields->Refuse("sliding_window");
  }
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth, 1024);
  moe.shared_width = ReadSharedWidth("num_shared_experts", 1, moe.expert_width, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.group_score = GroupScore::kTopTwoSum;
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 2.5));
  ReadGroups(1, 1, &moe, fields);
  moe.activation = ReadActivation(fields);
  fields->RequireWord("scoring_func", "sigmoid");
  fields->RequireWord("topk_method", "noaux_tc");
  SetFfns(ReadExaoneSparse(layers, fields), moe, fields->Number("intermediate_size", 1, kMaxWidth, 16384),
          &model);
  fields->Skip("num_nextn_predict_layers");
  return model;
}

void MapExaoneMoe(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("mtp.");
  IgnorePredictionLayers(config, mapper);
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    layer->GroupedAttention();
    MapCorrected("mlp.e_score_correction_bias", "mlp.shared_experts.", layer);
  });
}

// Mellum 2 (JetBrains/Mellum2-12B-A2.5B): Qwen3-MoE with windows.

ModelConfig ReadMellum(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("mellum", {.max_position = 131072}, fields);
  const size_t layers = model.layers.size();
  AttentionConfig full = ReadHeads({.kv_heads = 4, .head_dim = 128}, model, fields);
  full.qkv_bias = full.output_bias = fields->Flag("attention_bias", false);
  full.qk_norm = QkNorm::kPerHead;
  AttentionConfig sliding = full;
  const uint32_t window =
      fields->Number("sliding_window", 1, kMaxPosition, fields->IsNull("sliding_window") ? 0 : 1024);
  sliding.sliding_window = window;
  SetRope(ReadRopeOfType("full_attention", {.theta = 5e5}, full.head_dim, model.max_position, fields), &full,
          fields);
  SetRope(ReadRopeOfType("sliding_attention", {}, full.head_dim, model.max_position, fields), &sliding,
          fields);
  const std::vector<bool> slides = ReadSlidingLayers(layers, fields);
  for (size_t i = 0; i < layers; ++i) {
    model.layers[i].attention = !slides.empty() && slides[i] ? sliding : full;
  }
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth, 896);
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  moe.activation = ReadActivation(fields);
  std::vector<bool> sparse = ReadSparseLayers(layers, fields);
  if (sparse.empty()) sparse.assign(layers, true);
  SetFfns(sparse, moe, fields->Number("intermediate_size", 1, kMaxWidth, 7168), &model);
  for (const char* key :
       {"num_nextn_predict_layers", "num_mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types"}) {
    fields->Skip(key);
  }
  return model;
}

void MapMellum(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("mtp.");
  MapQwenMoe(config, mapper);
}

// Laguna (poolside/Laguna-XS.2): query heads by layer, norms on heads, an output gate by softplus, sigmoid
// router with a selection correction, a shared expert.

namespace {

// Sets the output's gate: `gating` is a flag or a word.
void ReadLagunaGate(AttentionConfig* attention, HfFields* fields) {
  attention->gate_activation = GateActivation::kSoftplus;
  attention->output_gate = attention->gate_per_head = true;
  if (!fields->IsWord("gating")) {
    attention->output_gate = attention->gate_per_head = fields->Flag("gating", true);
  } else if (fields->Word("gating", "") == "per-element") {
    attention->gate_per_head = false;
  } else {
    fields->RequireWord("gating", "per-head");
  }
  if (!attention->output_gate) attention->gate_activation = GateActivation::kSigmoid;
}

MoeConfig ReadLagunaMixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.shared_width = fields->Number("shared_expert_intermediate_size", 0, kMaxWidth, 0);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.norm_epsilon = 0;
  moe.router_cap = static_cast<float>(fields->Real("moe_router_logit_softcapping", 0, 1e6, 0));
  moe.routed_scale = static_cast<float>(fields->Real("moe_routed_scaling_factor", 1e-6, 1e6, 1));
  moe.activation = ReadActivation(fields);
  fields->RequireOff("moe_apply_router_weight_on_input");
  return moe;
}

// Query heads by layer; the KV heads are the same everywhere.
void SetHeadsByLayer(ModelConfig* model, HfFields* fields) {
  const std::vector<uint32_t> heads = fields->Numbers("num_attention_heads_per_layer", kMaxHeads);
  if (heads.empty()) return;
  if (heads.size() != model->layers.size()) {
    return fields->Fail("num_attention_heads_per_layer",
                        absl::StrCat("has ", heads.size(), " entries for ", model->layers.size(), " layers"));
  }
  for (size_t i = 0; i < heads.size(); ++i) {
    AttentionConfig& attention = model->layers[i].attention;
    if (heads[i] == 0 || heads[i] % attention.kv_heads != 0) {
      fields->Fail("num_attention_heads_per_layer", absl::StrCat("holds ", heads[i], ", no multiple of the ",
                                                                 attention.kv_heads, " KV heads"));
    } else {
      attention.heads = heads[i];
    }
  }
}

}  // namespace

ModelConfig ReadLaguna(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("laguna", {.max_position = 131072}, fields);
  const size_t layers = model.layers.size();
  AttentionConfig full = ReadHeads({.kv_heads = 8, .head_dim = 128}, model, fields);
  full.qkv_bias = full.output_bias = fields->Flag("attention_bias", false);
  full.qk_norm = QkNorm::kPerHead;
  ReadLagunaGate(&full, fields);
  AttentionConfig sliding = full;
  sliding.sliding_window =
      fields->Number("sliding_window", 1, kMaxPosition, fields->IsNull("sliding_window") ? 0 : 512);
  SetRope(ReadRopeOfType("full_attention", {.theta = 5e5, .partial = 0.5, .may_be_partial = true},
                         full.head_dim, model.max_position, fields),
          &full, fields);
  SetRope(ReadRopeOfType("sliding_attention", {.may_be_partial = true}, full.head_dim, model.max_position,
                         fields),
          &sliding, fields);
  const std::vector<bool> slides = ReadSlidingLayers(layers, fields);
  for (size_t i = 0; i < layers; ++i) {
    model.layers[i].attention = !slides.empty() && slides[i] ? sliding : full;
  }
  SetHeadsByLayer(&model, fields);
  std::vector<bool> sparse = ReadSparseLayers(layers, fields);
  for (size_t i = sparse.size(); i < layers; ++i) sparse.push_back(i > 0);
  SetFfns(sparse, ReadLagunaMixture(fields), fields->Number("intermediate_size", 1, kMaxWidth), &model);
  return model;
}

void MapLaguna(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("mtp.");
  IgnorePredictionLayers(config, mapper);
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const bool written = layer->Has("mlp.shared_experts.up_proj.weight");
    layer->GroupedAttention({.gate = "g_proj"});
    MapCorrected("mlp.experts.e_score_correction_bias",
                 written ? "mlp.shared_experts." : "mlp.shared_expert.", layer);
  });
}

// Step-3.5-Flash (stepfun-ai/Step-3.5-Flash) and the text of Step-3.7-Flash: more query heads in layers with
// a window, a gate for each head, norms that add 1 to their weights, limits of the activation by layer.

namespace {

// Stands for no limit where another part of the layer has one.
constexpr float kNoLimit = 1e30f;

// Reads a number, or a list with an entry for each layer; lists may go on behind the last layer. Returns the
// entry of the first layer of this type.
double ReadOfType(const char* key, bool slides, const std::vector<bool>& types, double fallback, double high,
                  HfFields* fields) {
  if (!fields->IsList(key)) return fields->Real(key, 0, high, fallback);
  const std::vector<double> values = fields->Reals(key, 0, high);
  if (values.size() < types.size()) {
    fields->Fail(key, absl::StrCat("has ", values.size(), " entries for ", types.size(), " layers"));
    return fallback;
  }
  const auto first = std::find(types.begin(), types.end(), slides);
  return first == types.end() ? fallback : values[static_cast<size_t>(first - types.begin())];
}

// Layers with experts: numbers in one word, or a list; absent: all from the fourth on.
std::vector<bool> ReadStepSparse(size_t layers, HfFields* fields) {
  std::vector<bool> sparse(layers);
  if (!fields->Has("moe_layers_enum")) {
    for (size_t i = 3; i < layers; ++i) sparse[i] = true;
    return sparse;
  }
  std::vector<uint32_t> listed;
  if (fields->IsWord("moe_layers_enum")) {
    for (const absl::string_view word : absl::StrSplit(fields->Word("moe_layers_enum", ""), ',')) {
      uint32_t layer = 0;
      if (!absl::SimpleAtoi(word, &layer)) fields->Refuse("moe_layers_enum");
      listed.push_back(layer);
    }
  } else {
    listed = fields->Numbers("moe_layers_enum", kMaxLayers);
  }
  for (const uint32_t layer : listed) {
    if (layer < layers) sparse[layer] = true;
  }
  return sparse;
}

MoeConfig ReadStepMixture(HfFields* fields) {
  MoeConfig moe;
  moe.experts = fields->Number("moe_num_experts", 1, kMaxExperts, 288);
  moe.top_k = fields->Number("moe_top_k", 1, moe.experts, 8);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.shared_width = fields->Number("share_expert_dim", 0, kMaxWidth, moe.expert_width);
  for (const uint32_t width : fields->Numbers("share_expert_dims", kMaxWidth)) {
    if (width != 0 && width != moe.shared_width) fields->Refuse("share_expert_dims");
  }
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = fields->Flag("use_moe_router_bias", true);
  moe.norm_topk_prob = fields->Flag("norm_expert_weight", true);
  moe.norm_epsilon = 0;
  moe.routed_scale = static_cast<float>(fields->Real("moe_router_scaling_factor", 1e-6, 1e6, 1));
  fields->RequireWord("moe_router_activation", "sigmoid");
  fields->RequireNumber("moe_every_n_layer", 1);
  fields->RequireFlag("use_moe", true);
  fields->Skip("need_fp32_gate");
  return moe;
}

// A list of limits by layer; 0: none.
std::vector<double> ReadLimits(const char* key, size_t layers, HfFields* fields) {
  std::vector<double> limits = fields->RealsOrNull(key, 0, 1e6);
  if (!limits.empty() && limits.size() < layers) {
    fields->Fail(key, absl::StrCat("has ", limits.size(), " entries for ", layers, " layers"));
  }
  limits.resize(std::max(limits.size(), layers));
  return limits;
}

// Sets a layer's activation: limits of its experts and of its shared expert or dense FFN.
void SetLimits(float experts, float shared, MoeConfig* moe) {
  const float own = moe->experts > 0 ? experts : shared;
  const bool differ = moe->experts > 0 && moe->shared_width > 0 && experts != shared;
  if (own == 0 && !differ) return;
  moe->activation = Activation::kClampedSilu;
  moe->activation_limit = own == 0 ? kNoLimit : own;
  if (!differ) return;
  moe->shared_apart = true;
  moe->shared_limit = shared == 0 ? kNoLimit : shared;
}

AttentionConfig ReadStepAttention(const ModelConfig& model, const std::vector<bool>& slides, bool of_windows,
                                  HfFields* fields) {
  AttentionConfig attention;
  attention.heads = fields->Number("num_attention_heads", 1, kMaxHeads);
  attention.kv_heads = fields->Number("num_attention_groups", 1, kMaxHeads);
  attention.head_dim = fields->Number("head_dim", 2, kMaxHeadDim, 128);
  if (of_windows) {
    fields->Group("attention_other_setting", [&](HfFields* other) {
      attention.heads = other->Number("num_attention_heads", 1, kMaxHeads);
      attention.kv_heads = other->Number("num_attention_groups", 1, kMaxHeads, attention.kv_heads);
      attention.head_dim = other->Number("head_dim", 2, kMaxHeadDim, attention.head_dim);
      other->RequireWord("attention_type", "sliding_attention");
    });
    attention.sliding_window = fields->Number("sliding_window", 1, kMaxPosition);
  }
  attention.qk_norm = QkNorm::kPerHead;
  attention.output_gate = attention.gate_per_head = fields->Flag("use_head_wise_attn_gate", true);
  const double scaled = fields->Real("query_pre_attn_scalar", 1e-6, 1e9, attention.head_dim);
  attention.scale = static_cast<float>(1 / std::sqrt(scaled));
  const double theta = ReadOfType("rope_theta", of_windows, slides, 1e4, 1e30, fields);
  const double partial = ReadOfType("partial_rotary_factors", of_windows, slides, 1, 1, fields);
  const std::vector<std::string> stretched = fields->Words("yarn_only_types");
  const std::string type = of_windows ? "sliding_attention" : "full_attention";
  RopeConfig rope{.theta = theta, .dimensions = static_cast<uint32_t>(attention.head_dim * partial)};
  if (stretched.empty() || std::find(stretched.begin(), stretched.end(), type) != stretched.end()) {
    rope = ReadRopeObject("rope_scaling", {.theta = theta, .partial = partial, .may_be_partial = true},
                          attention.head_dim, model.max_position, fields)
               .rope;
  }
  SetRope(rope, &attention, fields);
  return attention;
}

}  // namespace

ModelConfig ReadStep3p5(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("step3p5", {.max_position = 262144, .epsilon = 1e-5}, fields);
  const size_t layers = model.layers.size();
  std::vector<bool> slides;
  for (const std::string& type : fields->Words("layer_types")) {
    if (type != "full_attention" && type != "sliding_attention") fields->Refuse("layer_types");
    slides.push_back(type == "sliding_attention");
  }
  if (slides.size() < layers) {
    fields->Fail("layer_types", absl::StrCat("has ", slides.size(), " entries for ", layers, " layers"));
  }
  slides.resize(layers);  // layers that predict further tokens follow
  const bool any = std::find(slides.begin(), slides.end(), true) != slides.end();
  const AttentionConfig full = ReadStepAttention(model, slides, false, fields);
  const AttentionConfig sliding = any ? ReadStepAttention(model, slides, true, fields) : full;
  const std::vector<bool> sparse = ReadStepSparse(layers, fields);
  SetFfns(sparse, ReadStepMixture(fields), fields->Number("intermediate_size", 1, kMaxWidth), &model);
  const std::vector<double> limits = ReadLimits("swiglu_limits", layers, fields);
  const std::vector<double> shared = ReadLimits("swiglu_limits_shared", layers, fields);
  for (size_t i = 0; i < layers; ++i) {
    model.layers[i].attention = slides[i] ? sliding : full;
    SetLimits(static_cast<float>(limits[i]), static_cast<float>(shared[i]), &model.layers[i].moe);
  }
  fields->RequireFlag("zero_centered", true);
  fields->RequireFlag("use_qk_norm", true);
  fields->RequireOff("sink");
  fields->RequireWord("hidden_act", "silu");
  if (!fields->Numbers("use_rope_layers", kMaxLayers).empty()) fields->Refuse("use_rope_layers");
  for (const char* key : {"num_nextn_predict_layers", "attention_other_setting", "sliding_window"}) {
    fields->Skip(key);
  }
  return model;
}

// Maps text checkpoints, and the language model of multimodal ones.
void MapStep3p5(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("vision_model.");
  mapper->IgnorePrefix("vit_large_projector.");
  IgnorePredictionLayers(config, mapper);
  MapEmbeddingAndHead(config, {.plus_one = true}, mapper);
  MapLayers(config, "model.layers.", mapper,
            [](LayerMapper* layer) {
              const MoeConfig& moe = layer->moe();
              layer->GroupedAttention({.plus_one = true, .gate = "g_proj"});
              if (moe.experts == 0) return layer->DenseFfn("mlp.");
              layer->Dense(dense::kRouter, layer->Matrix("moe.gate.weight", moe.experts, layer->hidden()));
              if (moe.router_correction) {
                layer->Dense(dense::kRouterCorrection, layer->Vector("moe.router_bias", moe.experts));
              }
              if (layer->Has("moe.experts.0.up_proj.weight")) {
                layer->Experts("moe.experts.", {});  // of GGUF files
              } else {
                MapSeparateStacks("moe.", layer);
              }
              if (moe.shared_width != 0) layer->SharedExpert("share_expert.");
            },
            {.plus_one = true});
}

// MiMo-V2-Flash (XiaomiMiMo/MiMo-V2-Flash): keys wider than values, which have a factor; more KV heads,
// another theta and sinks in layers with a window; DeepSeek-V3's router.

namespace {

// The two types of layers; members for windows begin with swa_.
struct MimoAttention {
  AttentionConfig full;
  AttentionConfig sliding;
};

void SetMimoRope(const char* type, const char* theta, double default_theta, uint32_t max_position,
                 AttentionConfig* attention, HfFields* fields) {
  const double partial = fields->Real("partial_rotary_factor", 0, 1, 0.334);
  RopeConfig rope{.theta = fields->Real(theta, 1e-3, 1e30, default_theta),
                  .dimensions = static_cast<uint32_t>(attention->head_dim * partial)};
  if (fields->Has("rope_parameters")) {
    rope = ReadRopeOfType(type, {.theta = rope.theta, .partial = partial, .may_be_partial = true},
                          attention->head_dim, max_position, fields);
  }
  rope.dimensions += rope.dimensions % 2;
  SetRope(rope, attention, fields);
}

MimoAttention ReadMimoAttention(const ModelConfig& model, HfFields* fields) {
  MimoAttention of;
  of.full = ReadHeads({.kv_heads = 4, .head_dim = 192}, model, fields);
  of.full.qkv_bias = fields->Flag("attention_bias", false);
  of.full.value_dim = fields->Number("v_head_dim", 2, kMaxHeadDim, 128);
  of.full.value_scale = static_cast<float>(fields->Real("attention_value_scale", 1e-6, 1e6, 1));
  AttentionConfig& sliding = of.sliding = of.full;
  sliding.heads = fields->Number("swa_num_attention_heads", 1, kMaxHeads, of.full.heads);
  sliding.kv_heads = fields->Number("swa_num_key_value_heads", 1, kMaxHeads, 2 * of.full.kv_heads);
  sliding.head_dim = fields->Number("swa_head_dim", 2, kMaxHeadDim, of.full.head_dim);
  sliding.value_dim = fields->Number("swa_v_head_dim", 2, kMaxHeadDim, of.full.value_dim);
  sliding.scale = 1.0f / std::sqrt(static_cast<float>(sliding.head_dim));
  sliding.sinks = fields->Flag("add_swa_attention_sink_bias", true);
  of.full.sinks = fields->Flag("add_full_attention_sink_bias", false);
  // The published size does not count the own position.
  const uint32_t window = fields->Number("sliding_window", 1, kMaxPosition, 129);
  sliding.sliding_window = fields->Has("sliding_window_size")
                               ? fields->Number("sliding_window_size", 1, kMaxPosition - 1) + 1
                               : window;
  fields->Skip("attention_chunk_size");  // repeats the window
  SetMimoRope("full_attention", "rope_theta", 5e6, model.max_position, &of.full, fields);
  SetMimoRope("sliding_attention", "swa_rope_theta", 1e4, model.max_position, &sliding, fields);
  for (AttentionConfig* attention : {&of.full, &sliding}) {
    if (attention->value_dim > attention->head_dim) fields->Refuse("v_head_dim");
    if (attention->value_dim == attention->head_dim) attention->value_dim = 0;
    if (attention->heads % attention->kv_heads != 0) fields->Refuse("swa_num_key_value_heads");
  }
  return of;
}

// Reads the list `published` of zeros and ones if `types` is empty.
std::vector<bool> PatternOr(std::vector<bool> types, const char* published, size_t layers, HfFields* fields) {
  const std::vector<uint32_t> pattern = fields->Numbers(published, 1);
  if (!types.empty()) return types;
  if (pattern.size() != layers) {
    fields->Fail(published, absl::StrCat("has ", pattern.size(), " entries for ", layers, " layers"));
    return std::vector<bool>(layers);
  }
  return {pattern.begin(), pattern.end()};
}

}  // namespace

ModelConfig ReadMimoV2Flash(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("mimo_v2_flash", {.max_position = 262144, .epsilon = 1e-5}, fields);
  const size_t layers = model.layers.size();
  model.norm_epsilon =
      static_cast<float>(fields->Real("layernorm_epsilon", 0, 1, double{model.norm_epsilon}));
  const MimoAttention attention = ReadMimoAttention(model, fields);
  const std::vector<bool> slides =
      PatternOr(ReadSlidingLayers(layers, fields), "hybrid_layer_pattern", layers, fields);
  for (size_t i = 0; i < layers; ++i) {
    model.layers[i].attention = slides[i] ? attention.sliding : attention.full;
  }
  MoeConfig moe = ReadDeepseekMixture(0, true, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.group_score = GroupScore::kTopTwoSum;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  ReadGroups(1, 1, &moe, fields);
  fields->RequireWord("scoring_func", "sigmoid");
  fields->RequireWord("topk_method", "noaux_tc");
  const std::vector<bool> sparse =
      PatternOr(ReadSparseLayers(layers, fields), "moe_layer_freq", layers, fields);
  SetFfns(sparse, moe, fields->Number("intermediate_size", 1, kMaxWidth), &model);
  fields->Skip("num_nextn_predict_layers");
  return model;
}

void MapMimoV2Flash(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("model.mtp.");
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const bool published = layer->Has("self_attn.attention_sink_bias");
    layer->GroupedAttention();
    if (layer->attention().sinks) {
      layer->Sinks(published ? "self_attn.attention_sink_bias" : "self_attn.sinks");
    }
    layer->DeepseekFfn();
  });
}

}  // namespace sluice
