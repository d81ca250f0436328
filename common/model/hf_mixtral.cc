#include "common/model/hf_mixtral.h"

#include <cmath>
#include <string>

#include "common/model/model_limits.h"
#include "common/pack/dense_names.h"
#include "common/status.h"

namespace sluice {
namespace {

// transformers' MixtralConfig defaults of members that may be left out.
constexpr uint64_t kDefaultKvHeads = 8;
constexpr uint64_t kDefaultMaxPosition = 4096 * 32;
constexpr double kDefaultTheta = 1e6;
constexpr double kDefaultEpsilon = 1e-5;

absl::Status Unsupported(const JsonObject& object, const std::string& field, const std::string& value) {
  return absl::UnimplementedError(
      absl::StrCat(object.subject(), ": ", field, " ", value, " is not supported"));
}

// rope_parameters {rope_theta, rope_type} of transformers 5, or rope_theta and rope_scaling before it.
absl::StatusOr<RopeConfig> ReadRope(const JsonObject& config, uint32_t head_dim) {
  RopeConfig rope;
  rope.dimensions = head_dim;
  ASSIGN_OR_RETURN(rope.theta, config.DoubleOr("rope_theta", 1e-3, 1e30, kDefaultTheta));
  for (const char* member : {"rope_scaling", "rope_parameters"}) {
    if (!config.Has(member)) continue;
    ASSIGN_OR_RETURN(const JsonObject parameters, config.Object(member));
    ASSIGN_OR_RETURN(const std::string old_type, parameters.StringOr("type", "default"));
    ASSIGN_OR_RETURN(const std::string type, parameters.StringOr("rope_type", old_type));
    if (type != "default") {
      return Unsupported(config, absl::StrCat(member, ": rope_type"), JsonExcerpt(nlohmann::json(type)));
    }
    ASSIGN_OR_RETURN(rope.theta, parameters.DoubleOr("rope_theta", 1e-3, 1e30, rope.theta));
    ASSIGN_OR_RETURN(const double partial, parameters.DoubleOr("partial_rotary_factor", 0, 1, 1.0));
    if (partial != 1.0) {
      return Unsupported(config, absl::StrCat(member, ": partial_rotary_factor"), absl::StrCat(partial));
    }
  }
  return rope;
}

absl::StatusOr<AttentionConfig> ReadAttention(const JsonObject& config, uint32_t hidden) {
  AttentionConfig attention;
  ASSIGN_OR_RETURN(attention.heads, config.Uint("num_attention_heads", 1, kMaxHeads));
  const bool kv_is_null =
      config.value().contains("num_key_value_heads") && !config.Has("num_key_value_heads");
  ASSIGN_OR_RETURN(attention.kv_heads, config.UintOr("num_key_value_heads", 1, kMaxHeads,
                                                     kv_is_null ? attention.heads : kDefaultKvHeads));
  if (attention.heads % attention.kv_heads != 0) {
    return config.Error("num_key_value_heads",
                        absl::StrCat("is ", attention.kv_heads, ", which does not divide the ",
                                     attention.heads, " attention heads"));
  }
  if (config.Has("head_dim")) {
    ASSIGN_OR_RETURN(attention.head_dim, config.Uint("head_dim", 2, kMaxHeadDim));
  } else if (hidden % attention.heads != 0) {
    return config.Error("hidden_size", absl::StrCat("is ", hidden, ", no multiple of the ", attention.heads,
                                                    " attention heads, and there is no head_dim"));
  } else {
    attention.head_dim = hidden / attention.heads;
  }
  if (attention.head_dim % 2 != 0) {
    return config.Error("head_dim", absl::StrCat("is ", attention.head_dim, "; rope needs an even number"));
  }
  ASSIGN_OR_RETURN(attention.sliding_window, config.UintOr("sliding_window", 1, kMaxPosition, 0));
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
  ASSIGN_OR_RETURN(attention.rope, ReadRope(config, attention.head_dim));
  ASSIGN_OR_RETURN(const bool bias, config.BoolOr("attention_bias", false));
  if (bias) return Unsupported(config, "attention_bias", "true");
  return attention;
}

absl::StatusOr<MoeConfig> ReadMoe(const JsonObject& config) {
  MoeConfig moe;
  ASSIGN_OR_RETURN(moe.experts, config.Uint("num_local_experts", 1, kMaxExperts));
  ASSIGN_OR_RETURN(moe.top_k, config.Uint("num_experts_per_tok", 1, kMaxExperts));
  ASSIGN_OR_RETURN(moe.expert_width, config.Uint("intermediate_size", 1, kMaxWidth));
  if (moe.top_k > moe.experts) {
    return config.Error("num_experts_per_tok",
                        absl::StrCat("is ", moe.top_k, ", but there are ", moe.experts, " experts"));
  }
  ASSIGN_OR_RETURN(const std::string activation, config.StringOr("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return Unsupported(config, "hidden_act", JsonExcerpt(nlohmann::json(activation)));
  }
  moe.router = RouterKind::kSoftmaxTopK;
  moe.norm_topk_prob = true;
  return moe;
}

// Where a layer's experts are: each on its own, or stacked in two tensors.
void MapExperts(const ModelConfig& config, uint32_t layer, const std::string& prefix, TensorMapper* mapper) {
  const MoeConfig& moe = config.layers[layer].moe;
  const std::string stack = prefix + "experts.gate_up_proj";
  const bool stacked = mapper->Has(stack);
  for (uint32_t e = 0; e < moe.experts && mapper->ok(); ++e) {
    ExpertSource expert;
    if (stacked) {
      const uint32_t width = moe.expert_width;
      expert.gate = mapper->Slice(stack, moe.experts, e, 2 * width, 0, width, config.hidden);
      expert.up = mapper->Slice(stack, moe.experts, e, 2 * width, width, width, config.hidden);
      expert.down =
          mapper->Slice(prefix + "experts.down_proj", moe.experts, e, config.hidden, 0, config.hidden, width);
    } else {
      const std::string base = absl::StrCat(prefix, "experts.", e, ".");
      expert.gate = mapper->Matrix(base + "w1.weight", moe.expert_width, config.hidden);
      expert.up = mapper->Matrix(base + "w3.weight", moe.expert_width, config.hidden);
      expert.down = mapper->Matrix(base + "w2.weight", config.hidden, moe.expert_width);
    }
    mapper->AddExpert(layer, expert);
  }
}

void MapLayer(const ModelConfig& config, uint32_t layer, TensorMapper* mapper) {
  const AttentionConfig& attention = config.layers[layer].attention;
  const uint32_t q_rows = attention.heads * attention.head_dim;
  const uint32_t kv_rows = attention.kv_heads * attention.head_dim;
  const uint32_t hidden = config.hidden;
  const std::string base = absl::StrCat("model.layers.", layer, ".");
  const auto dense = [&](std::string_view name, const std::string& source, uint32_t rows, uint32_t cols) {
    mapper->Dense(dense::LayerName(layer, name), base + source, rows, cols);
  };
  const auto norm = [&](std::string_view name, const std::string& source) {
    mapper->Vector(dense::LayerName(layer, name), base + source, hidden);
  };
  norm(dense::kAttnNorm, "input_layernorm.weight");
  dense(dense::kQ, "self_attn.q_proj.weight", q_rows, hidden);
  dense(dense::kK, "self_attn.k_proj.weight", kv_rows, hidden);
  dense(dense::kV, "self_attn.v_proj.weight", kv_rows, hidden);
  dense(dense::kO, "self_attn.o_proj.weight", hidden, q_rows);
  norm(dense::kFfnNorm, "post_attention_layernorm.weight");
  const bool old_names = mapper->Has(base + "block_sparse_moe.gate.weight");
  const std::string moe = old_names ? "block_sparse_moe." : "mlp.";
  dense(dense::kRouter, moe + "gate.weight", config.layers[layer].moe.experts, hidden);
  MapExperts(config, layer, base + moe, mapper);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadMixtralConfig(const JsonObject& config) {
  ModelConfig model;
  model.family = "mixtral";
  ASSIGN_OR_RETURN(model.vocab, config.Uint("vocab_size", 1, kMaxVocab));
  ASSIGN_OR_RETURN(model.hidden, config.Uint("hidden_size", 1, kMaxHidden));
  ASSIGN_OR_RETURN(model.max_position,
                   config.UintOr("max_position_embeddings", 1, kMaxPosition, kDefaultMaxPosition));
  ASSIGN_OR_RETURN(const double epsilon, config.DoubleOr("rms_norm_eps", 0, 1, kDefaultEpsilon));
  model.norm_epsilon = static_cast<float>(epsilon);
  ASSIGN_OR_RETURN(model.tied_embeddings, config.BoolOr("tie_word_embeddings", false));
  ASSIGN_OR_RETURN(const uint64_t layers, config.Uint("num_hidden_layers", 1, kMaxLayers));
  LayerConfig layer;
  ASSIGN_OR_RETURN(layer.attention, ReadAttention(config, model.hidden));
  ASSIGN_OR_RETURN(layer.moe, ReadMoe(config));
  model.layers.assign(layers, layer);
  return model;
}

absl::Status MapMixtralTensors(const ModelConfig& config, TensorMapper* mapper) {
  mapper->Dense(std::string(dense::kEmbed), "model.embed_tokens.weight", config.vocab, config.hidden);
  for (uint32_t layer = 0; layer < config.layers.size() && mapper->ok(); ++layer) {
    MapLayer(config, layer, mapper);
  }
  mapper->Vector(std::string(dense::kFinalNorm), "model.norm.weight", config.hidden);
  if (config.tied_embeddings) {
    mapper->Ignore("lm_head.weight");
  } else {
    mapper->Dense(std::string(dense::kHead), "lm_head.weight", config.vocab, config.hidden);
  }
  return absl::OkStatus();
}

}  // namespace sluice
