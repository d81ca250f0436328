#include "common/model/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/model/model_limits.h"
#include "common/status.h"
#include "common/strict_json.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr int64_t kMost = INT32_MAX;

// The keys of one architecture, as a straight list of questions: the first error is kept for the end, and a
// wrong answer comes back as the lowest allowed value.
class Questions {
 public:
  Questions(const GgufFiles& files, const std::string& architecture)
      : files_(files), keys_(files.keys()), prefix_(architecture + ".") {}

  const GgufFiles& files() const { return files_; }
  std::string Key(const std::string& name) const { return prefix_ + name; }
  bool Has(const std::string& name) const { return keys_.Has(Key(name)); }
  bool HasTensor(const std::string& name) const { return files_.Find(name) != nullptr; }
  const absl::Status& status() const { return status_; }

  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  void Refuse(const std::string& name, const std::string& what) { Keep(keys_.Unsupported(Key(name), what)); }

  template <typename T>
  T Take(const absl::StatusOr<std::optional<T>>& value, const T& otherwise) {
    if (!value.ok()) Keep(value.status());
    return value.ok() && value->has_value() ? **value : otherwise;
  }
  uint64_t Whole(const std::string& name, uint64_t fallback, int64_t low = 0) {
    const uint64_t otherwise = std::max<uint64_t>(fallback, static_cast<uint64_t>(low));
    return static_cast<uint64_t>(Take(keys_.Int(Key(name), low, kMost), static_cast<int64_t>(otherwise)));
  }
  uint64_t NeedWhole(const std::string& name, int64_t low = 1) {
    if (!Has(name)) Keep(keys_.Error(Key(name), "is missing"));
    return Whole(name, 0, low);
  }
  // A number for all layers, or a list of one a layer, which must be the same.
  uint64_t SameWhole(const std::string& name, uint64_t fallback) {
    const auto list = keys_.Ints(Key(name));
    if (!list.ok() || *list == nullptr) return Whole(name, fallback, 1);
    const std::vector<int64_t>& values = **list;
    if (values.empty() || values[0] < 1 || values[0] > kMost) Keep(keys_.Error(Key(name), "is no such list"));
    for (const int64_t value : values) {
      if (value != values[0]) Refuse(name, "with another number in each layer");
    }
    return status_.ok() ? static_cast<uint64_t>(values[0]) : 1;
  }
  double Real(const std::string& name, double fallback) { return Take(keys_.Real(Key(name)), fallback); }
  bool Flag(const std::string& name) { return Whole(name, 0) != 0; }
  std::string Word(const std::string& name, const std::string& fallback) {
    return Take(keys_.Text(Key(name)), fallback);
  }
  std::string Text(const std::string& key) { return Take(keys_.Text(key), std::string()); }
  uint64_t Id(const std::string& key, bool* found) {
    const int64_t id = Take(keys_.Int(key, -1, UINT32_MAX), int64_t{-1});
    *found = id >= 0;
    return static_cast<uint64_t>(id);
  }

  // Dimension `dim` of a layer's tensor, in the first layer that has it; 0 if none has.
  uint64_t DimOf(const std::string& module, size_t dim, uint64_t layers) const {
    for (uint64_t i = 0; i < layers; ++i) {
      const GgufTensorInfo* tensor = files_.Find(absl::StrCat("blk.", i, ".", module));
      if (tensor != nullptr && tensor->dims.size() > dim) return tensor->dims[dim];
    }
    return 0;
  }
  bool AnyLayerHas(const std::string& module, uint64_t layers) const { return DimOf(module, 0, layers) != 0; }
  bool LayerHas(uint64_t layer, const std::string& module) const {
    return HasTensor(absl::StrCat("blk.", layer, ".", module));
  }
  // The values of a small tensor; empty if it is not there.
  std::vector<double> Values(const std::string& name) {
    const GgufTensorInfo* tensor = files_.Find(name);
    if (tensor == nullptr) return {};
    const absl::StatusOr<std::vector<float>> values = files_.ReadSmall(*tensor);
    if (!values.ok()) Keep(values.status());
    if (!values.ok()) return {};
    for (const float value : *values) {
      if (!std::isfinite(value))
        Keep(absl::InvalidArgumentError(absl::StrCat(files_.path(), ": tensor ", name, " holds ", value)));
    }
    return {values->begin(), values->end()};
  }

 private:
  const GgufFiles& files_;
  const GgufKeys& keys_;
  const std::string prefix_;
  absl::Status status_;
};

