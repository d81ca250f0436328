// Nemotron-H with experts (nvidia/Nemotron-3-Nano): every layer of the checkpoint is one block: Mamba-2,
// attention without rope, or an FFN without gates. A mixer and the FFN behind it make one layer here.
#include "common/model/dense_names.h"
#include "common/model/families/blocks/hf_blocks.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/families/hf_families.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

// Reads the block types, one letter each: M mamba, * attention, E experts, - dense.
std::string ReadBlocks(size_t layers, HfFields* fields) {
  std::string blocks = fields->Word("hybrid_override_pattern", "");
  const std::vector<std::string> types = ReadLayerTypes({"linear_attention", "full_attention", "moe", "mlp"},
                                                        layers, fields, "layers_block_type");
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
  fields->RequireOff("moe_latent_size");
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
  layer->Experts("mixer.experts.", {});
  if (moe.shared_width != 0) layer->SharedExpert("mixer.shared_experts.");
}

}  // namespace

ModelConfig ReadNemotronH(HfFields* fields) {
  ModelConfig model = ReadBaseConfig("nemotron_h", {.max_position = 4096}, fields);
  model.norm_epsilon =
      static_cast<float>(fields->Real("layer_norm_epsilon", 0, 1, fields->Real("norm_eps", 0, 1, 1e-5)));
  AttentionConfig attention = ReadGrouped({.kv_heads = 8, .head_dim = 128}, model, fields);
  attention.rope = RopeConfig{.kind = RopeKind::kNone};
  fields->RequireOff("attention_bias");
  fields->RequireOff("sliding_window");
  const MoeConfig moe = ReadNemotronMixture(fields);
  const MoeConfig dense =
      DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth, 21504), Activation::kRelu2);
  const AttentionConfig mamba = ReadNemotronMamba(fields);
  const std::string blocks = ReadBlocks(model.layers.size(), fields);
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

}  // namespace sluice
