// Families with Mamba-1 or Kimi Delta Attention: Jamba, Kimi-Linear, Ling-3.

#include <algorithm>
#include <vector>

#include "common/model/dense_names.h"
#include "common/model/hf_blocks.h"
#include "common/model/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
// Jamba (ai21labs/Jamba-v0.1, Jamba-1.5): Mamba-1 between attention without rope, softmax router that is not
// normalized, dense layers of the experts' width in between.

namespace {

AttentionConfig ReadSelective(uint32_t hidden, HfFields* fields) {
  AttentionConfig attention;
  attention.kind = AttentionKind::kSelective;
  attention.rope = RopeConfig{.kind = RopeKind::kNone};
  SelectiveConfig& selective = attention.selective;
  selective.channels = fields->Number("mamba_expand", 1, 64, 2) * hidden;
  selective.state = fields->Number("mamba_d_state", 1, kMaxHeadDim, 16);
  selective.conv_kernel = fields->Number("mamba_d_conv", 2, kMaxConvKernel, 4);
  if (fields->IsWord("mamba_dt_rank")) {
    fields->RequireWord("mamba_dt_rank", "auto");
    selective.step_rank = (hidden + 15) / 16;
  } else {
    selective.step_rank = fields->Number("mamba_dt_rank", 1, kMaxRank, (hidden + 15) / 16);
  }
  fields->RequireFlag("mamba_conv_bias", true);
  fields->RequireOff("mamba_proj_bias");
  fields->RequireFlag("mamba_inner_layernorms", true);
  for (const char* key : {"use_mamba_kernels", "use_mambapy", "use_associative_scan"}) fields->Skip(key);
  return attention;
}

// True for every `period`-th layer from `offset` on.
std::vector<bool> ReadPeriod(const char* period_key, const char* offset_key, uint32_t period, uint32_t offset,
                             size_t layers, HfFields* fields) {
  period = fields->Number(period_key, 1, kMaxLayers, period);
  offset = fields->Number(offset_key, 0, kMaxLayers, offset);
  std::vector<bool> all(layers);
  for (size_t i = 0; i < layers; ++i) all[i] = i % period == offset;
  return all;
}

void MapSelective(LayerMapper* layer) {
  const SelectiveConfig& s = layer->attention().selective;
  const SourceMatrix in = layer->Matrix("mamba.in_proj.weight", uint64_t{2} * s.channels, layer->hidden());
  layer->Dense(dense::kSelectiveX, SliceRows(in, 0, s.channels));
  layer->Dense(dense::kSelectiveZ, SliceRows(in, s.channels, s.channels));
  // Depthwise convolution: [channels, 1, kernel].
  layer->Dense(dense::kSelectiveConv,
               Transposed(layer->Stack("mamba.conv1d.weight", s.channels, 1, s.conv_kernel)));
  layer->Dense(dense::kSelectiveConvBias, layer->Vector("mamba.conv1d.bias", s.channels));
  const SourceMatrix made =
      layer->Matrix("mamba.x_proj.weight", s.step_rank + uint64_t{2} * s.state, s.channels);
  layer->Dense(dense::kSelectiveStepDown, SliceRows(made, 0, s.step_rank));
  layer->Dense(dense::kSelectiveB, SliceRows(made, s.step_rank, s.state));
  layer->Dense(dense::kSelectiveC, SliceRows(made, s.step_rank + s.state, s.state));
  layer->Dense(dense::kSelectiveStepNorm, layer->Vector("mamba.dt_layernorm.weight", s.step_rank));
  layer->Dense(dense::kSelectiveBNorm, layer->Vector("mamba.b_layernorm.weight", s.state));
  layer->Dense(dense::kSelectiveCNorm, layer->Vector("mamba.c_layernorm.weight", s.state));
  layer->Dense(dense::kSelectiveStep, layer->Matrix("mamba.dt_proj.weight", s.channels, s.step_rank));
  layer->Dense(dense::kSelectiveStepBias, layer->Vector("mamba.dt_proj.bias", s.channels));
  layer->Dense(dense::kSelectiveALog, Transposed(layer->Matrix("mamba.A_log", s.channels, s.state)));
  layer->Dense(dense::kSelectiveD, layer->Vector("mamba.D", s.channels));
  layer->Dense(dense::kO, layer->Matrix("mamba.out_proj.weight", layer->hidden(), s.channels));
}

}  // namespace

ModelConfig ReadJamba(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("jamba", {.max_position = 262144}, fields);
  const size_t layers = model.layers.size();
  const AttentionConfig full = ReadHeads({.kv_heads = 8}, model, fields);
  const AttentionConfig selective = ReadSelective(model.hidden, fields);
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.norm_topk_prob = false;
  moe.activation = ReadActivation(fields);
  std::vector<bool> sparse = ReadPeriod("expert_layer_period", "expert_layer_offset", 2, 1, layers, fields);
  if (moe.experts == 1) sparse.assign(layers, false);
  SetFfns(sparse, moe, moe.expert_width, &model);
  const std::vector<bool> attends =
      ReadPeriod("attn_layer_period", "attn_layer_offset", 8, 4, layers, fields);
  for (size_t i = 0; i < layers; ++i) model.layers[i].attention = attends[i] ? full : selective;
  fields->RequireOff("sliding_window");
  fields->Skip("num_logits_to_keep");
  return model;
}

