// Families with DeepSeek's MoE layer and its relatives: DeepSeek, GLM-4, Hy3, Solar Open, ERNIE 4.5, Hunyuan.

#include <algorithm>

#include "common/model/dense_names.h"
#include "common/model/hf_blocks.h"
#include "common/model/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
// DeepSeek: MoE-16B (deepseek: Llama's attention), V2 and V2-Lite (latent attention, softmax router) and V3
// (sigmoid router with groups and a selection correction); V3.2 and GLM-5, whose attention is sparse by an
// indexer; Mistral's Small 4, whose attention is V3's with a temperature.

namespace {

// V3 and models of the same design.
ModelConfig ReadV3(const std::string& family, const BaseDefaults& defaults, uint32_t first_dense,
                   HfFields* fields) {
  ModelConfig model = ReadBaseConfig(family, defaults, fields);
  const bool interleaved = fields->Flag("rope_interleave", true);
  const AttentionConfig attention = ReadLatent({.interleaved = interleaved}, model, fields);
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe = ReadDeepseekMixture(1, true, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = fields->Flag("use_expert_bias", true);  // of GGUF files without one
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 2.5));
  fields->RequireWord("scoring_func", "sigmoid");
  fields->RequireWord("topk_method", "noaux_tc");
  moe.group_score = GroupScore::kTopTwoSum;
  ReadGroups(8, 4, &moe, fields);
  SetDeepseekFfns(first_dense, moe, &model, fields);
  const std::vector<bool> sparse = ReadSparseLayers(model.layers.size(), fields);
  if (!sparse.empty()) SetFfns(sparse, moe, fields->Number("intermediate_size", 1, kMaxWidth), &model);
  fields->Skip("num_nextn_predict_layers");
  fields->Skip("num_mtp_layers");
  return model;
}

// Reads a V3 whose layers have an indexer: it chooses the index_topk positions that a query attends to.
ModelConfig ReadIndexed(const std::string& family, const BaseDefaults& defaults, const IndexConfig& index,
                        HfFields* fields) {
  ModelConfig model = ReadV3(family, defaults, 3, fields);
  IndexConfig made = index;
  made.heads = fields->Number("index_n_heads", 1, kMaxHeads, index.heads);
  made.head_dim = fields->Number("index_head_dim", 2, kMaxHeadDim, index.head_dim);
  made.top = fields->Number("index_topk", 1, kMaxPosition, index.top);
  made.weighted = true;
  for (LayerConfig& layer : model.layers) layer.attention.index = made;
  if (model.layers.front().attention.latent.q_rank == 0) fields->Refuse("q_lora_rank");
  return model;
}

}  // namespace

std::vector<bool> ReadSharedIndexers(size_t layers, HfFields* fields) {
  const std::vector<std::string> types = ReadLayerTypes({"full", "shared"}, layers, fields, "indexer_types");
  const std::string pattern = fields->Word("index_topk_pattern", "");
  const uint32_t frequency = fields->Number("index_topk_freq", 1, kMaxLayers, 1);
  const uint32_t offset = fields->Number("index_skip_topk_offset", 0, kMaxLayers, 2);
  if (types.empty() && !pattern.empty() &&
      (pattern.size() != layers || pattern.find_first_not_of("FS") != std::string::npos)) {
    fields->Fail("index_topk_pattern", absl::StrCat("is no word of ", layers, " letters F or S"));
    return std::vector<bool>(layers, false);
  }
  std::vector<bool> shared;
  for (size_t i = 0; i < layers; ++i) {
    const size_t counted = i + 1 > offset ? i + 1 - offset : 0;
    shared.push_back(!types.empty()     ? types[i] == "shared"
                     : !pattern.empty() ? pattern[i] == 'S'
                                        : counted % frequency != 0);
  }
  if (shared.front()) fields->Fail("indexer_types", "has no full layer before the first shared one");
  return shared;
}

ModelConfig ReadDeepseek(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("deepseek", {.max_position = 2048}, fields);
  AttentionConfig attention = ReadGrouped({}, model, fields);
  fields->RequireOff("attention_bias");
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  fields->RequireWord("scoring_func", "softmax");
  SetDeepseekFfns(0, ReadDeepseekMixture(0, false, fields), &model, fields);
  return model;
}

