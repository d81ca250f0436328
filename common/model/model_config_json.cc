#include "common/model/model_config_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

using nlohmann::json;

// Names of enum values, by number. Frozen: manifests hold them.
constexpr const char* kAttentionKinds[] = {"grouped",    "latent", "gated_delta", "mamba",
                                           "short_conv", "none",   "selective",   "compressed"};
constexpr const char* kNormKinds[] = {"rms", "layer"};
constexpr const char* kActivations[] = {"silu",  "gelu_tanh",    "gelu",        "clamped_swiglu",
                                        "relu2", "clamped_silu", "limited_silu"};
constexpr const char* kGateActivations[] = {"sigmoid", "softplus"};
constexpr const char* kRopeKinds[] = {"none", "default",  "linear", "dynamic",
                                      "yarn", "longrope", "llama3", "proportional"};
constexpr const char* kQkNorms[] = {
    "none", "per_head", "across_heads", "per_head_after_rope", "weighted_after_rope", "weighted_key"};
constexpr const char* kRouterKinds[] = {"softmax_topk", "topk_softmax",  "sigmoid_topk",
                                        "sparse_mixer", "sigmoid_input", "sqrt_softplus_topk"};
constexpr const char* kGroupScores[] = {"max", "top_two_sum"};

absl::Span<const char* const> NamesOf(AttentionKind) { return kAttentionKinds; }
absl::Span<const char* const> NamesOf(NormKind) { return kNormKinds; }
absl::Span<const char* const> NamesOf(Activation) { return kActivations; }
absl::Span<const char* const> NamesOf(GateActivation) { return kGateActivations; }
absl::Span<const char* const> NamesOf(RopeKind) { return kRopeKinds; }
absl::Span<const char* const> NamesOf(QkNorm) { return kQkNorms; }
absl::Span<const char* const> NamesOf(RouterKind) { return kRouterKinds; }
absl::Span<const char* const> NamesOf(GroupScore) { return kGroupScores; }

// Members of each struct under their names, shared by writing and reading. Now(): always written, and
// required. Later(): added after the first version; omitted if it has its default, so that old and new packs
// are equal wherever possible.
template <typename On>
void Members(const RopeConfig&, On* on) {
  on->Now("kind", &RopeConfig::kind);
  on->Now("theta", &RopeConfig::theta);
  on->Now("factor", &RopeConfig::factor);
  on->Now("original_max_position", &RopeConfig::original_max_position);
  on->Now("dimensions", &RopeConfig::dimensions);
  on->Now("interleaved", &RopeConfig::interleaved);
  on->Later("attention_factor", &RopeConfig::attention_factor);
  on->Later("beta_fast", &RopeConfig::beta_fast);
  on->Later("beta_slow", &RopeConfig::beta_slow);
  on->Later("truncate", &RopeConfig::truncate);
  on->Later("low_freq_factor", &RopeConfig::low_freq_factor);
  on->Later("high_freq_factor", &RopeConfig::high_freq_factor);
  on->Later("turned", &RopeConfig::turned);
  on->Later("short_factors", &RopeConfig::short_factors);
  on->Later("long_factors", &RopeConfig::long_factors);
  on->Later("long_attention_factor", &RopeConfig::long_attention_factor);
}

template <typename On>
void Members(const LatentConfig&, On* on) {
  on->Now("q_rank", &LatentConfig::q_rank);
  on->Now("kv_rank", &LatentConfig::kv_rank);
  on->Now("nope_dim", &LatentConfig::nope_dim);
  on->Now("value_dim", &LatentConfig::value_dim);
  on->Now("norm_epsilon", &LatentConfig::norm_epsilon);
}

template <typename On>
void Members(const DeltaConfig&, On* on) {
  on->Now("key_heads", &DeltaConfig::key_heads);
  on->Now("value_heads", &DeltaConfig::value_heads);
  on->Now("key_dim", &DeltaConfig::key_dim);
  on->Now("value_dim", &DeltaConfig::value_dim);
  on->Now("conv_kernel", &DeltaConfig::conv_kernel);
  on->Later("channel_decay", &DeltaConfig::channel_decay);
  on->Later("gate_rank", &DeltaConfig::gate_rank);
  on->Later("decay_floor", &DeltaConfig::decay_floor);
  on->Later("sigmoid_gate", &DeltaConfig::sigmoid_gate);
}

