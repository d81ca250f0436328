// Families with recurrent layers: Granite (and its hybrid), LFM2, Nemotron-H, Qwen3.5 and Qwen3-Next.

#include "common/model/dense_names.h"
#include "common/model/hf_blocks.h"
#include "common/model/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
// Granite-MoE (ibm-granite/granite-3.x-1b-a400m, 3b-a800m): multipliers, experts fused in two tensors; and
// its hybrid (granite-4.0-h): Mamba-2 between attention layers, most without rope, and a shared expert.

namespace {

// Bounds of the multipliers: a value beyond them means a broken file; they keep products finite.
constexpr double kSmallest = 1e-9;
constexpr double kLargest = 1e9;

float ReadFactor(const char* key, HfFields* fields) {
  return static_cast<float>(fields->Real(key, kSmallest, kLargest, 1));
}

ModelConfig ReadGraniteFrame(const std::string& family, HfFields* fields) {
  ModelConfig model = ReadBaseConfig(family, {.max_position = 2048}, fields);
  model.embedding_scale = ReadFactor("embedding_multiplier", fields);
  model.residual_scale = ReadFactor("residual_multiplier", fields);
  model.logit_scale = static_cast<float>(1 / fields->Real("logits_scaling", kSmallest, kLargest, 1));
  return model;
}

AttentionConfig ReadGraniteAttention(const ModelConfig& model, HfFields* fields) {
  AttentionConfig attention = ReadGrouped({}, model, fields);
  attention.scale = ReadFactor("attention_multiplier", fields);
  attention.qkv_bias = attention.output_bias = fields->Flag("attention_bias", false);
  return attention;
}

MoeConfig ReadGraniteMixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_local_experts", "num_experts"}, &moe, fields);
  moe.router = RouterKind::kTopKSoftmax;
  moe.expert_width = fields->Number("intermediate_size", 1, kMaxWidth);
  moe.activation = ReadActivation(fields);
  return moe;
}

AttentionConfig ReadGraniteMamba(uint32_t hidden, HfFields* fields) {
  AttentionConfig attention;
  attention.kind = AttentionKind::kMamba;
  attention.rope = RopeConfig{.kind = RopeKind::kNone};
  MambaConfig& mamba = attention.mamba;
  mamba.heads = fields->Number("mamba_n_heads", 1, kMaxHeads, 128);
  const uint32_t expand = fields->Number("mamba_expand", 1, 64, 2);
  if (fields->IsUnsigned("mamba_d_head")) {
    mamba.head_dim = fields->Number("mamba_d_head", 1, kMaxHeadDim);
  } else {
    fields->RequireWord("mamba_d_head", "auto");
    mamba.head_dim = static_cast<uint32_t>(uint64_t{expand} * hidden / mamba.heads);
  }
  if (uint64_t{mamba.heads} * mamba.head_dim != uint64_t{expand} * hidden) {
    fields->Fail("mamba_n_heads", absl::StrCat("is ", mamba.heads, " of ", mamba.head_dim, " values, not ",
                                               expand, " times the hidden size ", hidden));
  }
  mamba.groups = fields->Number("mamba_n_groups", 1, mamba.heads, 1);
  mamba.state = fields->Number("mamba_d_state", 1, kMaxHeadDim, 256);
  mamba.conv_kernel = fields->Number("mamba_d_conv", 1, kMaxConvKernel, 4);
  ReadTimeSteps(&mamba, fields);
  fields->RequireFlag("mamba_conv_bias", true);
  fields->RequireOff("mamba_proj_bias");
  fields->Skip("mamba_chunk_size");
  return attention;
}

void MapGraniteExperts(LayerMapper* layer) {
  const std::string moe = "block_sparse_moe.";
  const bool fused = layer->Has(moe + "input_linear.weight");
  layer->Dense(dense::kRouter, layer->Matrix(moe + (fused ? "router.layer.weight" : "router.weight"),
                                             layer->moe().experts, layer->hidden()));
  if (fused) {
    MapStackedExperts(moe + "input_linear.weight", moe + "output_linear.weight", layer);
  } else {
    layer->Experts(moe + "experts.", {});
  }
}

