#include "common/model/families/blocks/hf_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/model/model_limits.h"

namespace sluice {
namespace {

constexpr double kMaxTheta = 1e30;
constexpr double kMaxFactor = 1e9;

// All members that rope_scaling or rope_parameters may hold. Older files have the first, newer files the
// second, some have both. They are read one after the other into the same members, so the newer one wins.
struct RopeMembers {
  std::string type = "default";
  double theta = 0;
  double partial = 1;
  double factor = 0;  // 0: absent
  uint32_t original_max_position = 0;
  double attention_factor = 0;
  double beta_fast = 0;
  double beta_slow = 0;
  double mscale = 0;
  double mscale_all_dim = 0;
  bool truncate = true;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::vector<double> short_factor;
  std::vector<double> long_factor;
  double short_mscale = 0;
  double long_mscale = 0;
  double temperature = 0;
  double alpha = 0;
};

void ReadRopeMembers(HfFields* fields, RopeMembers* rope) {
  rope->type = fields->Word("rope_type", fields->Word("type", rope->type));
  rope->theta = fields->Real("rope_theta", 1e-3, kMaxTheta, rope->theta);
  rope->partial = fields->Real("partial_rotary_factor", 0, 1, rope->partial);
  rope->factor = fields->Real("factor", 0, kMaxFactor, rope->factor);
  rope->original_max_position =
      fields->Number("original_max_position_embeddings", 1, kMaxPosition, rope->original_max_position);
  rope->attention_factor = fields->Real("attention_factor", 0, kMaxFactor, rope->attention_factor);
  rope->beta_fast = fields->Real("beta_fast", 0, kMaxFactor, rope->beta_fast);
  rope->beta_slow = fields->Real("beta_slow", 0, kMaxFactor, rope->beta_slow);
  rope->mscale = fields->Real("mscale", 0, kMaxFactor, rope->mscale);
  rope->mscale_all_dim = fields->Real("mscale_all_dim", 0, kMaxFactor, rope->mscale_all_dim);
  rope->truncate = fields->Flag("truncate", rope->truncate);
  rope->low_freq_factor = fields->Real("low_freq_factor", 0, kMaxFactor, rope->low_freq_factor);
  rope->high_freq_factor = fields->Real("high_freq_factor", 0, kMaxFactor, rope->high_freq_factor);
  if (fields->Has("short_factor")) rope->short_factor = fields->Reals("short_factor", 1e-9, kMaxFactor);
  if (fields->Has("long_factor")) rope->long_factor = fields->Reals("long_factor", 1e-9, kMaxFactor);
  rope->short_mscale = fields->Real("short_mscale", 0, kMaxFactor, rope->short_mscale);
  rope->long_mscale = fields->Real("long_mscale", 0, kMaxFactor, rope->long_mscale);
  rope->temperature = fields->Real("llama_4_scaling_beta", 0, kMaxFactor, rope->temperature);
  rope->alpha = fields->Real("alpha", 0, kMaxFactor, rope->alpha);
  // Sections of multimodal positions: text tokens have the same position in all of them.
  fields->Skip("mrope_section");
  fields->Skip("mrope_interleaved");
}

// Order of precedence in transformers: an explicit factor, then the ratio of the two mscales (DeepSeek), then
// the paper's 0.1 ln(factor) + 1.
double YarnAttentionFactor(const RopeMembers& members, double factor) {
  if (members.attention_factor != 0) return members.attention_factor;
  if (members.mscale != 0 && members.mscale_all_dim != 0) {
    return YarnMscale(factor, members.mscale) / YarnMscale(factor, members.mscale_all_dim);
  }
  return YarnMscale(factor, 1);
}

// LongRoPE (Phi-3.5): one divisor for each rotated pair, in one set for short and one for long sequences.
// Phi-MoE configs hold the attention factors of both sets; for other models they are computed.
void SetLongRope(const RopeMembers& members, bool mscales, const char* name, RopeConfig* rope,
                 HfFields* fields) {
  const size_t pairs = rope->dimensions / 2;
  if (members.short_factor.size() != pairs || members.long_factor.size() != pairs) {
    fields->Fail(name, absl::StrCat("has short_factor and long_factor of ", members.short_factor.size(),
                                    " and ", members.long_factor.size(), " numbers, expected ", pairs));
  }
  rope->short_factors = members.short_factor;
  rope->long_factors = members.long_factor;
  if (mscales) {
    if (members.short_mscale == 0 || members.long_mscale == 0) {
      fields->Fail(name, "has no short_mscale or no long_mscale");
    }
    rope->attention_factor = members.short_mscale;
    rope->long_attention_factor = members.long_mscale;
    return;
  }
  rope->attention_factor = members.attention_factor;
  if (rope->attention_factor == 0) {
    rope->attention_factor =
        rope->factor <= 1 || rope->original_max_position < 2
            ? 1.0
            : std::sqrt(1 + std::log(rope->factor) / std::log(rope->original_max_position));
  }
  rope->long_attention_factor = rope->attention_factor;
}

}  // namespace

ModelConfig ReadBaseConfig(const std::string& family, const BaseDefaults& defaults, HfFields* fields) {
  ModelConfig model;
  model.family = family;
  model.vocab = fields->Number("vocab_size", 1, kMaxVocab);
  model.hidden = fields->Number("hidden_size", 1, kMaxHidden);
  model.max_position = fields->Number("max_position_embeddings", 1, kMaxPosition, defaults.max_position);
  model.norm_epsilon = static_cast<float>(fields->Real("rms_norm_eps", 0, 1, defaults.epsilon));
  model.tied_embeddings = fields->Flag("tie_word_embeddings", false);
  model.layers.resize(fields->Number("num_hidden_layers", 1, kMaxLayers));
  return model;
}

double YarnMscale(double scale, double mscale) {
  return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

RopeFields ReadRope(const RopeDefaults& defaults, uint32_t head_dim, uint32_t max_position,
                    HfFields* fields) {
  RopeMembers members;
  members.theta = fields->Real("rope_theta", 1e-3, kMaxTheta, defaults.theta);
  members.partial = fields->Real("partial_rotary_factor", 0, 1, defaults.partial);
  const char* name = "rope_scaling";
  for (const char* member : {"rope_scaling", "rope_parameters"}) {
    fields->Group(member, [&](HfFields* group) {
      name = member;
      ReadRopeMembers(group, &members);
    });
  }
  // The outer member overrides the one inside the group, and some models have only the outer one.
  members.original_max_position =
      fields->Number("original_max_position_embeddings", 1, kMaxPosition, members.original_max_position);
  if (members.original_max_position == 0) members.original_max_position = max_position;
  if (members.partial != 1 && !defaults.may_be_partial) {
    fields->Refuse(name, absl::StrCat("with partial_rotary_factor ", members.partial));
  }
  if (members.temperature != 0 && !defaults.temperature) {
    fields->Refuse(name, absl::StrCat("with llama_4_scaling_beta ", members.temperature));
  }
  RopeFields result;
  result.mscale_all_dim = members.mscale_all_dim;
  result.temperature = members.temperature;
  RopeConfig& rope = result.rope;
  rope.theta = members.theta;
  rope.dimensions = static_cast<uint32_t>(head_dim * members.partial);
  if (members.alpha != 0 && !defaults.alpha) {
    fields->Refuse(name, absl::StrCat("with alpha ", members.alpha));
  }
  if (members.alpha != 0 && members.type == "dynamic" && rope.dimensions > 2) {
    // The other members of this kind have no effect then.
    rope.theta *= std::pow(members.alpha, rope.dimensions / (rope.dimensions - 2.0));
    if (rope.theta > kMaxTheta)
      fields->Fail(name, absl::StrCat("has alpha ", members.alpha, ": theta passes 1e30"));
    rope.theta = std::min(rope.theta, kMaxTheta);
    return result;
  }
  if (members.type == "default") return result;
  rope.original_max_position = members.original_max_position;
  rope.factor = members.factor;
  if (rope.factor == 0) rope.factor = static_cast<double>(max_position) / rope.original_max_position;
  if (members.type == "linear") {
    rope.kind = RopeKind::kLinear;
  } else if (members.type == "yarn") {
    rope.kind = RopeKind::kYarn;
    rope.attention_factor = YarnAttentionFactor(members, rope.factor);
    if (members.beta_fast != 0) rope.beta_fast = members.beta_fast;
    if (members.beta_slow != 0) rope.beta_slow = members.beta_slow;
    rope.truncate = members.truncate;
  } else if (members.type == "longrope") {
    rope.kind = RopeKind::kLongRope;
    SetLongRope(members, defaults.mscales, name, &rope, fields);
  } else if (members.type == "llama3") {
    rope.kind = RopeKind::kLlama3;
    rope.low_freq_factor = members.low_freq_factor;
    rope.high_freq_factor = members.high_freq_factor;
  } else {
    fields->Refuse(name, absl::StrCat("of rope_type ", JsonExcerpt(nlohmann::json(members.type))));
  }
  return result;
}

AttentionConfig ReadGrouped(const GroupedDefaults& defaults, const ModelConfig& model, HfFields* fields) {
  AttentionConfig attention;
  attention.heads = fields->Number("num_attention_heads", 1, kMaxHeads);
  const bool as_heads = defaults.kv_heads == 0 || fields->IsNull("num_key_value_heads");
  attention.kv_heads =
      fields->Number("num_key_value_heads", 1, kMaxHeads, as_heads ? attention.heads : defaults.kv_heads);
  if (attention.heads % attention.kv_heads != 0) {
    fields->Fail("num_key_value_heads",
                 absl::StrCat("is ", attention.kv_heads, ", which does not divide the ", attention.heads,
                              " attention heads"));
  }
  if (fields->Has("head_dim")) {
    attention.head_dim = fields->Number("head_dim", 2, kMaxHeadDim);
  } else if (defaults.head_dim != 0) {
    attention.head_dim = defaults.head_dim;
  } else if (model.hidden % attention.heads != 0) {
    fields->Fail("hidden_size", absl::StrCat("is ", model.hidden, ", no multiple of the ", attention.heads,
                                             " attention heads, and there is no head_dim"));
  } else {
    attention.head_dim = model.hidden / attention.heads;
  }
  attention.head_dim = std::max(attention.head_dim, 1u);
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
  attention.rope = ReadRope(defaults.rope, attention.head_dim, model.max_position, fields).rope;
  if (attention.rope.dimensions < 2 || attention.rope.dimensions % 2 != 0) {
    fields->Fail("head_dim", absl::StrCat("is ", attention.head_dim, ", of which ", attention.rope.dimensions,
                                          " are rotated; rope needs an even number"));
  }
  return attention;
}

Activation ReadActivation(HfFields* fields, const char* key, const char* fallback) {
  const std::string name = fields->Word(key, fallback);
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  if (name != "silu" && name != "swish") fields->Refuse(key);
  return Activation::kSilu;
}

void ReadExperts(const std::vector<const char*>& keys, MoeConfig* moe, HfFields* fields) {
  // The last name present counts; if none is present the error names the first.
  const char* found = keys[0];
  for (const char* key : keys) {
    if (fields->Has(key)) found = key;
  }
  moe->experts = fields->Number(found, 1, kMaxExperts);
  moe->top_k = fields->Number("num_experts_per_tok", 1, kMaxExperts);
  if (moe->top_k > moe->experts) {
    fields->Fail("num_experts_per_tok",
                 absl::StrCat("is ", moe->top_k, ", but there are ", moe->experts, " experts"));
  }
}

MoeConfig DenseFfn(uint32_t width, Activation activation) {
  MoeConfig dense;
  dense.dense_width = width;
  dense.activation = activation;
  return dense;
}

MoeConfig ReadDeepseekMixture(uint32_t shared, bool norm_topk_prob, HfFields* fields) {
  MoeConfig moe;
  ReadExperts({"n_routed_experts", "num_local_experts", "num_experts"}, &moe, fields);
  moe.expert_width = fields->Number("moe_intermediate_size", 1, kMaxWidth);
  const uint64_t widths = fields->Number("n_shared_experts", 0, kMaxExperts, shared);
  if (widths * moe.expert_width > kMaxWidth) {
    fields->Fail("n_shared_experts", absl::StrCat("is ", widths, "; the shared FFN passes ", kMaxWidth));
  } else {
    moe.shared_width = static_cast<uint32_t>(widths * moe.expert_width);
  }
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", norm_topk_prob);
  moe.activation = ReadActivation(fields);
  fields->RequireOff("mlp_bias");
  return moe;
}

void ReadGroups(uint32_t groups, uint32_t top_groups, MoeConfig* moe, HfFields* fields) {
  groups = fields->Number("n_group", 1, kMaxExperts, groups);
  top_groups = fields->Number("topk_group", 1, kMaxExperts, top_groups);
  if (groups == 1) return;
  moe->groups = groups;
  moe->top_groups = top_groups;
}

void SetDeepseekFfns(uint32_t first_dense, const MoeConfig& moe, ModelConfig* model, HfFields* fields) {
  const MoeConfig dense = DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth), moe.activation);
  first_dense = fields->Number("first_k_dense_replace", 0, kMaxLayers, first_dense);
  const uint32_t frequency = fields->Number("moe_layer_freq", 1, kMaxLayers, 1);
  for (uint32_t i = 0; i < model->layers.size(); ++i) {
    // The frequency counts from layer 0, not from the first layer with experts, as in the reference.
    model->layers[i].moe = i >= first_dense && i % frequency == 0 ? moe : dense;
  }
}

