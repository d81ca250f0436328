#include "common/model/model_config_json.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>

#include "common/model/model_limits.h"
#include "common/status.h"
#include "common/strict_json.h"

namespace sluice {
namespace {

using nlohmann::json;

// Names of enum values by number. Frozen: manifests hold them.
constexpr const char* kAttentionKinds[] = {"grouped", "latent", "gated_delta"};
constexpr const char* kNormKinds[] = {"rms", "layer"};
constexpr const char* kActivations[] = {"silu", "gelu_tanh", "gelu", "clamped_swiglu"};
constexpr const char* kRopeKinds[] = {"none", "default", "linear", "dynamic", "yarn", "longrope", "llama3"};
constexpr const char* kQkNorms[] = {"none", "per_head", "across_heads", "per_head_after_rope"};
constexpr const char* kRouterKinds[] = {"softmax_topk", "topk_softmax", "sigmoid_topk", "sparse_mixer",
                                        "sigmoid_input"};

constexpr uint64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
constexpr double kMaxFloat = std::numeric_limits<float>::max();

template <typename Enum, size_t n>
json NameOf(Enum value, const char* const (&names)[n]) {
  return names[static_cast<size_t>(value)];
}

template <typename Enum, size_t n>
absl::Status ReadName(const JsonObject& object, const char* key, const char* const (&names)[n], Enum* out) {
  ASSIGN_OR_RETURN(const std::string name, object.String(key));
  for (size_t i = 0; i < n; ++i) {
    if (name == names[i]) {
      *out = static_cast<Enum>(i);
      return absl::OkStatus();
    }
  }
  return object.Error(key, absl::StrCat("is ", JsonExcerpt(json(name)), ", which is not known"));
}

absl::Status ReadU32(const JsonObject& object, const char* key, uint32_t* out) {
  ASSIGN_OR_RETURN(const uint64_t value, object.Uint(key, 0, kMaxU32));
  *out = static_cast<uint32_t>(value);
  return absl::OkStatus();
}

absl::Status ReadFloat(const JsonObject& object, const char* key, float* out) {
  ASSIGN_OR_RETURN(const double value, object.Double(key, -kMaxFloat, kMaxFloat));
  *out = static_cast<float>(value);
  return absl::OkStatus();
}

absl::Status ReadBool(const JsonObject& object, const char* key, bool* out) {
  ASSIGN_OR_RETURN(*out, object.Bool(key));
  return absl::OkStatus();
}

// The double whose shortest decimal is that of `value`: 1e-05 instead of 9.999999747378752e-06. Narrowing it
// gives `value` back.
json FloatJson(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text) - 1, value);
  *end.ptr = '\0';
  return std::strtod(text, nullptr);
}

json RopeJson(const RopeConfig& rope) {
  return {{"kind", NameOf(rope.kind, kRopeKinds)},
          {"theta", rope.theta},
          {"factor", rope.factor},
          {"original_max_position", rope.original_max_position},
          {"dimensions", rope.dimensions},
          {"interleaved", rope.interleaved}};
}

json AttentionJson(const AttentionConfig& attention) {
  return {{"kind", NameOf(attention.kind, kAttentionKinds)},
          {"heads", attention.heads},
          {"kv_heads", attention.kv_heads},
          {"head_dim", attention.head_dim},
          {"sliding_window", attention.sliding_window},
          {"scale", FloatJson(attention.scale)},
          {"qkv_bias", attention.qkv_bias},
          {"output_bias", attention.output_bias},
          {"qk_norm", NameOf(attention.qk_norm, kQkNorms)},
          {"rope", RopeJson(attention.rope)}};
}

json MoeJson(const MoeConfig& moe) {
  return {{"experts", moe.experts},
          {"top_k", moe.top_k},
          {"expert_width", moe.expert_width},
          {"shared_width", moe.shared_width},
          {"dense_width", moe.dense_width},
          {"router", NameOf(moe.router, kRouterKinds)},
          {"norm_topk_prob", moe.norm_topk_prob},
          {"routed_scale", FloatJson(moe.routed_scale)},
          {"shared_gate", moe.shared_gate},
          {"activation", NameOf(moe.activation, kActivations)}};
}