// The FFN that every token passes; the only FFN of a model without experts.
void MapGraniteShared(LayerMapper* layer) {
  const bool only = layer->moe().experts == 0;
  const uint32_t width = only ? layer->moe().dense_width : layer->moe().shared_width;
  if (!layer->Has("shared_mlp.input_linear.weight")) {
    return only ? layer->DenseFfn("shared_mlp.") : layer->SharedExpert("shared_mlp.");
  }
  const SourceMatrix both =
      layer->Matrix("shared_mlp.input_linear.weight", uint64_t{2} * width, layer->hidden());
  layer->Dense(only ? dense::kDenseGate : dense::kSharedGate, SliceRows(both, 0, width));
  layer->Dense(only ? dense::kDenseUp : dense::kSharedUp, SliceRows(both, width, width));
  layer->Dense(only ? dense::kDenseDown : dense::kSharedDown,
               Transposed(layer->Matrix("shared_mlp.output_linear.weight", layer->hidden(), width)));
}

}  // namespace

ModelConfig ReadGraniteMoe(HfFields* fields) {
  ModelConfig model = ReadGraniteFrame("granitemoe", fields);
  LayerConfig layer;
  layer.attention = ReadGraniteAttention(model, fields);
  layer.moe = ReadGraniteMixture(fields);
  model.layers.assign(model.layers.size(), layer);
  return model;
}

ModelConfig ReadGraniteMoeHybrid(HfFields* fields) {
  ModelConfig model = ReadGraniteFrame("granitemoehybrid", fields);
  AttentionConfig attention = ReadGraniteAttention(model, fields);
  if (fields->Word("position_embedding_type", "") != "rope") {
    attention.rope = RopeConfig{.kind = RopeKind::kNone};
  }
  const AttentionConfig mamba = ReadGraniteMamba(model.hidden, fields);
  const uint32_t shared = fields->Number("shared_intermediate_size", 1, kMaxWidth, 1024);
  MoeConfig moe;
  if (fields->IsUnsigned("num_local_experts") && fields->Number("num_local_experts", 0, kMaxExperts) == 0) {
    moe = DenseFfn(shared, ReadActivation(fields));
    fields->Skip("num_experts_per_tok");
    fields->Skip("intermediate_size");
  } else {
    moe = ReadGraniteMixture(fields);
    moe.shared_width = shared;
  }
  const std::vector<std::string> types = ReadLayerTypes(
      {"mamba", "attention", "linear_attention", "full_attention"}, model.layers.size(), fields);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const bool attends = !types.empty() && (types[i] == "attention" || types[i] == "full_attention");
    model.layers[i] = {attends ? attention : mamba, moe};
  }
  fields->RequireWord("normalization_function", "rmsnorm");
  fields->Skip("init_method");
  return model;
}

void MapGraniteMoe(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    layer->GroupedAttention();
    MapGraniteExperts(layer);
  });
}

void MapGraniteMoeHybrid(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {}, mapper);
  MapLayers(config, "model.layers.", mapper, [](LayerMapper* layer) {
    if (layer->attention().kind == AttentionKind::kMamba) {
      layer->Mamba("mamba.");
    } else {
      layer->GroupedAttention();
    }
    if (layer->moe().experts > 0) MapGraniteExperts(layer);
    MapGraniteShared(layer);
  });
}

// LFM2-MoE (LiquidAI/LFM2-8B-A1B): short convolutions between attention with norms on each head of q and k,
// dense first layers, sigmoid router with a selection correction.

namespace {

MoeConfig ReadLfm2Mixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = fields->Flag("use_expert_bias", true);
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  moe.norm_epsilon = 1e-6f;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  return moe;
}

void MapConvolution(LayerMapper* layer) {
  const ShortConvConfig& conv = layer->attention().conv;
  layer->Dense(dense::kConvIn,
               layer->Matrix("conv.in_proj.weight", uint64_t{3} * conv.width, layer->hidden()));
  // Depthwise convolution: [channels, 1, kernel].
  layer->Dense(dense::kConvKernel, Transposed(layer->Stack("conv.conv.weight", conv.width, 1, conv.kernel)));
  layer->Dense(dense::kO, layer->Matrix("conv.out_proj.weight", layer->hidden(), conv.width));
  if (!conv.bias) return;
  layer->Dense(dense::kConvInBias, layer->Vector("conv.in_proj.bias", uint64_t{3} * conv.width));
  layer->Dense(dense::kConvBias, layer->Vector("conv.conv.bias", conv.width));
  layer->Dense(dense::kOBias, layer->Vector("conv.out_proj.bias", layer->hidden()));
}

}  // namespace