// The file's numbers that every family has.
struct Frame {
  uint64_t layers = 0;
  uint64_t blocks = 0;  // with layers that predict further tokens
  uint64_t hidden = 0;
  uint64_t heads = 0;
  uint64_t head_dim = 0;
  uint64_t context = 0;
};

// --- Rope ---

void AddYarn(double mscale_all_dim, Questions* q, json* rope) {
  (*rope)["rope_type"] = "yarn";
  (*rope)["factor"] = q->Real("rope.scaling.factor", 1);
  (*rope)["beta_fast"] = q->Real("rope.scaling.yarn_beta_fast", 32);
  (*rope)["beta_slow"] = q->Real("rope.scaling.yarn_beta_slow", 1);
  if (q->Real("rope.scaling.yarn_ext_factor", 1) != 1)
    q->Refuse("rope.scaling.yarn_ext_factor", "other than 1");
  if (q->Has("rope.scaling.attn_factor") || q->Has("rope.scaling.yarn_attn_factor")) {
    const double own = q->Real("rope.scaling.attn_factor", q->Real("rope.scaling.yarn_attn_factor", 1));
    const double factor = (*rope)["factor"].get<double>();
    (*rope)["attention_factor"] = own * (factor > 1 ? 1 + 0.1 * std::log(factor) : 1);
  }
  if (mscale_all_dim == 0) return;
  // The file keeps the product alone; both are the same in all models that have them.
  (*rope)["mscale"] = mscale_all_dim;
  (*rope)["mscale_all_dim"] = mscale_all_dim;
}

// Divisors of the frequencies, one set for short texts and one for long ones.
void AddDivisors(std::vector<double> shorts, std::vector<double> longs, bool mscales, const Frame& frame,
                 Questions* q, json* rope) {
  (*rope)["rope_type"] = "longrope";
  const double original = (*rope)["original_max_position_embeddings"].get<double>();
  const double stretch = static_cast<double>(frame.context) / original;
  const double factor =
      q->Real("rope.scaling.attn_factor",
              stretch <= 1 || original < 2 ? 1 : std::sqrt(1 + std::log(stretch) / std::log(original)));
  if (mscales) {
    (*rope)["short_mscale"] = factor;
    (*rope)["long_mscale"] = factor;
  } else {
    (*rope)["attention_factor"] = factor;
  }
  (*rope)["short_factor"] = std::move(shorts);
  (*rope)["long_factor"] = std::move(longs);
}

// rope_scaling, or null. `mscales`: the family names its attention factors so.
json RopeScaling(const Frame& frame, double mscale_all_dim, bool mscales, Questions* q) {
  json rope = json::object();
  const uint64_t original = q->Whole("rope.scaling.original_context_length", frame.context, 1);
  rope["original_max_position_embeddings"] = original;
  std::vector<double> shorts = q->Values("rope_factors_short.weight");
  std::vector<double> longs = q->Values("rope_factors_long.weight");
  if (!shorts.empty() || !longs.empty()) {
    AddDivisors(std::move(shorts), std::move(longs), mscales, frame, q, &rope);
    return rope;
  }
  std::vector<double> divisors = q->Values("rope_freqs.weight");
  if (std::any_of(divisors.begin(), divisors.end(), [](double d) { return d != 1; })) {
    AddDivisors(divisors, divisors, mscales, frame, q, &rope);
    return rope;
  }
  const std::string type = q->Word("rope.scaling.type", "none");
  const double linear =
      q->Real("rope.scale_linear", type == "linear" ? q->Real("rope.scaling.factor", 1) : 1);
  if (type == "yarn") {
    AddYarn(mscale_all_dim, q, &rope);
    return rope;
  }
  if (type != "none" && type != "linear") q->Refuse("rope.scaling.type", type.substr(0, 40));
  if (linear == 1) return nullptr;
  return {{"rope_type", "linear"}, {"factor", linear}};
}

// --- What families share ---

json FrameJson(const char* model_type, const char* architecture, const Frame& frame, Questions* q) {
  json config = {{"model_type", model_type}, {"architectures", {architecture}}};
  const GgufTensorInfo* embed = q->files().Find("token_embd.weight");
  if (embed == nullptr || embed->dims.size() != 2) {
    q->Keep(absl::InvalidArgumentError(absl::StrCat(q->files().path(), ": has no matrix token_embd.weight")));
  } else {
    config["vocab_size"] = embed->dims[1];
  }
  config["hidden_size"] = frame.hidden;
  config["num_hidden_layers"] = frame.layers;
  config["max_position_embeddings"] = frame.context;
  config["rms_norm_eps"] = q->Real("attention.layer_norm_rms_epsilon", 1e-5);
  config["num_attention_heads"] = frame.heads;
  config["tie_word_embeddings"] = !q->HasTensor("output.weight");
  config["rope_theta"] = q->Real("rope.freq_base", 10000);
  return config;
}