absl::Status ReadRope(const JsonObject& object, RopeConfig* rope) {
  RETURN_IF_ERROR(ReadName(object, "kind", kRopeKinds, &rope->kind));
  ASSIGN_OR_RETURN(rope->theta, object.Double("theta", 0, 1e30));
  ASSIGN_OR_RETURN(rope->factor, object.Double("factor", 0, 1e30));
  RETURN_IF_ERROR(ReadU32(object, "original_max_position", &rope->original_max_position));
  RETURN_IF_ERROR(ReadU32(object, "dimensions", &rope->dimensions));
  return ReadBool(object, "interleaved", &rope->interleaved);
}

absl::Status ReadAttention(const JsonObject& object, AttentionConfig* attention) {
  RETURN_IF_ERROR(ReadName(object, "kind", kAttentionKinds, &attention->kind));
  RETURN_IF_ERROR(ReadU32(object, "heads", &attention->heads));
  RETURN_IF_ERROR(ReadU32(object, "kv_heads", &attention->kv_heads));
  RETURN_IF_ERROR(ReadU32(object, "head_dim", &attention->head_dim));
  RETURN_IF_ERROR(ReadU32(object, "sliding_window", &attention->sliding_window));
  RETURN_IF_ERROR(ReadFloat(object, "scale", &attention->scale));
  RETURN_IF_ERROR(ReadBool(object, "qkv_bias", &attention->qkv_bias));
  RETURN_IF_ERROR(ReadBool(object, "output_bias", &attention->output_bias));
  RETURN_IF_ERROR(ReadName(object, "qk_norm", kQkNorms, &attention->qk_norm));
  ASSIGN_OR_RETURN(const JsonObject rope, object.Object("rope"));
  return ReadRope(rope, &attention->rope);
}

absl::Status ReadMoe(const JsonObject& object, MoeConfig* moe) {
  RETURN_IF_ERROR(ReadU32(object, "experts", &moe->experts));
  RETURN_IF_ERROR(ReadU32(object, "top_k", &moe->top_k));
  RETURN_IF_ERROR(ReadU32(object, "expert_width", &moe->expert_width));
  RETURN_IF_ERROR(ReadU32(object, "shared_width", &moe->shared_width));
  RETURN_IF_ERROR(ReadU32(object, "dense_width", &moe->dense_width));
  RETURN_IF_ERROR(ReadName(object, "router", kRouterKinds, &moe->router));
  RETURN_IF_ERROR(ReadBool(object, "norm_topk_prob", &moe->norm_topk_prob));
  RETURN_IF_ERROR(ReadFloat(object, "routed_scale", &moe->routed_scale));
  RETURN_IF_ERROR(ReadBool(object, "shared_gate", &moe->shared_gate));
  return ReadName(object, "activation", kActivations, &moe->activation);
}

absl::Status ReadIds(const JsonObject& object, const char* key, std::vector<int32_t>* ids) {
  ASSIGN_OR_RETURN(const json* list, object.Array(key));
  if (list->size() > kMaxEndIds) return object.Error(key, "is too long");
  for (const json& id : *list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxVocab) {
      return object.Error(key, absl::StrCat("holds ", JsonExcerpt(id), ", which is no token id"));
    }
    ids->push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  return absl::OkStatus();
}

template <typename T>
void PutIf(const char* key, const std::optional<T>& value, json* object) {
  if (value.has_value()) (*object)[key] = *value;
}

absl::Status ReadDoubleIf(const JsonObject& object, const char* key, std::optional<double>* out) {
  if (!object.Has(key)) return absl::OkStatus();
  ASSIGN_OR_RETURN(*out, object.Double(key, 0, 1000));
  return absl::OkStatus();
}

}  // namespace