ModelConfig ReadLfm2Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("lfm2_moe", {.max_position = 128000}, fields);
  model.norm_epsilon = static_cast<float>(fields->Real("norm_eps", 0, 1, 1e-5));
  model.tied_embeddings = fields->Flag("tie_embedding", fields->Flag("tie_word_embeddings", true));
  AttentionConfig attention = ReadGrouped({.kv_heads = 8, .rope = {.theta = 1e6}}, model, fields);
  attention.qk_norm = QkNorm::kPerHead;
  AttentionConfig conv;
  conv.kind = AttentionKind::kShortConv;
  conv.rope = RopeConfig{.kind = RopeKind::kNone};
  conv.conv.width = model.hidden;
  conv.conv.kernel = fields->Number("conv_L_cache", 2, kMaxConvKernel, 3);
  conv.conv.bias = conv.output_bias = fields->Flag("conv_bias", false);
  const MoeConfig moe = ReadLfm2Mixture(fields);
  const MoeConfig dense = DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth), moe.activation);
  const uint32_t dense_layers = fields->Number("num_dense_layers", 0, kMaxLayers, 2);
  const std::vector<std::string> types =
      ReadLayerTypes({"conv", "full_attention"}, model.layers.size(), fields);
  if (types.empty()) fields->Fail("layer_types", "is missing");
  for (size_t i = 0; i < types.size(); ++i) {
    model.layers[i] = {types[i] == "conv" ? conv : attention, i < dense_layers ? dense : moe};
  }
  return model;
}

void MapLfm2Moe(const ModelConfig& config, TensorMapper* mapper) {
  MapEmbeddingAndHead(config, {.norm = "model.embedding_norm"}, mapper);
  MapLayers(
      config, "model.layers.", mapper,
      [](LayerMapper* layer) {
        const MoeConfig& moe = layer->moe();
        const FfnNames parts = {.gate = "w1", .up = "w3", .down = "w2"};
        if (layer->attention().kind == AttentionKind::kShortConv) {
          MapConvolution(layer);
        } else {
          layer->GroupedAttention({.q_norm = "q_layernorm", .k_norm = "k_layernorm", .o = "out_proj"});
        }
        if (moe.experts == 0) return layer->DenseFfn("feed_forward.", parts);
        layer->Dense(dense::kRouter, layer->Matrix("feed_forward.gate.weight", moe.experts, layer->hidden()));
        if (moe.router_correction) {
          layer->Dense(dense::kRouterCorrection, layer->Vector("feed_forward.expert_bias", moe.experts));
        }
        layer->Experts("feed_forward.experts.", parts);
      },
      {.attention = "operator_norm", .ffn = "ffn_norm"});
}

// Nemotron-H with experts (nvidia/Nemotron-3-Nano): every layer of the checkpoint is one block: Mamba-2,
// attention without rope, or an FFN without gates. A mixer and the FFN behind it make one layer here.