void AddGrouped(const Frame& frame, bool mscales, Questions* q, json* config) {
  (*config)["num_key_value_heads"] = q->SameWhole("attention.head_count_kv", frame.heads);
  (*config)["head_dim"] = frame.head_dim;
  if (q->Whole("attention.value_length", frame.head_dim) != frame.head_dim) {
    q->Refuse("attention.value_length", "other than attention.key_length");
  }
  const json rope = RopeScaling(frame, 0, mscales, q);
  if (!rope.is_null()) (*config)["rope_scaling"] = rope;
}

void RequireWholeHeadRope(const Frame& frame, Questions* q) {
  if (q->Whole("rope.dimension_count", frame.head_dim) != frame.head_dim) {
    q->Refuse("rope.dimension_count", "other than a whole head");
  }
}

void AddExperts(const char* count_name, const char* width_name, const Frame& frame, Questions* q,
                json* config) {
  (*config)[count_name] = q->NeedWhole("expert_count");
  (*config)["num_experts_per_tok"] = q->NeedWhole("expert_used_count");
  // Old files do not say it; one tensor for each expert is older still.
  uint64_t width = q->DimOf("ffn_up_exps.weight", 1, frame.layers);
  if (width == 0) width = q->DimOf("ffn_up.0.weight", 1, frame.layers);
  if (width == 0) width = q->DimOf("ffn_gate_up_exps.weight", 1, frame.layers) / 2;
  (*config)[width_name] = q->Whole("expert_feed_forward_length", width, 1);
}

// The gating function must be this one, or not be said.
void RequireGating(uint64_t function, Questions* q) {
  const uint64_t said = q->Whole("expert_gating_func", function);
  if (said != function) q->Refuse("expert_gating_func", absl::StrCat(said));
}

// Layers that have a dense FFN and no router.
json DenseLayers(const Frame& frame, const Questions& q) {
  json layers = json::array();
  for (uint64_t i = 0; i < frame.layers; ++i) {
    if (q.LayerHas(i, "ffn_up.weight") && !q.LayerHas(i, "ffn_gate_inp.weight")) layers.push_back(i);
  }
  return layers;
}

// --- Families ---

using ConfigReader = json (*)(const Frame& frame, Questions* q);

json Mixtral(const Frame& frame, Questions* q) {
  json config = FrameJson("mixtral", "MixtralForCausalLM", frame, q);
  AddGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  if (!q->Has("expert_count") || q->Whole("expert_count", 0) == 0) {
    q->Keep(absl::UnimplementedError(
        absl::StrCat(q->files().path(),
                     ": a dense llama without experts is not supported; Sluice runs mixtures of experts")));
    return config;
  }
  AddExperts("num_local_experts", "intermediate_size", frame, q, &config);
  return config;
}

json Qwen(const char* model_type, const char* architecture, bool norm, const Frame& frame, Questions* q) {
  json config = FrameJson(model_type, architecture, frame, q);
  AddGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  AddExperts("num_experts", "moe_intermediate_size", frame, q, &config);
  RequireGating(1, q);
  config["norm_topk_prob"] = norm;
  config["intermediate_size"] = q->Whole("feed_forward_length", 1, 1);
  config["mlp_only_layers"] = DenseLayers(frame, *q);
  return config;
}

json Qwen2Moe(const Frame& frame, Questions* q) {
  json config = Qwen("qwen2_moe", "Qwen2MoeForCausalLM", false, frame, q);
  config["qkv_bias"] =
      q->AnyLayerHas("attn_q.bias", frame.layers) || q->AnyLayerHas("attn_qkv.bias", frame.layers);
  config["shared_expert_intermediate_size"] =
      q->Whole("expert_shared_feed_forward_length", q->DimOf("ffn_up_shexp.weight", 1, frame.layers), 1);
  return config;
}

json Qwen3Moe(const Frame& frame, Questions* q) {
  return Qwen("qwen3_moe", "Qwen3MoeForCausalLM", true, frame, q);
}