template <typename On>
void Members(const MambaConfig&, On* on) {
  on->Now("heads", &MambaConfig::heads);
  on->Now("head_dim", &MambaConfig::head_dim);
  on->Now("groups", &MambaConfig::groups);
  on->Now("state", &MambaConfig::state);
  on->Now("conv_kernel", &MambaConfig::conv_kernel);
  on->Now("min_step", &MambaConfig::min_step);
  on->Now("max_step", &MambaConfig::max_step);
}

template <typename On>
void Members(const SelectiveConfig&, On* on) {
  on->Now("channels", &SelectiveConfig::channels);
  on->Now("state", &SelectiveConfig::state);
  on->Now("step_rank", &SelectiveConfig::step_rank);
  on->Now("conv_kernel", &SelectiveConfig::conv_kernel);
}

template <typename On>
void Members(const ShortConvConfig&, On* on) {
  on->Now("width", &ShortConvConfig::width);
  on->Now("kernel", &ShortConvConfig::kernel);
  on->Later("bias", &ShortConvConfig::bias);
}

template <typename On>
void Members(const IndexConfig&, On* on) {
  on->Now("heads", &IndexConfig::heads);
  on->Now("head_dim", &IndexConfig::head_dim);
  on->Now("top", &IndexConfig::top);
  on->Now("block", &IndexConfig::block);
  on->Now("local", &IndexConfig::local);
  on->Now("weighted", &IndexConfig::weighted);
  on->Now("interleaved", &IndexConfig::interleaved);
  on->Now("shared", &IndexConfig::shared);
  on->Now("norm_epsilon", &IndexConfig::norm_epsilon);
  on->Later("pooled", &IndexConfig::pooled);
  on->Later("summed", &IndexConfig::summed);
}

template <typename On>
void Members(const CompressConfig&, On* on) {
  on->Now("rate", &CompressConfig::rate);
  on->Now("overlap", &CompressConfig::overlap);
  on->Now("q_rank", &CompressConfig::q_rank);
  on->Now("groups", &CompressConfig::groups);
  on->Now("o_rank", &CompressConfig::o_rank);
}

template <typename On>
void Members(const StreamConfig&, On* on) {
  on->Now("count", &StreamConfig::count);
  on->Now("iterations", &StreamConfig::iterations);
  on->Now("epsilon", &StreamConfig::epsilon);
  on->Now("mean_output", &StreamConfig::mean_output);
  on->Later("rank", &StreamConfig::rank);
}

template <typename On>
void Members(const NgramConfig&, On* on) {
  on->Now("size", &NgramConfig::size);
  on->Now("heads", &NgramConfig::heads);
  on->Now("width", &NgramConfig::width);
  on->Now("rows", &NgramConfig::rows);
  on->Now("base", &NgramConfig::base);
  on->Now("layer", &NgramConfig::layer);
  on->Now("seed", &NgramConfig::seed);
  on->Now("end", &NgramConfig::end);
  on->Now("kernel", &NgramConfig::kernel);
}

