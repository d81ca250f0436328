// Families whose attention is the same in all layers: Mixtral, OLMoE, Phi-3.5-MoE, Xverse,
// MiniMax-M2 and M3, Qwen2-MoE and Qwen3-MoE.

#include <algorithm>

#include "common/model/dense_names.h"
#include "common/model/hf_blocks.h"
#include "common/model/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {

// Mixtral (mistralai/Mixtral-8x7B, 8x22B).

ModelConfig ReadMixtral(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("mixtral", {.max_position = 4096 * 32, .epsilon = 1e-5}, fields);
  LayerConfig layer;
  layer.attention = ReadGrouped({.kv_heads = 8, .rope = {.theta = 1e6}}, model, fields);
  layer.attention.sliding_window = fields->Number("sliding_window", 1, kMaxPosition, 0);
  ReadExperts({"num_local_experts", "num_experts"}, &layer.moe, fields);
  layer.moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  layer.moe.activation = ReadActivation(fields);
  model.layers.assign(model.layers.size(), layer);
  return model;
}

// Maps both generations of names: block_sparse_moe with w1, w3, w2, and mlp with stacked experts.
void MapMixtral(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    layer->GroupedAttention();
    const std::string moe = layer->Has("block_sparse_moe.gate.weight") ? "block_sparse_moe." : "mlp.";
    layer->Dense(dense::kRouter, layer->Matrix(moe + "gate.weight", layer->moe().experts, layer->hidden()));
    layer->Experts(moe + "experts.", {.gate = "w1", .up = "w3", .down = "w2"});
  });
}

// OLMoE (allenai/OLMoE-1B-7B): norms across all heads of q and k, optional clipping of q, k and v.

ModelConfig ReadOlmoe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("olmoe", {.max_position = 4096, .epsilon = 1e-5}, fields);
  LayerConfig layer;
  layer.attention = ReadGrouped({}, model, fields);
  layer.attention.qkv_bias = layer.attention.output_bias = fields->Flag("attention_bias", false);
  layer.attention.qk_norm = QkNorm::kAcrossHeads;
  layer.attention.clip_qkv = static_cast<float>(fields->Real("clip_qkv", 1e-6, 1e9, 0));
  if (layer.attention.heads * layer.attention.head_dim != model.hidden) fields->Refuse("head_dim");
  ReadExperts({"num_experts", "num_local_experts"}, &layer.moe, fields);
  layer.moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  layer.moe.norm_topk_prob = fields->Flag("norm_topk_prob", false);
  layer.moe.activation = ReadActivation(fields);
  model.layers.assign(model.layers.size(), layer);
  return model;
}

void MapOlmoe(const ModelConfig& config, TensorMapper* mapper) { MapQwenMoe(config, mapper); }

// Phi-3.5-MoE (microsoft/Phi-3.5-MoE-instruct): SparseMixer router, layer norm, biases, long rope.

ModelConfig ReadPhimoe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("phimoe", {.max_position = 4096 * 32, .epsilon = 1e-5}, fields);
  model.norm = NormKind::kLayer;
  model.head_bias = fields->Flag("lm_head_bias", false);
  LayerConfig layer;
  layer.attention = ReadGrouped({.kv_heads = 8, .rope = {.theta = 1e6, .mscales = true}}, model, fields);
  layer.attention.qkv_bias = layer.attention.output_bias = fields->Flag("attention_bias", false);
  layer.attention.sliding_window = fields->Number("sliding_window", 1, kMaxPosition, 0);
  ReadExperts({"num_local_experts", "num_experts"}, &layer.moe, fields);
  if (layer.moe.top_k != 2) fields->Refuse("num_experts_per_tok");  // SparseMixer always chooses two
  layer.moe.router = RouterKind::kSparseMixer;
  layer.moe.router_jitter = static_cast<float>(fields->Real("router_jitter_noise", 0, 1, 0.01));
  layer.moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  layer.moe.activation = ReadActivation(fields);
  model.layers.assign(model.layers.size(), layer);
  return model;
}

void MapPhimoe(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    layer->GroupedAttention();
    // The names changed when transformers moved the MoE block to `mlp`.
    const bool old_names = layer->Has("block_sparse_moe.gate.weight");
    const std::string moe = old_names ? "block_sparse_moe." : "mlp.";
    layer->Dense(dense::kRouter, layer->Matrix(moe + (old_names ? "gate.weight" : "router.weight"),
                                               layer->moe().experts, layer->hidden()));
    layer->Experts(moe + "experts.", {.gate = "w1", .up = "w3", .down = "w2"});
  });
}

