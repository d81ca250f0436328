#include "common/model/hf_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/model/dense_names.h"
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
  model.layers.resize(defaults.layers > 0
                          ? fields->Number("num_hidden_layers", 1, kMaxLayers, defaults.layers)
                          : fields->Number("num_hidden_layers", 1, kMaxLayers));
  return model;
}

double YarnMscale(double scale, double mscale) {
  return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

namespace {

// Makes the position encoding of what the object `name` holds.
RopeFields MakeRope(RopeMembers members, const char* name, const RopeDefaults& defaults, uint32_t head_dim,
                    uint32_t max_position, HfFields* fields) {
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

}  // namespace

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
  return MakeRope(members, name, defaults, head_dim, max_position, fields);
}

RopeFields ReadRopeObject(const char* member, const RopeDefaults& defaults, uint32_t head_dim,
                          uint32_t max_position, HfFields* fields) {
  RopeMembers members;
  members.theta = defaults.theta;
  members.partial = defaults.partial;
  fields->Group(member, [&](HfFields* group) { ReadRopeMembers(group, &members); });
  return MakeRope(members, member, defaults, head_dim, max_position, fields);
}

RopeConfig ReadRopeOfType(const char* type, const RopeDefaults& defaults, uint32_t head_dim,
                          uint32_t max_position, HfFields* fields) {
  RopeConfig rope;
  bool is_there = false;
  fields->Group("rope_parameters", [&](HfFields* types) {
    const bool full = types->Has("full_attention");
    is_there = types->Has("sliding_attention") || full;
    RopeDefaults of_object = defaults;
    of_object.partial = 1;
    if (is_there) {
      rope = ReadRopeObject(type, of_object, head_dim, max_position, types).rope;
    } else {
      for (const std::string& key : types->Keys()) types->Skip(key);  // read below
    }
  });
  if (is_there) return rope;
  return ReadRopeObject("rope_parameters", defaults, head_dim, max_position, fields).rope;
}

AttentionConfig ReadHeads(const GroupedDefaults& defaults, const ModelConfig& model, HfFields* fields) {
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
  attention.rope = RopeConfig{.kind = RopeKind::kNone};
  return attention;
}

void SetRope(const RopeConfig& rope, AttentionConfig* attention, HfFields* fields) {
  attention->rope = rope;
  if (rope.dimensions < 2 || rope.dimensions % 2 != 0) {
    fields->Fail("head_dim", absl::StrCat("is ", attention->head_dim, ", of which ", rope.dimensions,
                                          " are rotated; rope needs an even number"));
  }
}

AttentionConfig ReadGrouped(const GroupedDefaults& defaults, const ModelConfig& model, HfFields* fields) {
  AttentionConfig attention = ReadHeads(defaults, model, fields);
  SetRope(ReadRope(defaults.rope, attention.head_dim, model.max_position, fields).rope, &attention, fields);
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
  moe.shared_width = ReadSharedWidth("n_shared_experts", shared, moe.expert_width, fields);
  moe.norm_topk_prob = fields->Flag("norm_topk_prob", norm_topk_prob);
  moe.activation = ReadActivation(fields);
  fields->RequireOff("mlp_bias");
  return moe;
}

uint32_t ReadSharedWidth(const char* key, uint32_t fallback, uint32_t width, HfFields* fields) {
  const uint64_t count = fields->Number(key, 0, kMaxExperts, fallback);
  if (count * width > kMaxWidth) {
    fields->Fail(key, absl::StrCat("is ", count, "; the shared FFN passes ", kMaxWidth));
    return 0;
  }
  return static_cast<uint32_t>(count * width);
}

std::vector<bool> ReadSparseLayers(size_t layers, HfFields* fields) {
  std::vector<bool> sparse;
  for (const std::string& type : ReadLayerTypes({"dense", "sparse"}, layers, fields, "mlp_layer_types")) {
    sparse.push_back(type == "sparse");
  }
  return sparse;
}

void SetFfns(const std::vector<bool>& sparse, const MoeConfig& moe, uint32_t dense_width,
             ModelConfig* model) {
  MoeConfig dense = DenseFfn(dense_width, moe.activation);
  dense.activation_alpha = moe.activation_alpha;
  dense.activation_limit = moe.activation_limit;
  for (size_t i = 0; i < model->layers.size(); ++i) model->layers[i].moe = sparse[i] ? moe : dense;
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

void LayerMapper::Dense(std::string_view canonical, const SourceMatrix& matrix) {
  mapper_->Dense(dense::LayerName(layer_, canonical), matrix);
}

void LayerMapper::Norms(const LayerNormNames& names) {
  struct Norm {
    const char* name;
    std::string_view weight;
    std::string_view bias;
  };
  // MiMo's MTP layers have another name for it.
  const bool renamed = IsMtpLayer(config_, layer_) && Has("pre_mlp_layernorm.weight");
  const Norm norms[] = {{names.attention, dense::kAttnNorm, dense::kAttnNormBias},
                        {renamed ? "pre_mlp_layernorm" : names.ffn, dense::kFfnNorm, dense::kFfnNormBias},
                        {names.attention_post, dense::kAttnPostNorm, {}},
                        {names.ffn_post, dense::kFfnPostNorm, {}}};
  for (const Norm& norm : norms) {
    if (norm.name == nullptr) continue;
    const SourceMatrix weight = Vector(absl::StrCat(norm.name, ".weight"), hidden());
    Dense(norm.weight, names.plus_one ? PlusOne(weight) : weight);
    if (!HasNormBias(config_) || norm.bias.empty()) continue;
    Dense(norm.bias, Vector(absl::StrCat(norm.name, ".bias"), hidden()));
  }
}

void LayerMapper::GroupedAttention(const AttentionNames& names) {
  const AttentionConfig& a = attention();
  const std::string& base = names.base;
  const uint32_t q_rows = a.heads * a.head_dim;
  const uint32_t kv_rows = a.kv_heads * a.head_dim;
  const uint32_t v_rows = a.kv_heads * ValueDim(a);
  const uint32_t out_cols = a.heads * ValueDim(a);
  Dense(dense::kQ, Matrix(base + "q_proj.weight", q_rows, hidden()));
  Dense(dense::kK, Matrix(base + "k_proj.weight", kv_rows, hidden()));
  if (!a.value_is_key) Dense(dense::kV, Matrix(base + "v_proj.weight", v_rows, hidden()));
  Dense(dense::kO, Matrix(base + names.o + ".weight", hidden(), out_cols));
  if (a.output_gate && !names.gate.empty()) {
    Dense(dense::kQGate,
          Matrix(base + names.gate + ".weight", a.gate_per_head ? a.heads : out_cols, hidden()));
  }
  if (a.qkv_bias) {
    Dense(dense::kQBias, Vector(base + "q_proj.bias", q_rows));
    Dense(dense::kKBias, Vector(base + "k_proj.bias", kv_rows));
    Dense(dense::kVBias, Vector(base + "v_proj.bias", v_rows));
  }
  if (a.output_bias) Dense(dense::kOBias, Vector(base + names.o + ".bias", hidden()));
  if (a.qk_norm == QkNorm::kPerHead || a.qk_norm == QkNorm::kAcrossHeads ||
      a.qk_norm == QkNorm::kWeightedAfterRope) {
    const bool across = a.qk_norm == QkNorm::kAcrossHeads;
    const SourceMatrix q_norm = Vector(base + names.q_norm + ".weight", across ? q_rows : a.head_dim);
    const SourceMatrix k_norm = Vector(base + names.k_norm + ".weight", across ? kv_rows : a.head_dim);
    Dense(dense::kQNorm, names.plus_one ? PlusOne(q_norm) : q_norm);
    Dense(dense::kKNorm, names.plus_one ? PlusOne(k_norm) : k_norm);
  }
}

void LayerMapper::Sinks(const std::string& name) { Dense(dense::kSinks, Vector(name, attention().heads)); }

void LayerMapper::Mamba(const std::string& base) {
  const MambaConfig& m = attention().mamba;
  const uint32_t values = m.heads * m.head_dim;
  const uint32_t conv_cols = values + 2 * m.groups * m.state;
  // Rows of in_proj: z, then the convolved values, then the time steps.
  const SourceMatrix in = Matrix(base + "in_proj.weight", uint64_t{values} + conv_cols + m.heads, hidden());
  Dense(dense::kMambaZ, SliceRows(in, 0, values));
  Dense(dense::kMambaXbc, SliceRows(in, values, conv_cols));
  Dense(dense::kMambaDt, SliceRows(in, uint64_t{values} + conv_cols, m.heads));
  // Depthwise convolution: [channels, 1, kernel].
  Dense(dense::kMambaConv, Transposed(Stack(base + "conv1d.weight", conv_cols, 1, m.conv_kernel)));
  Dense(dense::kMambaConvBias, Vector(base + "conv1d.bias", conv_cols));
  Dense(dense::kMambaALog, Vector(base + "A_log", m.heads));
  Dense(dense::kMambaDtBias, Vector(base + "dt_bias", m.heads));
  Dense(dense::kMambaD, Vector(base + "D", m.heads));
  Dense(dense::kMambaNorm, Vector(base + "norm.weight", values));
  Dense(dense::kO, Matrix(base + "out_proj.weight", hidden(), values));
}

// The down matrix is stored transposed, one row for each neuron: every part of a neuron is then one row that
// can be transferred and computed alone.
void LayerMapper::Ffn(const std::string& mlp, const FfnNames& names, uint32_t width, std::string_view up,
                      std::string_view gate, std::string_view down) {
  const auto name = [&mlp](const char* part) { return absl::StrCat(mlp, part, ".weight"); };
  if (HasGates(moe().activation)) Dense(gate, Matrix(name(names.gate), width, hidden()));
  Dense(up, Matrix(name(names.up), width, hidden()));
  Dense(down, Transposed(Matrix(name(names.down), hidden(), width)));
}

void LayerMapper::FfnBiases(const std::string& mlp, const FfnNames& names, uint32_t width,
                            std::string_view up, std::string_view gate, std::string_view down) {
  if (!moe().ffn_bias) return;
  const auto name = [&mlp](const char* part) { return absl::StrCat(mlp, part, ".bias"); };
  if (HasGates(moe().activation)) Dense(gate, Vector(name(names.gate), width));
  Dense(up, Vector(name(names.up), width));
  Dense(down, Vector(name(names.down), hidden()));
}

void LayerMapper::DenseFfn(const std::string& mlp, const FfnNames& names) {
  FfnBiases(mlp, names, moe().dense_width, dense::kDenseUpBias, dense::kDenseGateBias, dense::kDenseDownBias);
  Ffn(mlp, names, moe().dense_width, dense::kDenseUp, dense::kDenseGate, dense::kDenseDown);
}

void LayerMapper::SharedExpert(const std::string& mlp, const FfnNames& names) {
  FfnBiases(mlp, names, moe().shared_width, dense::kSharedUpBias, dense::kSharedGateBias,
            dense::kSharedDownBias);
  Ffn(mlp, names, moe().shared_width, dense::kSharedUp, dense::kSharedGate, dense::kSharedDown);
}

void LayerMapper::ParallelFfn(const std::string& mlp) {
  Ffn(mlp, {}, moe().dense_ffn_width, dense::kParallelUp, dense::kParallelGate, dense::kParallelDown);
}

void LayerMapper::DeepseekFfn() {
  if (moe().experts == 0) return DenseFfn("mlp.");
  Dense(dense::kRouter, Matrix("mlp.gate.weight", moe().experts, hidden()));
  if (moe().router_correction) {
    Dense(dense::kRouterCorrection, Vector("mlp.gate.e_score_correction_bias", moe().experts));
  }
  Experts("mlp.experts.", {});
  if (moe().shared_width != 0) SharedExpert("mlp.shared_experts.");
}

void LayerMapper::Experts(const std::string& experts, const FfnNames& names) {
  if (Has(experts + "gate_up_proj")) {
    return MapStackedExperts(experts + "gate_up_proj", experts + "down_proj", this);
  }
  const uint32_t width = moe().expert_width;
  const uint32_t inputs = ExpertHidden(config_);
  for (uint32_t e = 0; e < moe().experts && ok(); ++e) {
    const std::string base = absl::StrCat(experts, e, ".");
    ExpertSource expert;
    if (HasGates(moe().activation)) {
      expert.gate = Matrix(absl::StrCat(base, names.gate, ".weight"), width, inputs);
    }
    expert.up = Matrix(absl::StrCat(base, names.up, ".weight"), width, inputs);
    expert.down = Transposed(Matrix(absl::StrCat(base, names.down, ".weight"), inputs, width));
    AddExpert(expert);
  }
}

void MapStackedExperts(const std::string& gate_up, const std::string& down, LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  const uint64_t width = moe.expert_width;
  const SourceMatrix gates_ups = layer->Stack(gate_up, moe.experts, 2 * width, layer->hidden());
  const SourceMatrix downs = layer->Stack(down, moe.experts, layer->hidden(), width);
  for (uint64_t e = 0; e < moe.experts && layer->ok(); ++e) {
    ExpertSource expert;
    expert.gate = SliceRows(gates_ups, e * 2 * width, moe.expert_width);
    expert.up = SliceRows(gates_ups, e * 2 * width + width, moe.expert_width);
    expert.down = Transposed(SliceRows(downs, e * layer->hidden(), layer->hidden()));
    layer->AddExpert(expert);
  }
}

void MapSeparateStacks(const std::string& base, LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  const uint64_t width = moe.expert_width;
  const SourceMatrix gates = layer->Stack(base + "gate_proj.weight", moe.experts, width, layer->hidden());
  const SourceMatrix ups = layer->Stack(base + "up_proj.weight", moe.experts, width, layer->hidden());
  const SourceMatrix downs = layer->Stack(base + "down_proj.weight", moe.experts, layer->hidden(), width);
  for (uint64_t e = 0; e < moe.experts && layer->ok(); ++e) {
    layer->AddExpert({.up = SliceRows(ups, e * width, moe.expert_width),
                      .gate = SliceRows(gates, e * width, moe.expert_width),
                      .down = Transposed(SliceRows(downs, e * layer->hidden(), layer->hidden()))});
  }
}

void MapStackedInputs(const std::string& gate_up, const std::string& down, LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  const uint64_t hidden = layer->hidden();
  const uint32_t width = moe.expert_width;
  const SourceMatrix gates_ups = layer->Stack(gate_up, moe.experts, hidden, uint64_t{2} * width);
  const SourceMatrix downs = layer->Stack(down, moe.experts, width, hidden);
  for (uint64_t e = 0; e < moe.experts && layer->ok(); ++e) {
    const SourceMatrix both = SliceRows(gates_ups, e * hidden, layer->hidden());
    layer->AddExpert({.up = Transposed(Columns(both, width, width)),
                      .gate = Transposed(Columns(both, 0, width)),
                      .down = SliceRows(downs, e * width, width)});
  }
}

// Layers for multi-token prediction follow the model's own layers and are not part of its forward pass; only
// they have a tensor eh_proj.
void IgnorePredictionLayers(const ModelConfig& config, TensorMapper* mapper, const std::string& layers) {
  for (size_t i = config.layers.size();; ++i) {
    const std::string base = absl::StrCat(layers, i, ".");
    if (!mapper->Has(base + "eh_proj.weight")) return;
    mapper->IgnorePrefix(base);
  }
}

void MapEmbeddingAndHead(const ModelConfig& config, const EmbeddingAndHeadNames& names,
                         TensorMapper* mapper) {
  mapper->Dense(std::string(dense::kEmbed), mapper->Tensor(names.embed, {config.vocab, config.hidden}));
  if (HasFinalNorm(config)) {
    const SourceMatrix norm = mapper->Tensor(names.norm + ".weight", {config.hidden});
    mapper->Dense(std::string(dense::kFinalNorm), names.plus_one ? PlusOne(norm) : norm);
  }
  if (HasNormBias(config)) {
    mapper->Dense(std::string(dense::kFinalNormBias), mapper->Tensor(names.norm + ".bias", {config.hidden}));
  }
  // Some files store the head in spite of tied embeddings.
  if (config.tied_embeddings) {
    mapper->Ignore(names.head + ".weight");
  } else {
    mapper->Dense(std::string(dense::kHead),
                  mapper->Tensor(names.head + ".weight", {config.vocab, config.hidden}));
  }
  if (config.head_bias) {
    mapper->Dense(std::string(dense::kHeadBias), mapper->Tensor(names.head + ".bias", {config.vocab}));
  }
}

namespace {

// Norms on compressed q and kv have their own epsilon, independent of rms_norm_eps.
constexpr float kLatentEpsilon = 1e-6f;

}  // namespace

AttentionConfig ReadLatent(const LatentDefaults& defaults, const ModelConfig& model, HfFields* fields) {
  AttentionConfig attention;
  attention.kind = AttentionKind::kLatent;
  attention.heads = fields->Number("num_attention_heads", 1, kMaxHeads);
  attention.kv_heads = fields->Number("num_key_value_heads", 1, kMaxHeads, attention.heads);
  if (attention.kv_heads != attention.heads) fields->Refuse("num_key_value_heads");
  LatentConfig& latent = attention.latent;
  latent.q_rank =
      fields->IsNull("q_lora_rank") ? 0 : fields->Number("q_lora_rank", 1, kMaxRank, defaults.q_rank);
  latent.kv_rank = fields->Number("kv_lora_rank", 1, kMaxRank, defaults.kv_rank);
  latent.nope_dim = fields->Number("qk_nope_head_dim", 1, kMaxHeadDim, defaults.nope_dim);
  latent.value_dim = fields->Number("v_head_dim", 1, kMaxHeadDim, defaults.value_dim);
  latent.norm_epsilon =
      defaults.norm_epsilon > 0 ? static_cast<float>(defaults.norm_epsilon) : kLatentEpsilon;
  if (defaults.no_rope) {
    fields->RequireNumber("qk_rope_head_dim", 0);
    fields->RequireOff("attention_bias");
    fields->Skip("head_dim");
    attention.head_dim = fields->Number("qk_head_dim", 1, kMaxHeadDim, latent.nope_dim);
    if (attention.head_dim != latent.nope_dim) fields->Refuse("qk_head_dim");
    attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
    attention.rope = RopeConfig{.kind = RopeKind::kNone};
    return attention;
  }
  const uint32_t rotated = fields->Number("qk_rope_head_dim", 2, kMaxHeadDim, 64);
  attention.head_dim = latent.nope_dim + rotated;
  // Newer files repeat the dimensions above: head_dim is the rotated part, or the whole head with
  // partial_rotary_factor as its rotated share. A file that contradicts itself is refused.
  if (defaults.skips_head_dim) fields->Skip("head_dim");
  const uint32_t named =
      defaults.skips_head_dim ? rotated : fields->Number("head_dim", 1, kMaxHeadDim, rotated);
  if (named != rotated && named != attention.head_dim) fields->Refuse("head_dim");
  const uint32_t both = fields->Number("qk_head_dim", 1, 2 * kMaxHeadDim, attention.head_dim);
  if (both != attention.head_dim) fields->Refuse("qk_head_dim");
  fields->RequireOff("attention_bias");
  const RopeDefaults rope_defaults = {
      .theta = defaults.theta, .may_be_partial = true, .temperature = defaults.temperature};
  const RopeFields rope = ReadRope(rope_defaults, named, model.max_position, fields);
  attention.rope = rope.rope;
  if (named == attention.head_dim && named != rotated && rope.rope.dimensions == named) {
    attention.rope.dimensions = rotated;  // the whole rotated part, not a share of it
  }
  if (attention.rope.dimensions != rotated) {
    fields->Fail("qk_rope_head_dim", absl::StrCat("is ", rotated, ", but ", attention.rope.dimensions, " of ",
                                                  named, " values are rotated"));
  }
  attention.rope.interleaved = defaults.interleaved;
  if (rope.temperature != 0) {
    attention.temperature_scale = static_cast<float>(rope.temperature);
    attention.temperature_floor = rope.rope.original_max_position;
    attention.temperature_offset = 0;
    if (attention.temperature_floor == 0) {
      fields->Fail("rope_parameters", "has llama_4_scaling_beta and no original_max_position_embeddings");
    }
  }
  // yarn stretches the logits by the square of its factor at mscale_all_dim.
  double scale = 1 / std::sqrt(static_cast<double>(attention.head_dim));
  if (rope.rope.kind != RopeKind::kDefault && rope.mscale_all_dim != 0) {
    const double mscale = YarnMscale(rope.rope.factor, rope.mscale_all_dim);
    scale *= mscale * mscale;
  }
  attention.scale = static_cast<float>(scale);
  return attention;
}

// Up-projections of K are stored transposed, because attention over the cached latent rows multiplies the
// query by them instead of expanding every cached row to keys.
void MapLatent(LayerMapper* layer, const LatentNames& names) {
  const std::string& base = names.base;
  const AttentionConfig& a = layer->attention();
  const LatentConfig& latent = a.latent;
  const uint32_t q_rows = a.heads * a.head_dim;
  if (latent.q_rank != 0) {
    layer->Dense(dense::kQDown, layer->Matrix(base + "q_a_proj.weight", latent.q_rank, layer->hidden()));
    layer->Dense(dense::kQDownNorm, layer->Vector(base + "q_a_layernorm.weight", latent.q_rank));
    layer->Dense(dense::kQ, layer->Matrix(base + "q_b_proj.weight", q_rows, latent.q_rank));
  } else {
    layer->Dense(dense::kQ, layer->Matrix(base + "q_proj.weight", q_rows, layer->hidden()));
  }
  layer->Dense(dense::kKvDown, layer->Matrix(base + "kv_a_proj_with_mqa.weight",
                                             latent.kv_rank + a.rope.dimensions, layer->hidden()));
  layer->Dense(dense::kKvDownNorm,
               Scaled(layer->Vector(base + "kv_a_layernorm.weight", latent.kv_rank), names.kv_scale));
  const uint32_t kv_rank = latent.kv_rank;
  if (layer->Has(base + "k_b_proj.weight")) {
    // GGUF files keep the two halves of kv_b_proj apart, the keys' half already transposed.
    layer->Dense(dense::kKUpT,
                 layer->Matrix(base + "k_b_proj.weight", uint64_t{a.heads} * kv_rank, latent.nope_dim));
    layer->Dense(dense::kVUp,
                 layer->Matrix(base + "v_b_proj.weight", uint64_t{a.heads} * latent.value_dim, kv_rank));
  } else {
    // Each head has nope_dim rows that make keys of a cached row, then value_dim rows that make values.
    const SourceMatrix up = layer->Matrix(base + "kv_b_proj.weight",
                                          uint64_t{a.heads} * (latent.nope_dim + latent.value_dim), kv_rank);
    layer->Dense(dense::kKUpT, Transposed(RowsOfBlocks(up, a.heads, 0, latent.nope_dim)));
    layer->Dense(dense::kVUp, RowsOfBlocks(up, a.heads, latent.nope_dim, latent.value_dim));
  }
  layer->Dense(dense::kO,
               layer->Matrix(base + names.o + ".weight", layer->hidden(), a.heads * latent.value_dim));
  if (a.output_gate) {
    const uint32_t rows = a.heads * (a.gate_per_head ? 1 : latent.value_dim);
    layer->Dense(dense::kQGate, layer->Matrix(base + names.gate + ".weight", rows, layer->hidden()));
  }
}

}  // namespace sluice