template <typename On>
void Members(const AttentionConfig&, On* on) {
  on->Now("kind", &AttentionConfig::kind);
  on->Now("heads", &AttentionConfig::heads);
  on->Now("kv_heads", &AttentionConfig::kv_heads);
  on->Now("head_dim", &AttentionConfig::head_dim);
  on->Now("sliding_window", &AttentionConfig::sliding_window);
  on->Now("scale", &AttentionConfig::scale);
  on->Now("qkv_bias", &AttentionConfig::qkv_bias);
  on->Now("output_bias", &AttentionConfig::output_bias);
  on->Now("qk_norm", &AttentionConfig::qk_norm);
  on->Now("rope", &AttentionConfig::rope);
  on->Later("chunk", &AttentionConfig::chunk);
  on->Later("sinks", &AttentionConfig::sinks);
  on->Later("clip_qkv", &AttentionConfig::clip_qkv);
  on->Later("output_gate", &AttentionConfig::output_gate);
  on->Later("gate_per_head", &AttentionConfig::gate_per_head);
  on->Later("gate_activation", &AttentionConfig::gate_activation);
  on->Later("value_dim", &AttentionConfig::value_dim);
  on->Later("value_scale", &AttentionConfig::value_scale);
  on->Later("temperature_scale", &AttentionConfig::temperature_scale);
  on->Later("temperature_floor", &AttentionConfig::temperature_floor);
  on->Later("temperature_offset", &AttentionConfig::temperature_offset);
  on->Later("value_norm", &AttentionConfig::value_norm);
  on->Later("value_is_key", &AttentionConfig::value_is_key);
  on->Later("latent", &AttentionConfig::latent);
  on->Later("delta", &AttentionConfig::delta);
  on->Later("mamba", &AttentionConfig::mamba);
  on->Later("conv", &AttentionConfig::conv);
  on->Later("selective", &AttentionConfig::selective);
  on->Later("index", &AttentionConfig::index);
  on->Later("compress", &AttentionConfig::compress);
}

template <typename On>
void Members(const MoeConfig&, On* on) {
  on->Now("experts", &MoeConfig::experts);
  on->Now("top_k", &MoeConfig::top_k);
  on->Now("expert_width", &MoeConfig::expert_width);
  on->Now("shared_width", &MoeConfig::shared_width);
  on->Now("dense_width", &MoeConfig::dense_width);
  on->Now("router", &MoeConfig::router);
  on->Now("norm_topk_prob", &MoeConfig::norm_topk_prob);
  on->Now("routed_scale", &MoeConfig::routed_scale);
  on->Now("shared_gate", &MoeConfig::shared_gate);
  on->Now("activation", &MoeConfig::activation);
  on->Later("router_bias", &MoeConfig::router_bias);
  on->Later("router_correction", &MoeConfig::router_correction);
  on->Later("router_jitter", &MoeConfig::router_jitter);
  on->Later("groups", &MoeConfig::groups);
  on->Later("top_groups", &MoeConfig::top_groups);
  on->Later("group_score", &MoeConfig::group_score);
  on->Later("norm_epsilon", &MoeConfig::norm_epsilon);
  on->Later("expert_scale", &MoeConfig::expert_scale);
  on->Later("beside_width", &MoeConfig::dense_ffn_width);
  on->Later("expert_bias", &MoeConfig::expert_bias);
  on->Later("activation_alpha", &MoeConfig::activation_alpha);
  on->Later("activation_limit", &MoeConfig::activation_limit);
  on->Later("shared_apart", &MoeConfig::shared_apart);
  on->Later("shared_limit", &MoeConfig::shared_limit);
  on->Later("output_scale", &MoeConfig::output_scale);
  on->Later("ffn_bias", &MoeConfig::ffn_bias);
  on->Later("router_cap", &MoeConfig::router_cap);
  on->Later("zero_experts", &MoeConfig::zero_experts);
  on->Later("token_experts", &MoeConfig::token_experts);
}

template <typename On>
void Members(const LayerConfig&, On* on) {
  on->Now("attention", &LayerConfig::attention);
  on->Now("moe", &LayerConfig::moe);
  on->Later("post_norms", &LayerConfig::post_norms);
  on->Later("layer_scale", &LayerConfig::layer_scale);
  on->Later("pre_norms", &LayerConfig::pre_norms);
  on->Later("parallel", &LayerConfig::parallel);
  on->Later("late_experts", &LayerConfig::late_experts);
  on->Later("ngrams", &LayerConfig::ngrams);
}