// XVERSE-MoE (xverse/XVERSE-MoE-A4.2B): Llama's attention, fine-grained experts of which the first are
// shared.

ModelConfig ReadXverse(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("xverse", {.max_position = 8192}, fields);
  LayerConfig layer;
  layer.attention = ReadGrouped({}, model, fields);
  fields->RequireOff("attention_bias");
  layer.moe.experts = fields->Number("num_experts", 1, kMaxExperts);
  layer.moe.top_k = fields->Number("moe_top_k", 1, layer.moe.experts);
  layer.moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  layer.moe.shared_width = ReadSharedWidth("num_shared_experts", 0, layer.moe.expert_width, fields);
  layer.moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  layer.moe.activation = ReadActivation(fields);
  fields->Skip("max_tokenizer_truncation");
  model.layers.assign(model.layers.size(), layer);
  return model;
}

void MapXverse(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention();
    const bool router = layer->Has("mlp.router.weight");
    layer->Dense(dense::kRouter, layer->Matrix(router ? "mlp.router.weight" : "mlp.gate.weight", moe.experts,
                                               layer->hidden()));
    layer->Experts("mlp.experts.", {});
    if (moe.shared_width != 0) layer->SharedExpert("mlp.shared_experts.");
  });
}

// MiniMax-M2 (MiniMaxAI/MiniMax-M2, 2.1, 2.5): norms across all heads of q and k, partial rotary, sigmoid
// router with a selection correction, no shared expert.

namespace {

// Reads published members that repeat the family's fixed behaviour, and those of the layers that predict
// further tokens.
void ReadRepeated(HfFields* fields) {
  fields->RequireFlag("use_qk_norm", true);
  fields->RequireWord("qk_norm_type", "per_layer");
  fields->RequireWord("scoring_func", "sigmoid");
  fields->RequireFlag("use_routing_bias", true);
  fields->RequireNumber("shared_intermediate_size", 0);
  fields->RequireOff("attention_bias");
  for (const uint32_t type : fields->Numbers("attn_type_list", kMaxLayers)) {
    if (type != 1) fields->Refuse("attn_type_list");
  }
  for (const char* key :
       {"layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"}) {
    fields->RequireNumber(key, 1);
  }
  for (const char* key : {"use_mtp", "num_mtp_modules", "mtp_transformer_layers"}) fields->Skip(key);
}

}  // namespace

ModelConfig ReadMinimaxM2(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("minimax_m2", {.max_position = 196608}, fields);
  LayerConfig layer;
  layer.attention = ReadGrouped(
      {.kv_heads = 8, .head_dim = 128, .rope = {.theta = 5e6, .may_be_partial = true}}, model, fields);
  // Published folders hold the number of rotated values, newer files the rotated share of a head.
  RopeConfig& rope = layer.attention.rope;
  rope.dimensions = fields->Number("rotary_dim", 2, layer.attention.head_dim, rope.dimensions);
  if (rope.dimensions % 2 != 0) fields->Refuse("rotary_dim");
  layer.attention.qk_norm = QkNorm::kAcrossHeads;
  MoeConfig& moe = layer.moe;
  ReadExperts({"num_local_experts", "num_experts"}, &moe, fields);
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.activation = ReadActivation(fields);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  ReadRepeated(fields);
  model.layers.assign(model.layers.size(), layer);
  return model;
}

void MapMinimaxM2(const ModelConfig& config, TensorMapper* mapper) {
  IgnorePredictionLayers(config, mapper);
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const uint32_t experts = layer->moe().experts;
    layer->GroupedAttention();
    const bool old_names = layer->Has("block_sparse_moe.gate.weight");
    const std::string moe = old_names ? "block_sparse_moe." : "mlp.";
    const std::string correction = layer->Has(moe + "e_score_correction_bias")
                                       ? moe + "e_score_correction_bias"
                                       : moe + "gate.e_score_correction_bias";
    layer->Dense(dense::kRouter, layer->Matrix(moe + "gate.weight", experts, layer->hidden()));
    layer->Dense(dense::kRouterCorrection, layer->Vector(correction, experts));
    layer->Experts(moe + "experts.", {.gate = "w1", .up = "w3", .down = "w2"});
  });
}