json Olmoe(const Frame& frame, Questions* q) {
  json config = FrameJson("olmoe", "OlmoeForCausalLM", frame, q);
  AddGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  AddExperts("num_experts", "intermediate_size", frame, q, &config);
  config["norm_topk_prob"] = false;
  return config;
}

json GraniteMoe(const Frame& frame, Questions* q) {
  json config = FrameJson("granitemoe", "GraniteMoeForCausalLM", frame, q);
  AddGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  AddExperts("num_local_experts", "intermediate_size", frame, q, &config);
  config["embedding_multiplier"] = q->Real("embedding_scale", 1);
  config["residual_multiplier"] = q->Real("residual_scale", 1);
  config["attention_multiplier"] =
      q->Real("attention.scale", 1 / std::sqrt(static_cast<double>(frame.head_dim)));
  config["logits_scaling"] = q->Real("logit_scale", 1);
  return config;
}

json Phimoe(const Frame& frame, Questions* q) {
  json config = FrameJson("phimoe", "PhimoeForCausalLM", frame, q);
  AddGrouped(frame, true, q, &config);
  RequireWholeHeadRope(frame, q);
  AddExperts("num_local_experts", "intermediate_size", frame, q, &config);
  config["attention_bias"] =
      q->AnyLayerHas("attn_q.bias", frame.layers) || q->AnyLayerHas("attn_qkv.bias", frame.layers);
  config["lm_head_bias"] = q->HasTensor("output.bias");
  const uint64_t window = q->Whole("attention.sliding_window", 0);
  if (window != 0) config["sliding_window"] = window;
  return config;
}

// DeepSeek's names, which GLM-4 has too.
void AddDeepseekMixture(const Frame& frame, Questions* q, json* config) {
  AddExperts("n_routed_experts", "moe_intermediate_size", frame, q, config);
  (*config)["n_shared_experts"] = q->Whole("expert_shared_count", 0);
  (*config)["intermediate_size"] = q->Whole("feed_forward_length", 1, 1);
  const json dense = DenseLayers(frame, *q);
  for (size_t i = 0; i < dense.size(); ++i) {
    if (dense[i] != i) q->Refuse("leading_dense_block_count", "with dense layers elsewhere");
  }
  (*config)["first_k_dense_replace"] = dense.size();
}

void AddSigmoidRouter(Questions* q, json* config) {
  (*config)["norm_topk_prob"] = q->Flag("expert_weights_norm");
  (*config)["routed_scaling_factor"] = q->Real("expert_weights_scale", 1);
  (*config)["n_group"] = q->Whole("expert_group_count", 1, 1);
  (*config)["topk_group"] = q->Whole("expert_group_used_count", 1, 1);
}

json Glm4Moe(const Frame& frame, Questions* q) {
  json config = FrameJson("glm4_moe", "Glm4MoeForCausalLM", frame, q);
  AddGrouped(frame, false, q, &config);
  const uint64_t rotated = q->Whole("rope.dimension_count", frame.head_dim / 2);
  config["partial_rotary_factor"] = static_cast<double>(rotated) / static_cast<double>(frame.head_dim);
  config["attention_bias"] =
      q->AnyLayerHas("attn_q.bias", frame.layers) || q->AnyLayerHas("attn_qkv.bias", frame.layers);
  config["use_qk_norm"] = q->AnyLayerHas("attn_q_norm.weight", frame.layers);
  RequireGating(2, q);
  AddDeepseekMixture(frame, q, &config);
  AddSigmoidRouter(q, &config);
  return config;
}

json Deepseek(const Frame& frame, Questions* q) {
  json config = FrameJson("deepseek", "DeepseekForCausalLM", frame, q);
  AddGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  AddDeepseekMixture(frame, q, &config);
  RequireGating(1, q);
  config["norm_topk_prob"] = q->Flag("expert_weights_norm");
  if (q->Real("expert_weights_scale", 1) != 1) q->Refuse("expert_weights_scale", "other than 1");
  return config;
}