namespace {

// Reads the block types, one letter each: M mamba, * attention, E experts, - dense.
std::string ReadBlocks(HfFields* fields) {
  std::string blocks = fields->Word("hybrid_override_pattern", "");
  const size_t listed = fields->Words("layers_block_type").size();
  const std::vector<std::string> types = ReadLayerTypes({"linear_attention", "full_attention", "moe", "mlp"},
                                                        listed, fields, "layers_block_type");
  if (!types.empty()) blocks.clear();
  for (const std::string& type : types) {
    blocks += type == "linear_attention" ? 'M' : type == "full_attention" ? '*' : type == "moe" ? 'E' : '-';
  }
  if (blocks.empty() || blocks.size() > kMaxLayers || blocks.find_first_not_of("M*E-") != std::string::npos) {
    fields->Fail("hybrid_override_pattern",
                 "is missing, too long, or holds other letters than M, *, E and -");
    return "M";
  }
  return blocks;
}

AttentionConfig ReadNemotronMamba(HfFields* fields) {
  AttentionConfig attention;
  attention.kind = AttentionKind::kMamba;
  attention.rope = RopeConfig{.kind = RopeKind::kNone};
  MambaConfig& mamba = attention.mamba;
  mamba.heads = fields->Number("mamba_num_heads", 1, kMaxHeads, 128);
  mamba.head_dim = fields->Number("mamba_head_dim", 1, kMaxHeadDim, 64);
  mamba.groups = fields->Number("n_groups", 1, mamba.heads, 8);
  mamba.state = fields->Number("ssm_state_size", 1, kMaxHeadDim, 128);
  mamba.conv_kernel = fields->Number("conv_kernel", 1, kMaxConvKernel, 4);
  ReadTimeSteps(&mamba, fields);
  fields->RequireWord("mamba_hidden_act", "silu");
  fields->RequireFlag("use_conv_bias", true);
  fields->RequireOff("mamba_proj_bias");
  fields->RequireOff("use_bias");
  // Members for weight initialization, kernel availability and the chunking of rows.
  for (const char* key : {"time_step_min", "time_step_max", "time_step_floor", "use_mamba_kernels",
                          "chunk_size", "expand", "mamba_ssm_cache_dtype"}) {
    fields->Skip(key);
  }
  return attention;
}

MoeConfig ReadNemotronMixture(HfFields* fields) {
  MoeConfig moe = ReadDeepseekMixture(1, true, fields);
  const uint32_t shared = fields->Number("moe_shared_expert_intermediate_size", 1, kMaxWidth, 7688);
  if (moe.shared_width > 0) moe.shared_width = shared;
  moe.router = RouterKind::kSigmoidTopK;
  moe.router_correction = true;
  moe.group_score = GroupScore::kTopTwoSum;
  moe.routed_scale = static_cast<float>(fields->Real("routed_scaling_factor", 1e-6, 1e6, 1));
  ReadGroups(1, 1, &moe, fields);
  moe.activation = Activation::kRelu2;
  fields->RequireWord("mlp_hidden_act", "relu2");
  moe.shared_apart = fields->Has("moe_latent_size") && moe.shared_width > 0;
  fields->Skip("moe_shared_expert_overlap");
  return moe;
}

// Pairs each mixer with the FFN right behind it; a block without a partner makes a layer alone.
std::vector<LayerConfig> PairBlocks(const std::string& blocks, const AttentionConfig& mamba,
                                    const AttentionConfig& attention, const MoeConfig& moe,
                                    const MoeConfig& dense) {
  const AttentionConfig none = {.kind = AttentionKind::kNone, .rope = {.kind = RopeKind::kNone}};
  std::vector<LayerConfig> layers;
  for (const char block : blocks) {
    if (block == 'M' || block == '*') {
      layers.push_back({block == 'M' ? mamba : attention, {}});
      continue;
    }
    if (layers.empty() || HasFfn(layers.back())) layers.push_back({none, {}});
    layers.back().moe = block == 'E' ? moe : dense;
  }
  return layers;
}

void MapFfn(LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  if (moe.experts == 0) return layer->DenseFfn("mixer.");
  layer->Dense(dense::kRouter, layer->Matrix("mixer.gate.weight", moe.experts, layer->hidden()));
  layer->Dense(dense::kRouterCorrection, layer->Vector("mixer.gate.e_score_correction_bias", moe.experts));
  if (layer->latent_width() > 0) {
    layer->Dense(dense::kLatentDown,
                 layer->Matrix("mixer.fc1_latent_proj.weight", layer->latent_width(), layer->hidden()));
    layer->Dense(dense::kLatentUp,
                 layer->Matrix("mixer.fc2_latent_proj.weight", layer->hidden(), layer->latent_width()));
  }
  layer->Experts("mixer.experts.", {});
  if (moe.shared_width != 0) layer->SharedExpert("mixer.shared_experts.");
}

}  // namespace