ModelConfig ReadDeepseekV2(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("deepseek_v2", {.max_position = 2048}, fields);
  const AttentionConfig attention = ReadLatent({}, model, fields);
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe = ReadDeepseekMixture(2, false, fields);
  moe.norm_topk_prob = false;  // transformers' router has the member and never normalizes
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  fields->RequireWord("scoring_func", "softmax");
  // V2 has groups; V2-Lite has their members but does not use them.
  const std::string method = fields->Word("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    ReadGroups(1, 1, &moe, fields);
  } else {
    fields->RequireWord("topk_method", "greedy");
    fields->Skip("n_group");
    fields->Skip("topk_group");
  }
  SetDeepseekFfns(0, moe, &model, fields);
  return model;
}

ModelConfig ReadDeepseekV3(HfFields* fields) {
  return ReadV3("deepseek_v3", {.max_position = 4096}, 3, fields);
}

ModelConfig ReadDeepseekV32(HfFields* fields) {
  return ReadIndexed("deepseek_v32", {.max_position = 163840}, {.heads = 64, .head_dim = 128, .top = 2048},
                     fields);
}

ModelConfig ReadGlmMoeDsa(HfFields* fields) {
  const bool interleaved = fields->Flag("indexer_rope_interleave", true);
  ModelConfig model =
      ReadIndexed("glm_moe_dsa", {.max_position = 202752, .epsilon = 1e-5},
                  {.heads = 32, .head_dim = 128, .top = 2048, .interleaved = interleaved}, fields);
  const std::vector<bool> shared = ReadSharedIndexers(model.layers.size(), fields);
  for (size_t i = 0; i < shared.size(); ++i) model.layers[i].attention.index.shared = shared[i];
  return model;
}

ModelConfig ReadMistral4(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("mistral4", {.max_position = 1048576}, fields);
  const bool interleaved = fields->Flag("rope_interleave", true);
  const AttentionConfig attention = ReadLatent(
      {.q_rank = 1024, .kv_rank = 256, .nope_dim = 64, .interleaved = interleaved, .temperature = true},
      model, fields);
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe = ReadDeepseekMixture(1, true, fields);
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  moe.group_score = GroupScore::kTopTwoSum;
  ReadGroups(1, 1, &moe, fields);
  SetDeepseekFfns(0, moe, &model, fields);
  return model;
}

// A layer that takes another's choice has no indexer, though a file may hold one.
void MapIndexer(LayerMapper* layer) {
  const AttentionConfig& a = layer->attention();
  const IndexConfig& index = a.index;
  const std::string base = "self_attn.indexer.";
  if (index.shared) layer->IgnorePrefix(base);
  if (!HasIndexKeys(a)) return;
  layer->Dense(dense::kIndexQ,
               layer->Matrix(base + "wq_b.weight", uint64_t{index.heads} * index.head_dim, a.latent.q_rank));
  layer->Dense(dense::kIndexK, layer->Matrix(base + "wk.weight", index.head_dim, layer->hidden()));
  layer->Dense(dense::kIndexKNorm, layer->Vector(base + "k_norm.weight", index.head_dim));
  layer->Dense(dense::kIndexKNormBias, layer->Vector(base + "k_norm.bias", index.head_dim));
  layer->Dense(dense::kIndexWeights,
               layer->Matrix(base + "weights_proj.weight", index.heads, layer->hidden()));
  if (!index.pooled) return;
  layer->Dense(dense::kIndexGates,
               layer->Matrix(base + "index_kpool_compress_gate", index.head_dim, layer->hidden()));
  layer->Dense(dense::kIndexBias,
               layer->Matrix(base + "index_kpool_compress_ape", index.block, index.head_dim));
}

// Maps text checkpoints, and the language model of multimodal ones (Kimi-K2.5).
void MapDeepseek(const ModelConfig& config, TensorMapper* mapper) {
  const bool nested = mapper->Has("language_model.model.embed_tokens.weight");
  const std::string outer = nested ? "language_model." : "";
  for (const char* prefix : {"vision_tower.", "mm_projector."}) {
    if (nested) mapper->IgnorePrefix(prefix);
  }
  IgnorePredictionLayers(config, mapper, outer + "model.layers.");
  MapEmbeddingAndHead(config, {outer + "model.embed_tokens.weight", outer + "model.norm", outer + "lm_head"},
                      mapper);
  MapLayers(config, outer + "model.layers.", mapper, [](LayerMapper* layer) {
    if (layer->attention().kind == AttentionKind::kLatent) {
      MapLatent(layer);
      MapIndexer(layer);
    } else {
      layer->GroupedAttention();
    }
    layer->DeepseekFfn();
  });
}