// Latent attention's sizes. Since 2025 the lengths without _mla are those of the absorbed form.
void AddLatent(const Frame& frame, Questions* q, json* config) {
  const uint64_t rotated = q->NeedWhole("rope.dimension_count");
  const uint64_t key = q->Whole("attention.key_length_mla", q->Whole("attention.key_length", 0));
  if (key <= rotated)
    q->Refuse("attention.key_length", absl::StrCat(key, " beside rope.dimension_count ", rotated));
  (*config)["num_key_value_heads"] = frame.heads;
  (*config)["kv_lora_rank"] = q->NeedWhole("attention.kv_lora_rank");
  (*config)["qk_rope_head_dim"] = rotated;
  (*config)["qk_nope_head_dim"] = key > rotated ? key - rotated : 1;
  (*config)["v_head_dim"] =
      q->Whole("attention.value_length_mla", q->Whole("attention.value_length", 1, 1), 1);
  (*config)["q_lora_rank"] = nullptr;
  if (q->Has("attention.q_lora_rank")) (*config)["q_lora_rank"] = q->NeedWhole("attention.q_lora_rank");
  const double mscale_all_dim = 10 * q->Real("rope.scaling.yarn_log_multiplier", 0);
  const json rope = RopeScaling(frame, mscale_all_dim, false, q);
  if (!rope.is_null()) (*config)["rope_scaling"] = rope;
}

json Deepseek2(const Frame& frame, Questions* q) {
  const uint64_t gating = q->Whole("expert_gating_func", 1);
  const bool sigmoid = gating == 2;
  if (!sigmoid) RequireGating(1, q);
  json config = FrameJson(sigmoid ? "deepseek_v3" : "deepseek_v2",
                          sigmoid ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM", frame, q);
  AddLatent(frame, q, &config);
  AddDeepseekMixture(frame, q, &config);
  AddSigmoidRouter(q, &config);
  if (sigmoid) return config;
  if (config["norm_topk_prob"] == true) q->Refuse("expert_weights_norm", "with a softmax router");
  config["topk_method"] = config["n_group"] == 1 ? "greedy" : "group_limited_greedy";
  return config;
}

json GptOss(const Frame& frame, Questions* q) {
  json config = FrameJson("gpt_oss", "GptOssForCausalLM", frame, q);
  AddGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  // The file cannot say that the ramp's ends are not rounded; no model of the family rounds them.
  if (config.contains("rope_scaling")) {
    config["rope_scaling"]["truncate"] = false;
  } else {
    config["rope_scaling"] = {{"rope_type", "default"}};
  }
  AddExperts("num_local_experts", "intermediate_size", frame, q, &config);
  config["sliding_window"] = q->Whole("attention.sliding_window", 128, 1);
  config["attention_bias"] = true;
  return config;
}

json Llama4(const Frame& frame, Questions* q) {
  json config = FrameJson("llama4_text", "Llama4ForCausalLM", frame, q);
  AddGrouped(frame, false, q, &config);
  RequireWholeHeadRope(frame, q);
  AddExperts("num_local_experts", "intermediate_size", frame, q, &config);
  config["intermediate_size_mlp"] = q->Whole("feed_forward_length", 1, 1);
  config["interleave_moe_layer_step"] = q->Whole("interleave_moe_layer_step", 1, 1);
  // Not in the file: Maverick, the model of 128 experts, has no norms of q and k.
  config["use_qk_norm"] = config["num_local_experts"] != 128;
  if (q->Has("attention.sliding_window")) q->Refuse("attention.sliding_window", "of a llama4");
  return config;
}

json MinimaxM2(const Frame& frame, Questions* q) {
  json config = FrameJson("minimax_m2", "MiniMaxM2ForCausalLM", frame, q);
  AddGrouped(frame, false, q, &config);
  config["rotary_dim"] = q->Whole("rope.dimension_count", frame.head_dim);
  RequireGating(2, q);
  AddExperts("num_local_experts", "intermediate_size", frame, q, &config);
  return config;
}

struct NamedReader {
  std::string_view architecture;
  ConfigReader read;
};
constexpr NamedReader kReaders[] = {
    {"llama", &Mixtral},         {"qwen2moe", &Qwen2Moe}, {"qwen3moe", &Qwen3Moe}, {"olmoe", &Olmoe},
    {"granitemoe", &GraniteMoe}, {"phimoe", &Phimoe},     {"glm4moe", &Glm4Moe},   {"deepseek", &Deepseek},
    {"deepseek2", &Deepseek2},   {"gpt-oss", &GptOss},    {"llama4", &Llama4},     {"minimax-m2", &MinimaxM2},
};

// --- The whole ---

absl::StatusOr<const GgufArchitecture*> ArchitectureOf(const GgufKeys& keys) {
  ASSIGN_OR_RETURN(const std::optional<std::string> type, keys.Text("general.type"));
  if (type.has_value() && *type != "model") {
    return keys.Unsupported("general.type", JsonExcerpt(json(*type)) + " (a model's is \"model\")");
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> name, keys.Text("general.architecture"));
  if (!name.has_value()) return keys.Error("general.architecture", "is missing");
  const GgufArchitecture* architecture = FindGgufArchitecture(*name);
  if (architecture == nullptr) {
    return keys.Unsupported("general.architecture", absl::StrCat(JsonExcerpt(json(*name)),
                                                                 " (known: ", GgufArchitectureNames(), ")"));
  }
  return architecture;
}

Frame ReadFrame(Questions* q) {
  Frame frame;
  const uint64_t blocks = q->NeedWhole("block_count");
  const uint64_t predicting = q->Whole("nextn_predict_layers", 0);
  if (predicting >= blocks) q->Refuse("nextn_predict_layers", absl::StrCat(predicting, " of ", blocks));
  frame.layers = std::min<uint64_t>(predicting < blocks ? blocks - predicting : 1, kMaxLayers);
  if (blocks > kMaxLayers) q->Refuse("block_count", absl::StrCat(blocks));
  frame.blocks = blocks;
  frame.hidden = q->NeedWhole("embedding_length");
  frame.context = q->NeedWhole("context_length");
  frame.heads = q->SameWhole("attention.head_count", 0);
  frame.head_dim = q->Whole("attention.key_length", frame.hidden / std::max<uint64_t>(frame.heads, 1), 1);
  return frame;
}

// Tokens that begin a text, and all that end a turn.
void AddTokens(Questions* q, json* config) {
  bool found = false;
  const uint64_t bos = q->Id("tokenizer.ggml.bos_token_id", &found);
  if (found) (*config)["bos_token_id"] = bos;
  json ends = json::array();
  for (const char* name : {"eos", "eot", "eom"}) {
    const uint64_t id = q->Id(absl::StrCat("tokenizer.ggml.", name, "_token_id"), &found);
    if (found && std::find(ends.begin(), ends.end(), json(id)) == ends.end()) ends.push_back(id);
  }
  if (!ends.empty()) (*config)["eos_token_id"] = ends;
}

std::string GenerationOf(const GgufKeys& keys, Questions* q) {
  json generation = json::object();
  for (const char* name : {"temp", "top_p", "min_p", "top_k"}) {
    const std::string key = absl::StrCat("general.sampling.", name);
    if (!keys.Has(key)) continue;
    const std::string hub = std::string_view(name) == "temp" ? "temperature" : name;
    if (hub == "top_k") {
      generation[hub] = q->Take(keys.Int(key, 0, kMaxVocab), int64_t{0});
    } else {
      generation[hub] = q->Take(keys.Real(key), 0.0);
    }
  }
  return generation.empty() ? "" : generation.dump();
}

}  // namespace