template <typename On>
void Members(const ModelConfig&, On* on) {
  on->Now("family", &ModelConfig::family);
  on->Now("vocab", &ModelConfig::vocab);
  on->Now("hidden", &ModelConfig::hidden);
  on->Now("max_position", &ModelConfig::max_position);
  on->Now("norm", &ModelConfig::norm);
  on->Now("norm_epsilon", &ModelConfig::norm_epsilon);
  on->Now("tied_embeddings", &ModelConfig::tied_embeddings);
  on->Now("layers", &ModelConfig::layers);
  on->Now("bos_ids", &ModelConfig::bos_ids);
  on->Now("eos_ids", &ModelConfig::eos_ids);
  on->Later("head_bias", &ModelConfig::head_bias);
  on->Later("embedding_scale", &ModelConfig::embedding_scale);
  on->Later("residual_scale", &ModelConfig::residual_scale);
  on->Later("logit_scale", &ModelConfig::logit_scale);
  on->Later("logit_cap", &ModelConfig::logit_cap);
  on->Later("norm_bias", &ModelConfig::norm_bias);
  on->Later("latent_width", &ModelConfig::latent_width);
  on->Later("mtp_layers", &ModelConfig::mtp_layers);
  on->Later("streams", &ModelConfig::streams);
}

template <typename T>
json ToJson(const T& value);

// Writes the members of one struct.
template <typename Struct>
class Writer {
 public:
  explicit Writer(const Struct& from) : from_(from) {}

  template <typename Member>
  void Now(const char* key, Member Struct::*member) {
    object_[key] = ToJson(from_.*member);
  }
  template <typename Member>
  void Later(const char* key, Member Struct::*member) {
    if (from_.*member != fallback_.*member) Now(key, member);
  }
  json Take() { return std::move(object_); }

 private:
  const Struct& from_;
  const Struct fallback_;
  json object_ = json::object();
};

// Returns the double whose shortest decimal is that of the float: 1e-05 instead of 9.999999747378752e-06.
// Narrowing it returns `value`.
json FloatJson(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text) - 1, value);
  *end.ptr = '\0';
  return std::strtod(text, nullptr);
}

template <typename T>
json ToJson(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return NamesOf(value)[static_cast<size_t>(value)];
  } else if constexpr (std::is_same_v<T, float>) {
    return FloatJson(value);
  } else if constexpr (std::is_same_v<T, std::vector<LayerConfig>>) {
    json list = json::array();
    for (const LayerConfig& layer : value) list.push_back(ToJson(layer));
    return list;
  } else if constexpr (std::is_constructible_v<json, T>) {
    return value;
  } else {
    Writer<T> writer(value);
    Members(value, &writer);
    return writer.Take();
  }
}

constexpr uint64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
constexpr double kMaxFloat = std::numeric_limits<float>::max();
constexpr size_t kMaxRopeFactors = kMaxHeadDim / 2;

absl::Status FromJson(const JsonObject& object, const char* key, uint32_t* out) {
  ASSIGN_OR_RETURN(const uint64_t value, object.Uint(key, 0, kMaxU32));
  *out = static_cast<uint32_t>(value);
  return absl::OkStatus();
}

absl::Status FromJson(const JsonObject& object, const char* key, uint64_t* out) {
  ASSIGN_OR_RETURN(*out, object.Uint(key, 0, std::numeric_limits<uint64_t>::max()));
  return absl::OkStatus();
}

absl::Status FromJson(const JsonObject& object, const char* key, float* out) {
  ASSIGN_OR_RETURN(const double value, object.Double(key, -kMaxFloat, kMaxFloat));
  *out = static_cast<float>(value);
  return absl::OkStatus();
}

absl::Status FromJson(const JsonObject& object, const char* key, double* out) {
  ASSIGN_OR_RETURN(*out, object.Double(key, -1e30, 1e30));
  return absl::OkStatus();
}

absl::Status FromJson(const JsonObject& object, const char* key, bool* out) {
  ASSIGN_OR_RETURN(*out, object.Bool(key));
  return absl::OkStatus();
}

absl::Status FromJson(const JsonObject& object, const char* key, std::string* out) {
  ASSIGN_OR_RETURN(*out, object.String(key));
  return absl::OkStatus();
}