void MapJamba(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {.norm = "model.final_layernorm"}, mapper);
  MapLayers(config, "model.layers.", mapper,
            [](LayerMapper* layer) {
              const MoeConfig& moe = layer->moe();
              if (layer->attention().kind == AttentionKind::kSelective) {
                MapSelective(layer);
              } else {
                layer->GroupedAttention();
              }
              if (moe.experts == 0) return layer->DenseFfn("feed_forward.");
              layer->Dense(dense::kRouter,
                           layer->Matrix("feed_forward.router.weight", moe.experts, layer->hidden()));
              layer->Experts("feed_forward.experts.", {});
            },
            {.ffn = "pre_ff_layernorm"});
}

// Kimi-Linear (moonshotai/Kimi-Linear-48B-A3B) and Ling-3 (inclusionAI): Kimi Delta Attention between latent
// attention, DeepSeek-V3's router and shared expert, dense first layers.

AttentionConfig ChannelDelta(uint32_t heads, uint32_t dim, uint32_t kernel) {
  AttentionConfig attention;
  attention.kind = AttentionKind::kGatedDelta;
  attention.rope = RopeConfig{.kind = RopeKind::kNone};
  attention.delta = {.key_heads = heads,
                     .value_heads = heads,
                     .key_dim = dim,
                     .value_dim = dim,
                     .conv_kernel = kernel,
                     .channel_decay = true,
                     .sigmoid_gate = true};
  return attention;
}

namespace {

// Sets the router and the dense first layers; `groups` of the experts, of which `top_groups` take part.
void SetCorrectedFfns(MoeConfig moe, ModelConfig* model, HfFields* fields) {
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.group_score = GroupScore::kTopTwoSum;
  moe.activation = ReadActivation(fields);
  if (moe.groups == 1) moe.groups = moe.top_groups = 0;
  SetDeepseekFfns(1, moe, model, fields);
  fields->Skip("num_nextn_predict_layers");
}

}  // namespace

void MapChannelDelta(const std::string& base, const std::string& o, LayerMapper* layer) {
  const DeltaConfig& d = layer->attention().delta;
  const uint32_t values = d.value_heads * d.value_dim;
  const uint32_t hidden = layer->hidden();
  const auto part = [&](const char* name) {
    return layer->Matrix(absl::StrCat(base, name, "_proj.weight"), values, hidden);
  };
  const auto conv = [&](const char* name) {
    return layer->Stack(absl::StrCat(base, name, "_conv1d.weight"), values, 1, d.conv_kernel);
  };
  layer->Dense(dense::kDeltaQkv, Stacked(part("q"), {part("k"), part("v")}));
  layer->Dense(dense::kDeltaConv, Stacked(conv("q"), {conv("k"), conv("v")}));
  if (d.gate_rank > 0) {
    layer->Dense(dense::kDeltaDecayDown, layer->Matrix(base + "f_a_proj.weight", d.gate_rank, hidden));
    layer->Dense(dense::kDeltaDecay, layer->Matrix(base + "f_b_proj.weight", values, d.gate_rank));
    layer->Dense(dense::kDeltaZDown, layer->Matrix(base + "g_a_proj.weight", d.gate_rank, hidden));
    layer->Dense(dense::kDeltaZ, layer->Matrix(base + "g_b_proj.weight", values, d.gate_rank));
  } else {
    layer->Dense(dense::kDeltaDecay, part("f"));
    layer->Dense(dense::kDeltaZ, part("g"));
  }
  layer->Dense(dense::kDeltaBeta, layer->Matrix(base + "b_proj.weight", d.value_heads, hidden));
  const bool flat = layer->HasShape(base + "A_log", {d.value_heads});
  layer->Dense(dense::kDeltaALog, flat ? layer->Vector(base + "A_log", d.value_heads)
                                       : layer->HeadColumn(base + "A_log", d.value_heads));
  layer->Dense(dense::kDeltaDtBias, layer->Vector(base + "dt_bias", values));
  layer->Dense(dense::kDeltaNorm, layer->Vector(base + "o_norm.weight", d.value_dim));
  layer->Dense(dense::kO, layer->Matrix(base + o + ".weight", hidden, values));
}