ModelConfig ReadNemotronH(HfFields* fields) {
  const std::string blocks = ReadBlocks(fields);
  ModelConfig model = ReadBaseConfig(
      "nemotron_h", {.max_position = 4096, .layers = static_cast<uint32_t>(blocks.size())}, fields);
  model.norm_epsilon =
      static_cast<float>(fields->Real("layer_norm_epsilon", 0, 1, fields->Real("norm_eps", 0, 1, 1e-5)));
  AttentionConfig attention = ReadGrouped({.kv_heads = 8, .head_dim = 128}, model, fields);
  attention.rope = RopeConfig{.kind = RopeKind::kNone};
  fields->RequireOff("attention_bias");
  fields->RequireOff("sliding_window");
  const MoeConfig moe = ReadNemotronMixture(fields);
  const MoeConfig dense =
      DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth, 21504), Activation::kRelu2);
  model.latent_width = fields->Number("moe_latent_size", 1, kMaxHidden, 0);
  const AttentionConfig mamba = ReadNemotronMamba(fields);
  if (blocks.size() != model.layers.size()) {
    fields->Fail("num_hidden_layers",
                 absl::StrCat("is ", model.layers.size(), ", but there are ", blocks.size(), " blocks"));
  }
  model.layers = PairBlocks(blocks, mamba, attention, moe, dense);
  for (const char* key : {"residual_in_fp32", "rescale_prenorm_residual", "num_logits_to_keep",
                          "num_nextn_predict_layers", "mtp_hybrid_override_pattern"}) {
    fields->Skip(key);
  }
  return model;
}

void MapNemotronH(const ModelConfig& config, TensorMapper* mapper) {
  mapper->IgnorePrefix("mtp.");
  MapEmbeddingAndHead(config, {.embed = "backbone.embeddings.weight", .norm = "backbone.norm_f"}, mapper);
  uint32_t block = 0;
  const auto next = [&block] { return absl::StrCat("backbone.layers.", block++, "."); };
  for (uint32_t i = 0; i < config.layers.size() && mapper->ok(); ++i) {
    if (HasAttention(config.layers[i])) {
      LayerMapper mixer(config, i, next(), mapper);
      mixer.Norms({.attention = "norm", .ffn = nullptr});
      if (mixer.attention().kind == AttentionKind::kMamba) {
        mixer.Mamba("mixer.");
      } else {
        mixer.GroupedAttention({.base = "mixer."});
      }
    }
    if (HasFfn(config.layers[i])) {
      LayerMapper ffn(config, i, next(), mapper);
      ffn.Norms({.attention = nullptr, .ffn = "norm"});
      MapFfn(&ffn);
    }
  }
}

// Qwen3-Next (Qwen/Qwen3-Next-80B-A3B, Qwen3-Coder-Next) and Qwen3.5-MoE text (Qwen/Qwen3.5-35B-A3B): gated
// DeltaNet layers between full attention with an output gate; norms that add 1 to their weights; shared
// expert with a gate.

AttentionConfig ReadGatedDelta(HfFields* fields) {
  AttentionConfig attention;
  attention.kind = AttentionKind::kGatedDelta;
  attention.rope = RopeConfig{.kind = RopeKind::kNone};
  attention.delta.key_heads = fields->Number("linear_num_key_heads", 1, kMaxHeads, 16);
  attention.delta.value_heads = fields->Number("linear_num_value_heads", 1, kMaxHeads, 32);
  attention.delta.key_dim = fields->Number("linear_key_head_dim", 1, kMaxHeadDim, 128);
  attention.delta.value_dim = fields->Number("linear_value_head_dim", 1, kMaxHeadDim, 128);
  attention.delta.conv_kernel = fields->Number("linear_conv_kernel_dim", 1, kMaxConvKernel, 4);
  if (attention.delta.value_heads % attention.delta.key_heads != 0) {
    fields->Fail("linear_num_key_heads",
                 absl::StrCat("is ", attention.delta.key_heads, ", which does not divide the ",
                              attention.delta.value_heads, " value heads"));
  }
  return attention;
}