// GLM-4-MoE (zai-org/GLM-4.5, 4.5-Air, 4.6): partial rotary, optional q/k norms, sigmoid router with a
// selection correction, dense first layers, a shared expert. GLM-4-MoE-Lite (GLM-4.7-Flash) has DeepSeek's
// latent attention, dots.llm1 has norms on each head of q and k.

namespace {

// Sigmoid scores; a group's score is the sum of its two best.
MoeConfig ReadCorrected(uint32_t shared, bool norm_topk_prob, double routed_scale, HfFields* fields) {
  MoeConfig moe = ReadDeepseekMixture(shared, norm_topk_prob, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = fields->Flag("use_expert_bias", true);  // as in ReadV3
  moe.group_score = GroupScore::kTopTwoSum;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, routed_scale));
  ReadGroups(1, 1, &moe, fields);
  return moe;
}

}  // namespace

ModelConfig ReadGlm4Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("glm4_moe", {.max_position = 131072, .epsilon = 1e-5}, fields);
  AttentionConfig attention =
      ReadGrouped({.kv_heads = 8, .rope = {.partial = 0.5, .may_be_partial = true}}, model, fields);
  attention.qkv_bias = fields->Flag("attention_bias", false);
  if (fields->Flag("use_qk_norm", false)) attention.qk_norm = QkNorm::kPerHead;
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  SetDeepseekFfns(1, ReadCorrected(1, true, 1, fields), &model, fields);
  fields->Skip("num_nextn_predict_layers");
  fields->Skip("num_mtp_layers");
  return model;
}

ModelConfig ReadGlm4MoeLite(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("glm4_moe_lite", {.max_position = 202752, .epsilon = 1e-5}, fields);
  const bool interleaved = fields->Flag("rope_interleave", true);
  const AttentionConfig attention = ReadLatent(
      {.q_rank = 768, .nope_dim = 192, .value_dim = 256, .interleaved = interleaved}, model, fields);
  const MoeConfig moe = ReadCorrected(1, true, 1.8, fields);
  const MoeConfig dense = DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth, 10240), moe.activation);
  fields->Skip("first_k_dense_replace");  // the reference class does not read it
  const std::vector<std::string> types =
      ReadLayerTypes({"dense", "sparse"}, model.layers.size(), fields, "mlp_layer_types");
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const bool is_dense = types.empty() ? i == 0 : types[i] == "dense";
    model.layers[i] = {attention, is_dense ? dense : moe};
  }
  fields->RequireWord("topk_method", "noaux_tc");
  fields->Skip("num_nextn_predict_layers");
  return model;
}

ModelConfig ReadDots1(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("dots1", {.max_position = 2048}, fields);
  AttentionConfig attention = ReadGrouped({.kv_heads = 32}, model, fields);
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", false);
  attention.qk_norm = QkNorm::kPerHead;
  SetDeepseekFfns(0, ReadCorrected(0, false, 1, fields), &model, fields);
  // Published folders name the method in place of the function.
  if (fields->Word("scoring_func", "noaux_tc") != "noaux_tc") fields->RequireWord("scoring_func", "sigmoid");
  const uint32_t window =
      fields->Number("sliding_window", 0, kMaxPosition, fields->IsNull("sliding_window") ? 0 : 4096);
  const uint32_t from = fields->Number("max_window_layers", 0, kMaxLayers, 62);
  const std::vector<std::string> types =
      ReadLayerTypes({"full_attention", "sliding_attention"}, model.layers.size(), fields);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i].attention = attention;
    const bool slides = types.empty() ? i >= from : types[i] == "sliding_attention";
    if (slides) model.layers[i].attention.sliding_window = window;
  }
  return model;
}

void MapGlm4Moe(const ModelConfig& config, TensorMapper* mapper) {
  IgnorePredictionLayers(config, mapper);
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    if (layer->attention().kind == AttentionKind::kLatent) {
      MapLatent(layer);
    } else {
      layer->GroupedAttention();
    }
    layer->DeepseekFfn();
  });
}

// Hy3 (tencent/Hy3): Qwen3's attention, DeepSeek-V3's router without groups, a shared expert.

