#include "common/model/gguf_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "common/model/hf_config.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

using nlohmann::json;

void AddYarn(double mscale_all_dim, GgufKeyReader* q, json* rope) {
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
  // The file holds only the product; both factors are equal in all models that have them.
  (*rope)["mscale"] = mscale_all_dim;
  (*rope)["mscale_all_dim"] = mscale_all_dim;
}

// Divisors of the frequencies, one set for short sequences and one for long ones.
void AddDivisors(std::vector<double> shorts, std::vector<double> longs, bool mscales,
                 const GgufBaseConfig& base, GgufKeyReader* q, json* rope) {
  (*rope)["rope_type"] = "longrope";
  const double original = (*rope)["original_max_position_embeddings"].get<double>();
  const double stretch = static_cast<double>(base.context) / original;
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

}  // namespace

json GgufRopeScaling(const GgufBaseConfig& base, double mscale_all_dim, bool mscales, GgufKeyReader* q) {
  json rope = json::object();
  const uint64_t original = q->IntOr("rope.scaling.original_context_length", base.context, 1);
  rope["original_max_position_embeddings"] = original;
  std::vector<double> shorts = q->Values("rope_factors_short.weight");
  std::vector<double> longs = q->Values("rope_factors_long.weight");
  if (!shorts.empty() || !longs.empty()) {
    AddDivisors(std::move(shorts), std::move(longs), mscales, base, q, &rope);
    return rope;
  }
  std::vector<double> divisors = q->Values("rope_freqs.weight");
  if (std::any_of(divisors.begin(), divisors.end(), [](double d) { return d != 1; })) {
    AddDivisors(divisors, divisors, mscales, base, q, &rope);
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

json GgufBaseJson(const char* model_type, const char* architecture, const GgufBaseConfig& base,
                  GgufKeyReader* q) {
  json config = {{"model_type", model_type}, {"architectures", {architecture}}};
  const GgufTensorInfo* embed = q->files().Find("token_embd.weight");
  if (embed == nullptr || embed->dims.size() != 2) {
    q->Keep(absl::InvalidArgumentError(absl::StrCat(q->files().path(), ": has no matrix token_embd.weight")));
  } else {
    config["vocab_size"] = embed->dims[1];
  }
  config["hidden_size"] = base.hidden;
  config["num_hidden_layers"] = base.layers;
  config["max_position_embeddings"] = base.context;
  config["rms_norm_eps"] = q->Real("attention.layer_norm_rms_epsilon", 1e-5);
  config["num_attention_heads"] = base.heads;
  config["tie_word_embeddings"] = !q->HasTensor("output.weight");
  config["rope_theta"] = q->Real("rope.freq_base", 10000);
  return config;
}

void AddGgufHeads(const GgufBaseConfig& base, uint64_t kv_heads, bool mscales, GgufKeyReader* q,
                  json* config) {
  (*config)["num_key_value_heads"] = kv_heads;
  (*config)["head_dim"] = base.head_dim;
  if (q->IntOr("attention.value_length", base.head_dim) != base.head_dim) {
    q->Refuse("attention.value_length", "other than attention.key_length");
  }
  const json rope = GgufRopeScaling(base, 0, mscales, q);
  if (!rope.is_null()) (*config)["rope_scaling"] = rope;
}

void AddGgufGrouped(const GgufBaseConfig& base, bool mscales, GgufKeyReader* q, json* config) {
  AddGgufHeads(base, q->UniformInt("attention.head_count_kv", base.heads), mscales, q, config);
}

void RequireWholeHeadRope(const GgufBaseConfig& base, GgufKeyReader* q) {
  if (q->IntOr("rope.dimension_count", base.head_dim) != base.head_dim) {
    q->Refuse("rope.dimension_count", "other than a whole head");
  }
}

uint64_t GgufExpertWidth(const GgufBaseConfig& base, GgufKeyReader* q) {
  // Old files lack this key; one tensor per expert is an even older layout.
  uint64_t width = q->DimOf("ffn_up_exps.weight", 1, base.layers);
  if (width == 0) width = q->DimOf("ffn_up.0.weight", 1, base.layers);
  if (width == 0) width = q->DimOf("ffn_gate_up_exps.weight", 1, base.layers) / 2;
  return q->IntOr("expert_feed_forward_length", width, 1);
}

void AddGgufExperts(const char* count_name, const char* width_name, const GgufBaseConfig& base,
                    GgufKeyReader* q, json* config) {
  (*config)[count_name] = q->RequiredInt("expert_count");
  (*config)["num_experts_per_tok"] = q->RequiredInt("expert_used_count");
  (*config)[width_name] = GgufExpertWidth(base, q);
}

void RequireGgufGating(uint64_t function, GgufKeyReader* q) {
  const uint64_t said = q->IntOr("expert_gating_func", function);
  if (said != function) q->Refuse("expert_gating_func", absl::StrCat(said));
}

uint64_t GgufHeadsOfSomeLayers(const GgufBaseConfig& base, GgufKeyReader* q) {
  const std::vector<int64_t> kv_heads = q->IntList("attention.head_count_kv");
  int64_t heads = 0;
  for (const int64_t of_layer : kv_heads) {
    if (of_layer < 0 || (heads != 0 && of_layer != 0 && of_layer != heads)) {
      q->Refuse("attention.head_count_kv", "with other numbers than one and zeros");
    }
    if (of_layer > 0) heads = of_layer;
  }
  if (kv_heads.size() < base.layers || heads == 0) {
    q->Refuse("attention.head_count_kv",
              absl::StrCat("of ", kv_heads.size(), " numbers for ", base.layers, " layers, or of zeros"));
  }
  return static_cast<uint64_t>(std::max<int64_t>(heads, 1));
}

json GgufDenseLayers(const GgufBaseConfig& base, const GgufKeyReader& q) {
  json layers = json::array();
  for (uint64_t i = 0; i < base.layers; ++i) {
    if (q.LayerHas(i, "ffn_up.weight") && !q.LayerHas(i, "ffn_gate_inp.weight")) layers.push_back(i);
  }
  return layers;
}

uint64_t GgufLeadingDenseLayers(const GgufBaseConfig& base, GgufKeyReader* q) {
  const json dense = GgufDenseLayers(base, *q);
  for (size_t i = 0; i < dense.size(); ++i) {
    if (dense[i] != i) q->Refuse("leading_dense_block_count", "with dense layers elsewhere");
  }
  return dense.size();
}

void AddGgufMlpTypes(const GgufBaseConfig& base, const GgufKeyReader& q, json* config) {
  json types = json::array();
  for (uint64_t i = 0; i < base.layers; ++i) {
    types.push_back(q.LayerHas(i, "ffn_gate_inp.weight") ? "sparse" : "dense");
  }
  (*config)["mlp_layer_types"] = types;
}

std::vector<bool> GgufSlidingLayers(const GgufBaseConfig& base, uint64_t period, bool full_first,
                                    GgufKeyReader* q) {
  std::vector<bool> slides(base.layers);
  if (q->IntOr("attention.sliding_window", 0) == 0) return slides;
  if (!q->IsList("attention.sliding_window_pattern")) {
    period = q->IntOr("attention.sliding_window_pattern", period, 1);
    for (uint64_t i = 0; i < base.layers; ++i) slides[i] = (full_first ? i : i + 1) % period != 0;
    return slides;
  }
  const std::vector<int64_t> listed = q->IntList("attention.sliding_window_pattern");
  if (listed.size() < base.layers) {
    q->Refuse("attention.sliding_window_pattern",
              absl::StrCat("of ", listed.size(), " entries for ", base.layers, " layers"));
    return slides;
  }
  for (uint64_t i = 0; i < base.layers; ++i) slides[i] = listed[i] != 0;
  return slides;
}

json GgufWindowTypes(const std::vector<bool>& slides) {
  json types = json::array();
  for (const bool slide : slides) types.push_back(slide ? "sliding_attention" : "full_attention");
  return types;
}

void AddGgufWindows(const std::vector<bool>& slides, GgufKeyReader* q, json* config) {
  const uint64_t window = q->IntOr("attention.sliding_window", 0);
  (*config)["layer_types"] = GgufWindowTypes(slides);
  (*config)["sliding_window"] = nullptr;
  if (window != 0) (*config)["sliding_window"] = window;
}

void AddGgufRouter(bool norm, GgufKeyReader* q, json* config) {
  (*config)["norm_topk_prob"] = q->IntOr("expert_weights_norm", norm ? 1 : 0) != 0;
  (*config)["routed_scaling_factor"] = q->Real("expert_weights_scale", 1);
  (*config)["n_group"] = q->IntOr("expert_group_count", 1, 1);
  (*config)["topk_group"] = q->IntOr("expert_group_used_count", 1, 1);
}

void AddGgufDeepseekMixture(const GgufBaseConfig& base, GgufKeyReader* q, json* config) {
  AddGgufExperts("n_routed_experts", "moe_intermediate_size", base, q, config);
  (*config)["n_shared_experts"] = q->IntOr("expert_shared_count", 0);
  (*config)["intermediate_size"] = q->IntOr("feed_forward_length", 1, 1);
  (*config)["first_k_dense_replace"] = GgufLeadingDenseLayers(base, q);
}

void AddGgufLatent(const GgufBaseConfig& base, GgufKeyReader* q, json* config) {
  const uint64_t rotated = q->RequiredInt("rope.dimension_count");
  const uint64_t key = q->IntOr("attention.key_length_mla", q->IntOr("attention.key_length", 0));
  if (key <= rotated)
    q->Refuse("attention.key_length", absl::StrCat(key, " beside rope.dimension_count ", rotated));
  (*config)["num_key_value_heads"] = base.heads;
  (*config)["kv_lora_rank"] = q->RequiredInt("attention.kv_lora_rank");
  (*config)["qk_rope_head_dim"] = rotated;
  (*config)["qk_nope_head_dim"] = key > rotated ? key - rotated : 1;
  (*config)["v_head_dim"] =
      q->IntOr("attention.value_length_mla", q->IntOr("attention.value_length", 1, 1), 1);
  (*config)["q_lora_rank"] = nullptr;
  if (q->Has("attention.q_lora_rank")) (*config)["q_lora_rank"] = q->RequiredInt("attention.q_lora_rank");
  const double mscale_all_dim = 10 * q->Real("rope.scaling.yarn_log_multiplier", 0);
  const json rope = GgufRopeScaling(base, mscale_all_dim, false, q);
  if (!rope.is_null()) (*config)["rope_scaling"] = rope;
}

namespace {

using nlohmann::json;

struct NamedReader {
  std::string_view architecture;
  GgufConfigReader read;
};
constexpr NamedReader kReaders[] = {
    {"llama", &ReadGgufMixtral},
    {"qwen2moe", &ReadGgufQwen2Moe},
    {"qwen3moe", &ReadGgufQwen3Moe},
    {"qwen3vlmoe", &ReadGgufQwen3VlMoe},
    {"olmoe", &ReadGgufOlmoe},
    {"granitemoe", &ReadGgufGraniteMoe},
    {"phimoe", &ReadGgufPhimoe},
    {"glm4moe", &ReadGgufGlm4Moe},
    {"deepseek", &ReadGgufDeepseek},
    {"deepseek2", &ReadGgufDeepseek2},
    {"gpt-oss", &ReadGgufGptOss},
    {"llama4", &ReadGgufLlama4},
    {"minimax-m2", &ReadGgufMinimaxM2},
    {"dots1", &ReadGgufDots1},
    {"ernie4_5-moe", &ReadGgufErnie45Moe},
    {"hunyuan-moe", &ReadGgufHunyuanMoe},
    {"afmoe", &ReadGgufAfmoe},
    {"mistral4", &ReadGgufMistral4},
    {"lfm2moe", &ReadGgufLfm2Moe},
    {"qwen3next", &ReadGgufQwen3Next},
    {"qwen35moe", &ReadGgufQwen35Moe},
    {"granitehybrid", &ReadGgufGraniteHybrid},
    {"nemotron_h_moe", &ReadGgufNemotronHMoe},
    {"gemma4", &ReadGgufGemma4},
    {"hy_v3", &ReadGgufHyV3},
    {"exaone-moe", &ReadGgufExaoneMoe},
    {"mellum", &ReadGgufMellum},
    {"laguna", &ReadGgufLaguna},
    {"cohere2moe", &ReadGgufCohere2Moe},
    {"step35", &ReadGgufStep35},
    {"mimo2", &ReadGgufMimo2},
    {"minimax-m3", &ReadGgufMinimaxM3},
    {"deepseek32", &ReadGgufDeepseek32},
    {"glm-dsa", &ReadGgufGlmDsa},
    {"deepseek4", &ReadGgufDeepseek4},
    {"kimi-linear", &ReadGgufKimiLinear},
    {"bailingmoe3", &ReadGgufBailingMoe3},
    {"jamba", &ReadGgufJamba},
};

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

// True if a layer's tensors predict further tokens, or if there are none.
bool IsLeftOut(const GgufFiles& files, uint64_t layer) {
  const std::string prefix = absl::StrCat("blk.", layer, ".");
  bool any = false;
  for (const GgufTensorInfo& tensor : files.tensors()) {
    if (!absl::StartsWith(tensor.name, prefix)) continue;
    if (absl::StartsWith(tensor.name, prefix + "nextn.")) return true;
    any = true;
  }
  return !any;
}

// Returns the number of layers at the end that predict further tokens. The key alone does not decide: some
// files have it, and ordinary layers up to the last one.
uint64_t CountPredicting(uint64_t blocks, GgufKeyReader* q) {
  const uint64_t stated = q->IntOr("nextn_predict_layers", 0);
  if (stated >= blocks) {
    q->Refuse("nextn_predict_layers", absl::StrCat(stated, " of ", blocks));
    return 0;
  }
  if (blocks > kMaxLayers) return 0;  // refused below
  uint64_t predicting = 0;
  while (predicting < stated && IsLeftOut(q->files(), blocks - 1 - predicting)) ++predicting;
  return predicting;
}

GgufBaseConfig ReadGgufBase(bool heads_by_layer, GgufKeyReader* q) {
  GgufBaseConfig base;
  const uint64_t blocks = q->RequiredInt("block_count");
  const uint64_t predicting = CountPredicting(blocks, q);
  base.layers = std::min<uint64_t>(predicting < blocks ? blocks - predicting : 1, kMaxLayers);
  if (blocks > kMaxLayers) q->Refuse("block_count", absl::StrCat(blocks));
  base.blocks = blocks;
  base.hidden = q->RequiredInt("embedding_length");
  base.context = q->RequiredInt("context_length");
  if (heads_by_layer && q->IsList("attention.head_count")) {
    const std::vector<int64_t> heads = q->IntList("attention.head_count");
    const bool valid = heads.size() >= base.layers && *std::min_element(heads.begin(), heads.end()) > 0 &&
                       *std::max_element(heads.begin(), heads.end()) <= kMaxGgufInt;
    if (!valid) {
      q->Refuse("attention.head_count",
                absl::StrCat("of ", heads.size(), " numbers for ", base.layers, " layers, or of wrong ones"));
    }
    base.heads = valid ? static_cast<uint64_t>(heads.front()) : 1;
  } else {
    base.heads = q->UniformInt("attention.head_count", 0);
  }
  base.head_dim = q->IntOr("attention.key_length", base.hidden / std::max<uint64_t>(base.heads, 1), 1);
  return base;
}

// Adds the tokens that begin a sequence, and all that end a turn.
void AddTokens(GgufKeyReader* q, json* config) {
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

std::string GenerationOf(const GgufKeys& keys, GgufKeyReader* q) {
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
  GgufKeyReader questions(files, result.architecture->name);
  const GgufBaseConfig base = ReadGgufBase(result.architecture->heads_by_layer, &questions);
  const auto reader = std::find_if(std::begin(kReaders), std::end(kReaders), [&](const NamedReader& row) {
    return row.architecture == result.architecture->name;
  });
  if (reader == std::end(kReaders)) return absl::InternalError("an architecture without a reader");
  json config = reader->read(base, &questions);
  AddTokens(&questions, &config);
  result.generation_json = GenerationOf(files.keys(), &questions);
  ASSIGN_OR_RETURN(const std::vector<std::string>* tokens, files.keys().Texts("tokenizer.ggml.tokens"));
  const uint64_t rows = config.value("vocab_size", uint64_t{0});
  if (tokens != nullptr && tokens->size() > rows) {
    return files.keys().Error(
        "tokenizer.ggml.tokens",
        absl::StrCat("has ", tokens->size(), " tokens for the ", rows, " rows of token_embd.weight"));
  }
  result.chat_template = JoinChatTemplates(questions.Text("tokenizer.chat_template"),
                                           questions.Text("tokenizer.chat_template.tool_use"));
  RETURN_IF_ERROR(questions.status());
  result.shape.layers = static_cast<uint32_t>(base.layers);
  result.shape.blocks = static_cast<uint32_t>(base.blocks);
  result.shape.head_dim = static_cast<uint32_t>(base.head_dim);
  result.shape.q_rows = base.heads * base.head_dim;
  result.shape.kv_rows = config.value("num_key_value_heads", uint64_t{0}) * base.head_dim;
  result.shape.linear_keys = config.value("linear_num_key_heads", 0u);
  if (result.shape.linear_keys > 0) {
    result.shape.linear_sharers = config.value("linear_num_value_heads", 0u) / result.shape.linear_keys;
    result.shape.linear_values = config.value("linear_value_head_dim", 0u);
  }
  result.config_json = config.dump();
  return result;
}

}  // namespace sluice