namespace {

// Qwen3-Next's two projections: each key head has its rows of q, k, v and z, and of beta and decay.
void MapGroupedDelta(LayerMapper* layer) {
  const DeltaConfig& delta = layer->attention().delta;
  const uint32_t heads = delta.key_heads;
  const uint32_t sharers = delta.value_heads / heads;
  const uint32_t keys = delta.key_dim;
  const uint32_t values = sharers * delta.value_dim;
  const SourceMatrix all = layer->Matrix("linear_attn.in_proj_qkvz.weight",
                                         uint64_t{2} * heads * (keys + values), layer->hidden());
  layer->Dense(dense::kDeltaQkv,
               Stacked(RowsOfBlocks(all, heads, 0, keys),
                       {RowsOfBlocks(all, heads, keys, keys), RowsOfBlocks(all, heads, 2 * keys, values)}));
  layer->Dense(dense::kDeltaZ, RowsOfBlocks(all, heads, 2 * keys + values, values));
  const SourceMatrix gates =
      layer->Matrix("linear_attn.in_proj_ba.weight", uint64_t{2} * delta.value_heads, layer->hidden());
  layer->Dense(dense::kDeltaBeta, RowsOfBlocks(gates, heads, 0, sharers));
  layer->Dense(dense::kDeltaDecay, RowsOfBlocks(gates, heads, sharers, sharers));
}

}  // namespace

void MapGatedDelta(LayerMapper* layer) {
  const DeltaConfig& delta = layer->attention().delta;
  const uint32_t values = delta.value_heads * delta.value_dim;
  const uint32_t conv_cols = 2 * delta.key_heads * delta.key_dim + values;
  const uint32_t hidden = layer->hidden();
  if (layer->Has("linear_attn.in_proj_qkvz.weight")) {
    MapGroupedDelta(layer);
  } else {
    layer->Dense(dense::kDeltaQkv, layer->Matrix("linear_attn.in_proj_qkv.weight", conv_cols, hidden));
    layer->Dense(dense::kDeltaZ, layer->Matrix("linear_attn.in_proj_z.weight", values, hidden));
    layer->Dense(dense::kDeltaBeta, layer->Matrix("linear_attn.in_proj_b.weight", delta.value_heads, hidden));
    layer->Dense(dense::kDeltaDecay,
                 layer->Matrix("linear_attn.in_proj_a.weight", delta.value_heads, hidden));
  }
  // Depthwise convolution: [channels, 1, kernel].
  layer->Dense(dense::kDeltaConv, layer->Stack("linear_attn.conv1d.weight", conv_cols, 1, delta.conv_kernel));
  layer->Dense(dense::kDeltaALog, layer->Vector("linear_attn.A_log", delta.value_heads));
  layer->Dense(dense::kDeltaDtBias, layer->Vector("linear_attn.dt_bias", delta.value_heads));
  layer->Dense(dense::kDeltaNorm, layer->Vector("linear_attn.norm.weight", delta.value_dim));
  layer->Dense(dense::kO, layer->Matrix("linear_attn.out_proj.weight", hidden, values));
}

void MapGatedAttention(LayerMapper* layer) {
  const AttentionConfig& a = layer->attention();
  const uint32_t q_rows = a.heads * a.head_dim;
  const uint32_t kv_rows = a.kv_heads * a.head_dim;
  // Each head has head_dim lines of q, then as many of its gate.
  const SourceMatrix both = layer->Matrix("self_attn.q_proj.weight", uint64_t{2} * q_rows, layer->hidden());
  layer->Dense(dense::kQ, RowsOfBlocks(both, a.heads, 0, a.head_dim));
  layer->Dense(dense::kQGate, RowsOfBlocks(both, a.heads, a.head_dim, a.head_dim));
  layer->Dense(dense::kK, layer->Matrix("self_attn.k_proj.weight", kv_rows, layer->hidden()));
  layer->Dense(dense::kV, layer->Matrix("self_attn.v_proj.weight", kv_rows, layer->hidden()));
  layer->Dense(dense::kO, layer->Matrix("self_attn.o_proj.weight", layer->hidden(), q_rows));
  layer->Dense(dense::kQNorm, PlusOne(layer->Vector("self_attn.q_norm.weight", a.head_dim)));
  layer->Dense(dense::kKNorm, PlusOne(layer->Vector("self_attn.k_norm.weight", a.head_dim)));
}