// MiniMax-M3 (MiniMaxAI/MiniMax-M3, text): norms on each head, GPT-OSS's activation, a shared expert. Some
// layers attend to the blocks of keys that an indexer chooses.

namespace {

// Gives an indexer to the layers that attend to chosen blocks.
void ReadBlockIndexers(ModelConfig* model, HfFields* fields) {
  const size_t layers = model->layers.size();
  IndexConfig index = {.norm_epsilon = model->norm_epsilon};
  index.heads = fields->Number("index_n_heads", 1, kMaxHeads, 4);
  index.head_dim = fields->Number("index_head_dim", 2, kMaxHeadDim, 128);
  index.top = fields->Number("index_topk_blocks", 1, kMaxPosition, 16);
  index.block = fields->Number("index_block_size", 1, kMaxPosition, 128);
  index.local = fields->Number("index_local_blocks", 1, kMaxPosition, 1);
  std::vector<uint32_t> sparse_layers;
  fields->Group("sparse_attention_config", [&](HfFields* sparse) {
    index.heads = sparse->Number("sparse_num_index_heads", 1, kMaxHeads, index.heads);
    index.head_dim = sparse->Number("sparse_index_dim", 2, kMaxHeadDim, index.head_dim);
    index.top = sparse->Number("sparse_topk_blocks", 1, kMaxPosition, index.top);
    index.block = sparse->Number("sparse_block_size", 1, kMaxPosition, index.block);
    index.local = sparse->Number("sparse_local_block", 1, kMaxPosition, index.local);
    sparse_layers = sparse->Numbers("sparse_attention_freq", 1);
    const std::vector<uint32_t> without_values = sparse->Numbers("sparse_disable_index_value", 1);
    if (!without_values.empty() && without_values != sparse_layers)
      sparse->Refuse("sparse_disable_index_value");
    sparse->RequireNumber("sparse_init_block", 0);
    sparse->RequireWord("sparse_score_type", "max");
    sparse->RequireFlag("use_sparse_attention", true);
    if (!sparse_layers.empty() && sparse_layers.size() != layers) {
      sparse->Fail("sparse_attention_freq",
                   absl::StrCat("has ", sparse_layers.size(), " entries for ", layers, " layers"));
      sparse_layers.resize(layers);
    }
  });
  const std::vector<std::string> types =
      ReadLayerTypes({"minimax_m3_sparse", "full_attention"}, layers, fields);
  for (size_t i = 0; i < layers; ++i) {
    const bool chooses = !types.empty()           ? types[i] == "minimax_m3_sparse"
                         : !sparse_layers.empty() ? sparse_layers[i] == 1
                                                  : false;
    if (chooses) model->layers[i].attention.index = index;
  }
}

MoeConfig ReadMinimaxM3Mixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_local_experts", "num_experts"}, &moe, fields);
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth, 3072);
  moe.shared_width = fields->Number("shared_intermediate_size", 0, kMaxWidth, 3072);
  fields->RequireNumber("n_shared_experts", 1);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.norm_epsilon = 0;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 2));
  moe.activation = Activation::kClampedSwiglu;
  moe.activation_alpha = static_cast<float>(fields->Real("swiglu_alpha", 0, 1e6, 1.702));
  moe.activation_limit = static_cast<float>(fields->Real("swiglu_limit", 1e-6, 1e6, 7));
  if (fields->Word("hidden_act", "silu") != "silu") fields->RequireWord("hidden_act", "swigluoai");
  fields->RequireWord("scoring_func", "sigmoid");
  fields->RequireFlag("use_routing_bias", true);
  return moe;
}

}  // namespace