void ReadTimeSteps(MambaConfig* mamba, HfFields* fields) {
  const std::vector<double> limits =
      fields->Reals("time_step_limit", 0, std::numeric_limits<double>::infinity());
  if (limits.empty()) return;
  if (limits.size() != 2 || !(limits[1] > limits[0]) || limits[0] > kMaxFactor) {
    return fields->Fail("time_step_limit", "is no pair of a smallest and a largest time step");
  }
  mamba->min_step = static_cast<float>(limits[0]);
  mamba->max_step = std::isinf(limits[1]) ? 0.0f : static_cast<float>(std::min(limits[1], kMaxFactor));
}

void SetQwenFfns(const MoeConfig& moe, ModelConfig* model, HfFields* fields) {
  const MoeConfig dense = DenseFfn(fields->Number("intermediate_size", 1, kMaxWidth), moe.activation);
  const uint32_t step = fields->Number("decoder_sparse_step", 1, kMaxLayers, 1);
  const std::vector<uint32_t> only_dense = fields->Numbers("mlp_only_layers", kMaxLayers);
  for (uint32_t i = 0; i < model->layers.size(); ++i) {
    const bool listed = std::find(only_dense.begin(), only_dense.end(), i) != only_dense.end();
    model->layers[i].moe = listed || (i + 1) % step != 0 ? dense : moe;
  }
}

std::vector<std::string> ReadLayerTypes(const std::vector<std::string>& words, size_t layers,
                                        HfFields* fields, const char* key) {
  std::vector<std::string> types = fields->Words(key);
  if (types.empty()) return types;
  if (types.size() != layers) {
    fields->Fail(key, absl::StrCat("has ", types.size(), " entries for ", layers, " layers"));
    types.resize(layers);
  }
  for (const std::string& type : types) {
    if (std::find(words.begin(), words.end(), type) == words.end()) fields->Refuse(key);
  }
  return types;
}

}  // namespace sluice