ModelConfig ReadKimiLinear(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("kimi_linear", {.max_position = 1048576, .epsilon = 1e-5}, fields);
  AttentionConfig full = ReadLatent({.skips_head_dim = true}, model, fields);
  // The rotated part of q and k is there but does not turn.
  fields->RequireFlag("mla_use_nope", true);
  full.rope = {.kind = RopeKind::kProportional, .theta = full.rope.theta, .dimensions = full.rope.dimensions};
  for (LayerConfig& layer : model.layers) layer.attention = full;
  fields->Group("linear_attn_config", [&](HfFields* linear) {
    const uint32_t dim = linear->Number("head_dim", 1, kMaxHeadDim);
    AttentionConfig delta = ChannelDelta(linear->Number("num_heads", 1, kMaxHeads), dim,
                                         linear->Number("short_conv_kernel_size", 1, kMaxConvKernel, 4));
    delta.delta.gate_rank = dim;
    for (const uint32_t layer : linear->Numbers("kda_layers", model.layers.size())) {
      if (layer > 0) model.layers[layer - 1].attention = delta;  // counted from 1
    }
    linear->Skip("full_attn_layers");  // the others
  });
  MoeConfig moe;
  moe.experts = fields->Number("num_experts", 1, kMaxExperts);
  moe.top_k = fields->Number("num_experts_per_token", 1, moe.experts);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.shared_width = ReadSharedWidth("num_shared_experts", 0, moe.expert_width, fields);
  moe.norm_topk_prob = fields->Flag("moe_renormalize", true);
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  moe.groups = fields->Number("num_expert_group", 1, kMaxExperts, 1);
  moe.top_groups = fields->Number("topk_group", 1, kMaxExperts, 1);
  fields->RequireWord("moe_router_activation_func", "sigmoid");
  fields->RequireFlag("use_grouped_topk", true);
  SetCorrectedFfns(moe, &model, fields);
  return model;
}

void MapKimiLinear(const ModelConfig& config, TensorMapper* mapper) {
  IgnorePredictionLayers(config, mapper);
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    if (layer->attention().kind == AttentionKind::kGatedDelta) {
      MapChannelDelta("self_attn.", "o_proj", layer);
    } else {
      MapLatent(layer);
    }
    if (moe.experts == 0) return layer->DenseFfn("mlp.");
    const std::string base = "block_sparse_moe.";
    layer->Dense(dense::kRouter, layer->Matrix(base + "gate.weight", moe.experts, layer->hidden()));
    layer->Dense(dense::kRouterCorrection, layer->Vector(base + "gate.e_score_correction_bias", moe.experts));
    layer->Experts(base + "experts.", {.gate = "w1", .up = "w3", .down = "w2"});
    if (moe.shared_width != 0) layer->SharedExpert(base + "shared_experts.");
  });
}

ModelConfig ReadBailingHybrid(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("bailing_hybrid", {.max_position = 131072}, fields);
  AttentionConfig full = ReadLatent({.theta = 6e6, .skips_head_dim = true}, model, fields);
  full.output_gate = full.gate_per_head = true;
  AttentionConfig delta = ChannelDelta(full.heads, fields->Number("head_dim", 1, kMaxHeadDim, 128),
                                       fields->Number("short_conv_kernel_size", 1, kMaxConvKernel, 4));
  const double floor = fields->Real("kda_lower_bound", -1e6, 0, -5);
  if (fields->Flag("kda_safe_gate", true)) delta.delta.decay_floor = static_cast<float>(floor);
  const uint32_t group = fields->Number("layer_group_size", 1, kMaxLayers);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i].attention = (i + 1) % group == 0 ? full : delta;
  }
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.shared_width = ReadSharedWidth("num_shared_experts", 0, moe.expert_width, fields);
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 2.5));
  moe.groups = fields->Number("n_group", 1, kMaxExperts, 8);
  moe.top_groups = fields->Number("topk_group", 1, kMaxExperts, 4);
  fields->RequireWord("score_function", "sigmoid");
  fields->RequireFlag("moe_router_enable_expert_bias", true);
  fields->RequireOff("use_bias");
  fields->RequireOff("use_qkv_bias");
  SetCorrectedFfns(moe, &model, fields);
  return model;
}

void MapBailingHybrid(const ModelConfig& config, TensorMapper* mapper) {
  IgnorePredictionLayers(config, mapper);
  MapEmbeddingAndHead(config, {.embed = "model.word_embeddings.weight"}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    const MoeConfig& moe = layer->moe();
    if (layer->attention().kind == AttentionKind::kGatedDelta) {
      MapChannelDelta("attention.", "dense", layer);
    } else {
      MapLatent(layer, {.base = "attention.", .o = "dense", .gate = "g_proj"});
    }
    if (moe.experts == 0) return layer->DenseFfn("mlp.");
    layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", moe.experts, layer->hidden()));
    layer->Dense(dense::kRouterCorrection, layer->Vector("mlp.gate.expert_bias", moe.experts));
    layer->Experts("mlp.experts.", {});
    if (moe.shared_width != 0) layer->SharedExpert("mlp.shared_experts.");
  });
}

}  // namespace sluice