absl::Status FromJson(const JsonObject& object, const char* key, std::vector<int32_t>* ids) {
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

absl::Status FromJson(const JsonObject& object, const char* key, std::vector<double>* out) {
  ASSIGN_OR_RETURN(const json* list, object.Array(key));
  if (list->size() > kMaxRopeFactors) {
    return object.Error(key, absl::StrCat("has ", list->size(), " entries, more than ", kMaxRopeFactors));
  }
  for (const json& value : *list) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      return object.Error(key, absl::StrCat("holds ", JsonExcerpt(value), ", which is no number"));
    }
    out->push_back(value.get<double>());
  }
  return absl::OkStatus();
}

template <typename Enum>
requires std::is_enum_v<Enum> absl::Status FromJson(const JsonObject& object, const char* key, Enum* out) {
  ASSIGN_OR_RETURN(const std::string name, object.String(key));
  const absl::Span<const char* const> names = NamesOf(Enum{});
  for (size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) {
      *out = static_cast<Enum>(i);
      return absl::OkStatus();
    }
  }
  return object.Error(key, absl::StrCat("is ", JsonExcerpt(json(name)), ", which is not known"));
}

// The first version of the format had only norms per head, stored as a boolean.
absl::Status FromJson(const JsonObject& object, const char* key, QkNorm* out) {
  const json* value = object.Find(key);
  if (value == nullptr || !value->is_boolean()) return FromJson<QkNorm>(object, key, out);
  *out = value->get<bool>() ? QkNorm::kPerHead : QkNorm::kNone;
  return absl::OkStatus();
}

template <typename Struct>
absl::Status ReadMembers(const JsonObject& object, Struct* out);

template <typename Struct>
requires std::is_class_v<Struct> absl::Status FromJson(const JsonObject& object, const char* key,
                                                       Struct* out) {
  ASSIGN_OR_RETURN(const JsonObject member, object.Object(key));
  return ReadMembers(member, out);
}

absl::Status FromJson(const JsonObject& object, const char* key, std::vector<LayerConfig>* out) {
  ASSIGN_OR_RETURN(const json* layers, object.Array(key));
  if (layers->empty() || layers->size() > kMaxLayers) {
    return object.Error(key, absl::StrCat("has ", layers->size(), " entries, not 1 to ", kMaxLayers));
  }
  for (size_t i = 0; i < layers->size(); ++i) {
    ASSIGN_OR_RETURN(const JsonObject entry,
                     JsonObject::Of((*layers)[i], absl::StrCat(object.subject(), ": layers[", i, "]")));
    RETURN_IF_ERROR(ReadMembers(entry, &out->emplace_back()));
  }
  return absl::OkStatus();
}

// Reads the members of one struct, up to the first error.
template <typename Struct>
class Reader {
 public:
  Reader(const JsonObject& object, Struct* to) : object_(object), to_(to) {}

  template <typename Member>
  void Now(const char* key, Member Struct::*member) {
    known_.push_back(key);
    if (status_.ok()) status_ = FromJson(object_, key, &(to_->*member));
  }
  template <typename Member>
  void Later(const char* key, Member Struct::*member) {
    if (object_.Has(key)) Now(key, member);
  }

  // An unknown member may change the computation, so it is refused.
  absl::Status Finish() const {
    RETURN_IF_ERROR(status_);
    for (const auto& [key, value] : object_.value().items()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        return object_.Error(key.substr(0, 60), "is not known");
      }
    }
    return absl::OkStatus();
  }

 private:
  const JsonObject& object_;
  Struct* const to_;
  std::vector<std::string_view> known_;
  absl::Status status_;
};

template <typename Struct>
absl::Status ReadMembers(const JsonObject& object, Struct* out) {
  Reader<Struct> reader(object, out);
  Members(*out, &reader);
  return reader.Finish();
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

json ModelConfigToJson(const ModelConfig& config) { return ToJson(config); }

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
  RETURN_IF_ERROR(ReadMembers(object, &config));
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