ModelConfig ReadMinimaxM3(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("minimax_m3_vl_text", {.max_position = 524288}, fields);
  const size_t layers = model.layers.size();
  AttentionConfig attention = ReadGrouped(
      {.kv_heads = 4, .head_dim = 128, .rope = {.theta = 5e6, .may_be_partial = true}}, model, fields);
  const bool partial = fields->Has("rope_parameters");
  attention.rope.dimensions =
      fields->Number("rotary_dim", 2, attention.head_dim,
                     partial ? attention.rope.dimensions : std::min(64u, attention.head_dim));
  if (attention.rope.dimensions % 2 != 0) fields->Refuse("rotary_dim");
  attention.qk_norm = QkNorm::kPerHead;
  fields->RequireOff("attention_bias");
  fields->RequireFlag("use_qk_norm", true);
  fields->RequireFlag("use_gemma_norm", true);
  fields->RequireWord("qk_norm_type", "per_head");
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  ReadBlockIndexers(&model, fields);
  const std::vector<uint32_t> frequency = fields->Numbers("moe_layer_freq", 1);
  std::vector<bool> sparse = ReadSparseLayers(layers, fields);
  if (sparse.empty()) sparse = {frequency.begin(), frequency.end()};
  if (sparse.empty()) sparse.assign(layers, true);
  if (sparse.size() != layers) {
    fields->Fail("moe_layer_freq", absl::StrCat("has ", sparse.size(), " entries for ", layers, " layers"));
    sparse.resize(layers);
  }
  SetFfns(sparse, ReadMinimaxM3Mixture(fields),
          fields->Number("dense_intermediate_size", 1, kMaxWidth, 12288), &model);
  for (const char* key :
       {"use_mtp", "num_mtp_modules", "mtp_transformer_layers", "num_nextn_predict_layers"}) {
    fields->Skip(key);
  }
  return model;
}

namespace {

void MapBlockIndexer(LayerMapper* layer) {
  const IndexConfig& index = layer->attention().index;
  if (index.heads == 0) return;
  const bool published = layer->Has("self_attn.index_q_proj.weight");
  const std::string base = published ? "self_attn.index_" : "self_attn.indexer.";
  layer->Dense(dense::kIndexQ, layer->Matrix(base + "q_proj.weight", uint64_t{index.heads} * index.head_dim,
                                             layer->hidden()));
  layer->Dense(dense::kIndexK, layer->Matrix(base + "k_proj.weight", index.head_dim, layer->hidden()));
  layer->Dense(dense::kIndexQNorm, PlusOne(layer->Vector(base + "q_norm.weight", index.head_dim)));
  layer->Dense(dense::kIndexKNorm, PlusOne(layer->Vector(base + "k_norm.weight", index.head_dim)));
}

}  // namespace

// Maps text checkpoints, and the language model of multimodal ones.
void MapMinimaxM3(const ModelConfig& config, TensorMapper* mapper) {
  const bool nested = mapper->Has("language_model.model.embed_tokens.weight");
  const std::string outer = nested ? "language_model." : "";
  for (const char* prefix : {"vision_tower.", "multi_modal_projector.", "patch_merge_mlp."}) {
    if (nested) mapper->IgnorePrefix(prefix);
  }
  mapper->IgnorePrefix("mtp.");
  mapper->IgnorePrefix(outer + "model.mtp.");
  MapEmbeddingAndHead(
      config, {outer + "model.embed_tokens.weight", outer + "model.norm", outer + "lm_head", true}, mapper);
  MapLayers(config, outer + "model.layers.", mapper,
            [](LayerMapper* layer) {
              const MoeConfig& moe = layer->moe();
              layer->GroupedAttention({.plus_one = true});
              MapBlockIndexer(layer);
              if (moe.experts == 0) return layer->DenseFfn("mlp.");
              const bool old_names = layer->Has("block_sparse_moe.gate.weight");
              const std::string base = old_names ? "block_sparse_moe." : "mlp.";
              const std::string correction = layer->Has(base + "e_score_correction_bias")
                                                 ? base + "e_score_correction_bias"
                                                 : base + "gate.e_score_correction_bias";
              layer->Dense(dense::kRouter, layer->Matrix(base + "gate.weight", moe.experts, layer->hidden()));
              layer->Dense(dense::kRouterCorrection, layer->Vector(correction, moe.experts));
              layer->Experts(base + "experts.", {.gate = "w1", .up = "w3", .down = "w2"});
              if (moe.shared_width != 0) layer->SharedExpert(base + "shared_experts.");
            },
            {.plus_one = true});
}

// Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B: shared expert with a gate, q/k/v biases) and Qwen3-MoE
// (Qwen3-30B-A3B, 235B-A22B: q/k norms, separate head_dim), which is also the text model of Qwen3-VL-MoE.

namespace {

// Reads the MoE members common to both generations.
MoeConfig ReadQwenMixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", false);
  moe.activation = ReadActivation(fields);
  return moe;
}

}  // namespace