json ModelConfigToJson(const ModelConfig& config) {
  json layers = json::array();
  for (const LayerConfig& layer : config.layers) {
    layers.push_back({{"attention", AttentionJson(layer.attention)}, {"moe", MoeJson(layer.moe)}});
  }
  return {{"family", config.family},
          {"vocab", config.vocab},
          {"hidden", config.hidden},
          {"max_position", config.max_position},
          {"norm", NameOf(config.norm, kNormKinds)},
          {"norm_epsilon", FloatJson(config.norm_epsilon)},
          {"tied_embeddings", config.tied_embeddings},
          {"layers", std::move(layers)},
          {"bos_ids", config.bos_ids},
          {"eos_ids", config.eos_ids}};
}

json GenerationToJson(const GenerationDefaults& generation) {
  json object = json::object();
  PutIf("do_sample", generation.do_sample, &object);
  PutIf("temperature", generation.temperature, &object);
  PutIf("top_p", generation.top_p, &object);
  PutIf("top_k", generation.top_k, &object);
  PutIf("min_p", generation.min_p, &object);
  PutIf("repetition_penalty", generation.repetition_penalty, &object);
  return object;
}

absl::StatusOr<ModelConfig> ModelConfigFromJson(const JsonObject& object) {
  ModelConfig config;
  ASSIGN_OR_RETURN(config.family, object.String("family"));
  RETURN_IF_ERROR(ReadU32(object, "vocab", &config.vocab));
  RETURN_IF_ERROR(ReadU32(object, "hidden", &config.hidden));
  RETURN_IF_ERROR(ReadU32(object, "max_position", &config.max_position));
  RETURN_IF_ERROR(ReadName(object, "norm", kNormKinds, &config.norm));
  RETURN_IF_ERROR(ReadFloat(object, "norm_epsilon", &config.norm_epsilon));
  RETURN_IF_ERROR(ReadBool(object, "tied_embeddings", &config.tied_embeddings));
  RETURN_IF_ERROR(ReadIds(object, "bos_ids", &config.bos_ids));
  RETURN_IF_ERROR(ReadIds(object, "eos_ids", &config.eos_ids));
  ASSIGN_OR_RETURN(const json* layers, object.Array("layers"));
  if (layers->empty() || layers->size() > kMaxLayers) {
    return object.Error("layers", absl::StrCat("has ", layers->size(), " entries, not 1 to ", kMaxLayers));
  }
  for (size_t i = 0; i < layers->size(); ++i) {
    ASSIGN_OR_RETURN(const JsonObject entry,
                     JsonObject::Of((*layers)[i], absl::StrCat(object.subject(), ": layers[", i, "]")));
    LayerConfig layer;
    ASSIGN_OR_RETURN(const JsonObject attention, entry.Object("attention"));
    RETURN_IF_ERROR(ReadAttention(attention, &layer.attention));
    ASSIGN_OR_RETURN(const JsonObject moe, entry.Object("moe"));
    RETURN_IF_ERROR(ReadMoe(moe, &layer.moe));
    config.layers.push_back(layer);
  }
  RETURN_IF_ERROR(ValidateModelConfig(config, object.subject()));
  return config;
}

absl::StatusOr<GenerationDefaults> GenerationFromJson(const JsonObject& object) {
  GenerationDefaults generation;
  if (object.Has("do_sample")) {
    ASSIGN_OR_RETURN(generation.do_sample, object.Bool("do_sample"));
  }
  if (object.Has("top_k")) {
    ASSIGN_OR_RETURN(const uint64_t top_k, object.Uint("top_k", 0, kMaxVocab));
    generation.top_k = static_cast<uint32_t>(top_k);
  }
  RETURN_IF_ERROR(ReadDoubleIf(object, "temperature", &generation.temperature));
  RETURN_IF_ERROR(ReadDoubleIf(object, "top_p", &generation.top_p));
  RETURN_IF_ERROR(ReadDoubleIf(object, "min_p", &generation.min_p));
  RETURN_IF_ERROR(ReadDoubleIf(object, "repetition_penalty", &generation.repetition_penalty));
  return generation;
}

}  // namespace sluice
