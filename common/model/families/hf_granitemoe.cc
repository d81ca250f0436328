// Granite-MoE (ibm-granite/granite-3.x-1b-a400m, 3b-a800m): multipliers, experts fused in two tensors; and
// its hybrid (granite-4.0-h): Mamba-2 between attention layers, most without rope, and a shared expert.
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
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
  layer->Dense(only ? dense::kDenseGate : dense::kSharedGate, Rows(both, 0, width));
  layer->Dense(only ? dense::kDenseUp : dense::kSharedUp, Rows(both, width, width));
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

}  // namespace sluice