ModelConfig ReadQwen2Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("qwen2_moe", {.max_position = 32768}, fields);
  AttentionConfig attention = ReadGrouped({.kv_heads = 16}, model, fields);
  attention.qkv_bias = fields->Flag("qkv_bias", true);
  MoeConfig moe = ReadQwenMixture(fields);
  moe.shared_width = fields->Number("shared_expert_intermediate_size", 1, kMaxWidth);
  moe.shared_gate = true;
  SetQwenFfns(moe, &model, fields);
  const bool sliding = fields->Flag("use_sliding_window", false);
  const uint32_t window = fields->Number("sliding_window", 0, kMaxPosition, sliding ? 4096 : 0);
  const uint32_t max_window_layers = fields->Number("max_window_layers", 0, kMaxLayers, 28);
  const std::vector<std::string> types =
      ReadLayerTypes({"full_attention", "sliding_attention"}, model.layers.size(), fields);
  for (uint32_t i = 0; i < model.layers.size(); ++i) {
    const bool slides =
        // Default of transformers without a list of types: a window in every second layer below
        // max_window_layers.
        types.empty() ? sliding && i % 2 == 0 && i < max_window_layers : types[i] == "sliding_attention";
    model.layers[i].attention = attention;
    if (!slides) continue;
    if (!sliding || window == 0)
      fields->Fail("sliding_window", "is missing, but there are layers that slide");
    model.layers[i].attention.sliding_window = window;
  }
  return model;
}

ModelConfig ReadQwen3Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("qwen3_moe", {.max_position = 32768}, fields);
  AttentionConfig attention = ReadGrouped({.kv_heads = 4}, model, fields);
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", false);
  attention.qk_norm = QkNorm::kPerHead;
  fields->Skip("max_window_layers");  // the window applies to every layer
  const uint32_t window = fields->Number("sliding_window", 0, kMaxPosition, 4096);
  if (fields->Flag("use_sliding_window", false) && !fields->IsNull("sliding_window")) {
    attention.sliding_window = window;
  }
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  SetQwenFfns(ReadQwenMixture(fields), &model, fields);
  return model;
}

// Positions have three parts, which are equal for text; the router always normalizes.
ModelConfig ReadQwen3VlMoe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("qwen3_vl_moe_text", {.max_position = 128000}, fields);
  AttentionConfig attention = ReadGrouped({.kv_heads = 16, .rope = {.theta = 5e5}}, model, fields);
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", false);
  attention.qk_norm = QkNorm::kPerHead;
  for (LayerConfig& layer : model.layers) layer.attention = attention;
  MoeConfig moe = ReadQwenMixture(fields);
  moe.norm_topk_prob = true;
  SetQwenFfns(moe, &model, fields);
  fields->RequireOff("sliding_window");
  fields->RequireOff("use_sliding_window");
  return model;
}

void MapQwen3VlMoe(const ModelConfig& config, TensorMapper* mapper) {
  const std::string inner = "model.language_model.";
  mapper->IgnorePrefix("model.visual.");
  MapEmbeddingAndHead(config, {.embed = inner + "embed_tokens.weight", .norm = inner + "norm"}, mapper);
  MapLayers(config, inner + "layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention();
    if (moe.experts == 0) return layer->DenseFfn("mlp.");
    layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", moe.experts, layer->hidden()));
    // Published folders stack experts input-major, newer ones output-major. The shape of gate_up_proj tells
    // them apart; if hidden is twice the width, the shape of down_proj does.
    const std::string gate_up = "mlp.experts.gate_up_proj";
    const std::string down = "mlp.experts.down_proj";
    if (layer->HasShape(gate_up, {moe.experts, layer->hidden(), uint64_t{2} * moe.expert_width}) &&
        layer->HasShape(down, {moe.experts, moe.expert_width, layer->hidden()})) {
      MapStackedInputs(gate_up, down, layer);
    } else {
      layer->Experts("mlp.experts.", {});
    }
  });
}

void MapQwenMoe(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    layer->GroupedAttention();
    if (moe.experts == 0) return layer->DenseFfn("mlp.");
    layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", moe.experts, layer->hidden()));
    layer->Experts("mlp.experts.", {});
    if (moe.shared_width == 0) return;
    layer->SharedExpert("mlp.shared_expert.");
    layer->Dense(dense::kSharedRouter, layer->Matrix("mlp.shared_expert_gate.weight", 1, layer->hidden()));
  });
}

}  // namespace sluice