ModelConfig ReadHyV3(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("hy_v3", {.max_position = 131072, .epsilon = 1e-5}, fields);
  const size_t layers = model.layers.size();
  AttentionConfig attention =
      ReadGrouped({.kv_heads = 8, .head_dim = 128, .rope = {.theta = 11158840}}, model, fields);
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", false);
  attention.qk_norm = QkNorm::kPerHead;
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  const uint32_t published = fields->Number("expert_hidden_dim", 1, kMaxWidth, 1536);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth, published);
  moe.shared_width = ReadSharedWidth("num_shared_experts", 1, moe.expert_width, fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.routed_scale = static_cast<float>(fields->Real("router_scaling_factor", 1e-6, 1e6, 2.826));
  moe.activation = ReadActivation(fields);
  for (const char* key :
       {"qk_norm", "route_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias"}) {
    fields->RequireFlag(key, true);
  }
  fields->RequireOff("mlp_bias");
  const uint32_t dense = fields->Number("first_k_dense_replace", 0, kMaxLayers, 1);
  std::vector<bool> sparse = ReadSparseLayers(layers, fields);
  for (size_t i = sparse.size(); i < layers; ++i) sparse.push_back(i >= dense);
  SetFfns(sparse, moe, fields->Number("intermediate_size", 1, kMaxWidth, 13312), &model);
  // Precision of a reference implementation.
  for (const char* key : {"enable_moe_fp32_combine", "enable_lm_head_fp32", "enable_attention_fp32_softmax",
                          "num_nextn_predict_layers"}) {
    fields->Skip(key);
  }
  return model;
}

void MapHyV3(const ModelConfig& config, TensorMapper* mapper) {
  IgnorePredictionLayers(config, mapper);
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention();
    if (moe.experts == 0) return layer->DenseFfn("mlp.");
    const bool written = layer->Has("mlp.gate.weight");
    layer->Dense(dense::kRouter, layer->Matrix(written ? "mlp.gate.weight" : "mlp.router.gate.weight",
                                               moe.experts, layer->hidden()));
    layer->Dense(dense::kRouterCorrection,
                 layer->Vector(written ? "mlp.e_score_correction_bias" : "mlp.expert_bias", moe.experts));
    layer->Experts("mlp.experts.", {});
    if (moe.shared_width == 0) return;
    layer->SharedExpert(layer->Has("mlp.shared_mlp.up_proj.weight") ? "mlp.shared_mlp."
                                                                    : "mlp.shared_experts.");
  });
}

// Solar Open (upstage/Solar-Open-100B): Llama's attention, DeepSeek-V3's router in every layer.

ModelConfig ReadSolarOpen(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("solar_open", {.max_position = 131072, .epsilon = 1e-5}, fields);
  AttentionConfig attention = ReadGrouped(
      {.kv_heads = 8, .head_dim = 128, .rope = {.theta = 1e6, .may_be_partial = true}}, model, fields);
  attention.qkv_bias = fields->Flag("attention_bias", false);
  fields->RequireOff("use_qk_norm");
  const MoeConfig moe = ReadCorrected(1, true, 1, fields);
  model.layers.assign(model.layers.size(), {attention, moe});
  fields->RequireNumber("first_k_dense_replace", 0);
  fields->Skip("intermediate_size");  // of dense layers; the family has none
  fields->Skip("num_nextn_predict_layers");
  return model;
}

// ERNIE-4.5-MoE (baidu/ERNIE-4.5-21B-A3B): rope on adjacent values, softmax router with a selection
// correction, dense layers at both ends, shared experts.

namespace {

MoeConfig ReadErnieMixture(HfFields* fields) {
  MoeConfig moe;
  moe.experts = fields->Number("moe_num_experts", 1, kMaxExperts, 64);
  moe.top_k = fields->Number("moe_k", 1, moe.experts, 6);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth, 1536);
  moe.shared_width = ReadSharedWidth("moe_num_shared_experts", 2, moe.expert_width, fields);
  moe.router_correction = true;
  moe.activation = ReadActivation(fields);
  // Lower bound of the sum of the chosen probabilities; the experts of a smaller sum are negligible.
  fields->Real("moe_norm_min", 0, 1e-6, 1e-12);
  fields->RequireFlag("moe_use_aux_free", true);
  return moe;
}

}  // namespace