absl::StatusOr<GgufConfig> ReadGgufConfig(const GgufFiles& files) {
  GgufConfig result;
  ASSIGN_OR_RETURN(result.architecture, ArchitectureOf(files.keys()));
  Questions questions(files, result.architecture->name);
  const Frame frame = ReadFrame(&questions);
  const auto reader = std::find_if(std::begin(kReaders), std::end(kReaders), [&](const NamedReader& row) {
    return row.architecture == result.architecture->name;
  });
  if (reader == std::end(kReaders)) return absl::InternalError("an architecture without a reader");
  json config = reader->read(frame, &questions);
  AddTokens(&questions, &config);
  result.generation_json = GenerationOf(files.keys(), &questions);
  ASSIGN_OR_RETURN(const std::vector<std::string>* tokens, files.keys().Texts("tokenizer.ggml.tokens"));
  const uint64_t rows = config.value("vocab_size", uint64_t{0});
  if (tokens != nullptr && tokens->size() > rows) {
    return files.keys().Error(
        "tokenizer.ggml.tokens",
        absl::StrCat("has ", tokens->size(), " tokens for the ", rows, " rows of token_embd.weight"));
  }
  result.chat_template = questions.Text("tokenizer.chat_template");
  RETURN_IF_ERROR(questions.status());
  result.shape.layers = static_cast<uint32_t>(frame.layers);
  result.shape.blocks = static_cast<uint32_t>(frame.blocks);
  result.shape.head_dim = static_cast<uint32_t>(frame.head_dim);
  result.shape.q_rows = frame.heads * frame.head_dim;
  result.shape.kv_rows = config.value("num_key_value_heads", uint64_t{0}) * frame.head_dim;
  result.config_json = config.dump();
  return result;
}

}  // namespace sluice