MoeConfig ReadGatedMixture(HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"num_experts", "num_local_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  moe.shared_width = fields->Number("shared_expert_intermediate_size", 1, kMaxWidth);
  moe.shared_gate = true;
  fields->RequireWord("hidden_act", "silu");  // also the convolution's activation
  return moe;
}

AttentionConfig ReadGatedAttention(const ModelConfig& model, HfFields* fields) {
  AttentionConfig full = ReadGrouped(
      {.kv_heads = 2, .head_dim = 256, .rope = {.partial = 0.25, .may_be_partial = true}}, model, fields);
  full.qk_norm = QkNorm::kPerHead;
  full.output_gate = true;
  fields->RequireOff("attention_bias");
  return full;
}

namespace {

// Reads the attention kinds: full attention in every full_attention_interval-th layer, or by layer_types.
void ReadAttention(ModelConfig* model, HfFields* fields) {
  const AttentionConfig full = ReadGatedAttention(*model, fields);
  const AttentionConfig delta = ReadGatedDelta(fields);
  const uint32_t interval = fields->Number("full_attention_interval", 1, kMaxLayers, 4);
  const std::vector<std::string> types =
      ReadLayerTypes({"linear_attention", "full_attention"}, model->layers.size(), fields);
  for (size_t i = 0; i < model->layers.size(); ++i) {
    const bool is_full = types.empty() ? (i + 1) % interval == 0 : types[i] == "full_attention";
    model->layers[i].attention = is_full ? full : delta;
  }
}

}  // namespace

ModelConfig ReadQwen35Moe(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("qwen3_5_moe_text", {.max_position = 32768}, fields);
  const MoeConfig moe = ReadGatedMixture(fields);
  ReadAttention(&model, fields);
  for (LayerConfig& layer : model.layers) layer.moe = moe;
  fields->Skip("intermediate_size");  // of dense layers; the family has none
  fields->RequireNumber("decoder_sparse_step", 1);
  if (!fields->Numbers("mlp_only_layers", kMaxLayers).empty()) fields->Refuse("mlp_only_layers");
  fields->RequireFlag("attn_output_gate", true);
  fields->RequireFlag("norm_topk_prob", true);
  fields->Skip("mamba_ssm_dtype");
  fields->Skip("mtp_num_hidden_layers");
  fields->RequireOff("mtp_use_dedicated_embeddings");
  return model;
}

ModelConfig ReadQwen3Next(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("qwen3_next", {.max_position = 32768}, fields);
  MoeConfig moe = ReadGatedMixture(fields);
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", true);
  ReadAttention(&model, fields);
  SetQwenFfns(moe, &model, fields);
  return model;
}

void MapGatedMixture(LayerMapper* layer) {
  layer->Dense(dense::kRouter, layer->Matrix("mlp.gate.weight", layer->moe().experts, layer->hidden()));
  layer->Experts("mlp.experts.", {});
  layer->SharedExpert("mlp.shared_expert.");
  layer->Dense(dense::kSharedRouter, layer->Matrix("mlp.shared_expert_gate.weight", 1, layer->hidden()));
}

// Maps text checkpoints, and the language model of multimodal ones.
void MapQwen35Moe(const ModelConfig& config, TensorMapper* mapper) {
  const bool nested = mapper->Has("model.language_model.embed_tokens.weight");
  const std::string inner = nested ? "model.language_model." : "model.";
  mapper->IgnorePrefix("mtp.");
  if (nested) mapper->IgnorePrefix("model.visual.");
  MapEmbeddingAndHead(
      config, {.embed = inner + "embed_tokens.weight", .norm = inner + "norm", .plus_one = true}, mapper);
  MapLayers(config, inner + "layers.", mapper,
            [](LayerMapper* layer) {
              if (layer->attention().kind == AttentionKind::kGatedDelta) {
                MapGatedDelta(layer);
              } else {
                MapGatedAttention(layer);
              }
              if (layer->moe().experts == 0) return layer->DenseFfn("mlp.");
              MapGatedMixture(layer);
            },
            {.plus_one = true});
}

}  // namespace sluice