ModelConfig ReadErnie45Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("ernie4_5_moe", {.max_position = 131072, .epsilon = 1e-5}, fields);
  model.tied_embeddings = fields->Flag("tie_word_embeddings", true);
  AttentionConfig attention = ReadGrouped({.kv_heads = 4, .rope = {.theta = 5e5}}, model, fields);
  attention.rope.interleaved = true;
  const bool bias = fields->Flag("use_bias", false);
  attention.qkv_bias = attention.output_bias = model.head_bias = bias;
  MoeConfig moe = ReadErnieMixture(fields);
  MoeConfig dense = DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth), moe.activation);
  moe.ffn_bias = bias && moe.shared_width > 0;
  dense.ffn_bias = bias;
  const uint32_t layers = static_cast<uint32_t>(model.layers.size());
  const uint32_t interval = fields->Number("moe_layer_interval", 1, kMaxLayers, 1);
  const uint32_t start = fields->Number("moe_layer_start_index", 0, kMaxLayers, 1);
  const double end = fields->Real("moe_layer_end_index", -1, kMaxLayers, -1);  // -1: the last
  for (uint32_t i = 0; i < layers; ++i) {
    const bool is_sparse = (i + 1) % interval == 0 && i >= start && (end < 0 || i <= end);
    model.layers[i] = {attention, is_sparse ? moe : dense};
  }
  fields->Skip("num_nextn_predict_layers");
  return model;
}

void MapErnie45Moe(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("model.mtp_");
  mapper->IgnorePrefix("mtp");
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention();
    if (moe.experts == 0) return layer->DenseFfn("mlp.");
    layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", moe.experts, layer->hidden()));
    layer->Dense(dense::kRouterCorrection,
                 layer->Matrix("mlp.moe_statics.e_score_correction_bias", 1, moe.experts));
    layer->Experts("mlp.experts.", {});
    if (moe.shared_width != 0) layer->SharedExpert("mlp.shared_experts.");
  });
}

// Hunyuan-V1-MoE (tencent/Hunyuan-A13B): norms on each head of q and k after rope, a theta stretched by
// alpha, a shared expert of the routed ones' width.

namespace {

// Reads a number, or one for each layer; differing values are refused.
uint32_t ReadPerLayer(const char* key, size_t layers, uint64_t high, HfFields* fields) {
  if (fields->IsUnsigned(key)) return fields->Number(key, 1, high);
  const std::vector<uint32_t> numbers = fields->Numbers(key, high);
  if (numbers.empty() || numbers.size() < layers || numbers[0] == 0) {
    fields->Fail(key, absl::StrCat("has ", numbers.size(), " entries for ", layers, " layers, or zeros"));
    return 1;
  }
  for (const uint32_t number : numbers) {
    if (number != numbers[0]) fields->Refuse(key);
  }
  return numbers[0];
}

// Requires the member to be absent or to repeat the given value.
void OnlyRepeats(const char* key, uint32_t value, size_t layers, HfFields* fields) {
  if (fields->Has(key) && ReadPerLayer(key, layers, kMaxWidth, fields) != value) fields->Refuse(key);
}

}  // namespace

ModelConfig ReadHunyuanV1Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("hunyuan_v1_moe", {.max_position = 2048, .epsilon = 1e-5}, fields);
  const size_t layers = model.layers.size();
  LayerConfig layer;
  layer.attention = ReadGrouped({.rope = {.alpha = true}}, model, fields);
  layer.attention.qk_norm = QkNorm::kWeightedAfterRope;
  fields->RequireFlag("use_qk_norm", true);
  layer.attention.qkv_bias = layer.attention.output_bias = fields->Flag("attention_bias", false);
  MoeConfig& moe = layer.moe;
  moe.experts = ReadPerLayer("num_experts", layers, kMaxExperts, fields);
  moe.top_k = ReadPerLayer("moe_topk", layers, kMaxExperts, fields);
  if (moe.top_k > moe.experts) {
    fields->Fail("moe_topk", absl::StrCat("is ", moe.top_k, ", but there are ", moe.experts, " experts"));
  }
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.shared_width = moe.expert_width;
  moe.activation = ReadActivation(fields);
  OnlyRepeats("moe_intermediate_size", moe.expert_width, layers, fields);
  OnlyRepeats("num_shared_expert", 1, layers, fields);
  fields->RequireFlag("use_mixed_mlp_moe", true);
  fields->RequireFlag("norm_topk_prob", true);
  fields->Skip("eod_token_id");
  model.layers.assign(layers, layer);
  return model;
}

void MapHunyuanV1Moe(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention({.q_norm = "query_layernorm", .k_norm = "key_layernorm"});
    layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.wg.weight", moe.experts, layer->hidden()));
    layer->Experts("mlp.experts.", {});
    layer->SharedExpert("mlp.shared_mlp.");
  });
}

}  // namespace sluice
