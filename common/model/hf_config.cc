#include "common/model/hf_config.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/file_io.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "common/model/hf_families.h"
#include "common/model/hf_fields.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

using nlohmann::json;

// config.json files have a few KiB; vision and audio towers make some a few hundred KiB.
constexpr uint64_t kMaxConfigBytes = 16ull << 20;
constexpr uint64_t kMaxTokenizerConfigBytes = 64ull << 20;
constexpr uint64_t kMaxTemplateBytes = 1ull << 20;

struct Family {
  const char* model_type;
  const char* architecture;
  ModelConfig (*read)(HfFields* fields);
  // model_type of the text_config of models with a vision tower besides the text model.
  const char* text_type = nullptr;
};
constexpr Family kFamilies[] = {
    {"mixtral", "MixtralForCausalLM", &ReadMixtral},
    {"qwen2_moe", "Qwen2MoeForCausalLM", &ReadQwen2Moe},
    {"qwen3_moe", "Qwen3MoeForCausalLM", &ReadQwen3Moe},
    {"olmoe", "OlmoeForCausalLM", &ReadOlmoe},
    {"granitemoe", "GraniteMoeForCausalLM", &ReadGraniteMoe},
    {"glm4_moe", "Glm4MoeForCausalLM", &ReadGlm4Moe},
    {"deepseek", "DeepseekForCausalLM", &ReadDeepseek},
    {"deepseek_v2", "DeepseekV2ForCausalLM", &ReadDeepseekV2},
    {"deepseek_v3", "DeepseekV3ForCausalLM", &ReadDeepseekV3},
    {"kimi_k2", "DeepseekV3ForCausalLM", &ReadDeepseekV3},
    {"minimax_m2", "MiniMaxM2ForCausalLM", &ReadMinimaxM2},
    {"phimoe", "PhimoeForCausalLM", &ReadPhimoe},
    {"phimoe", "PhiMoEForCausalLM", &ReadPhimoe},
    {"gpt_oss", "GptOssForCausalLM", &ReadGptOss},
    {"llama4_text", "Llama4ForCausalLM", &ReadLlama4},
    {"llama4", "Llama4ForConditionalGeneration", &ReadLlama4, "llama4_text"},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", &ReadQwen35Moe},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", &ReadQwen35Moe, "qwen3_5_moe_text"},
    {"xverse", "XverseForCausalLM", &ReadXverse},
    {"qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", &ReadQwen3VlMoe, "qwen3_vl_moe_text"},
    {"qwen3_next", "Qwen3NextForCausalLM", &ReadQwen3Next},
    {"gemma4_text", "Gemma4ForCausalLM", &ReadGemma4},
    {"gemma4", "Gemma4ForConditionalGeneration", &ReadGemma4, "gemma4_text"},
    {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", &ReadGlm4MoeLite},
    {"dots1", "Dots1ForCausalLM", &ReadDots1},
    {"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", &ReadErnie45Moe},
    {"mistral4", "Mistral4ForCausalLM", &ReadMistral4},
    {"hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", &ReadHunyuanV1Moe},
    {"afmoe", "AfmoeForCausalLM", &ReadAfmoe},
    {"nemotron_h", "NemotronHForCausalLM", &ReadNemotronH},
    {"granitemoehybrid", "GraniteMoeHybridForCausalLM", &ReadGraniteMoeHybrid},
    {"lfm2_moe", "Lfm2MoeForCausalLM", &ReadLfm2Moe},
    {"deepseek_v32", "DeepseekV32ForCausalLM", &ReadDeepseekV32},
    {"glm_moe_dsa", "GlmMoeDsaForCausalLM", &ReadGlmMoeDsa},
    {"kimi_k25", "KimiK25ForConditionalGeneration", &ReadDeepseekV3, "kimi_k2"},
    {"minimax_m3_vl_text", "MiniMaxM3SparseForCausalLM", &ReadMinimaxM3},
    {"minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", &ReadMinimaxM3, "minimax_m3_vl_text"},
    {"hy_v3", "HYV3ForCausalLM", &ReadHyV3},
    {"exaone_moe", "ExaoneMoeForCausalLM", &ReadExaoneMoe},
    {"exaone_moe", "ExaoneMoEForCausalLM", &ReadExaoneMoe},
    {"solar_open", "SolarOpenForCausalLM", &ReadSolarOpen},
    {"mellum", "MellumForCausalLM", &ReadMellum},
    {"laguna", "LagunaForCausalLM", &ReadLaguna},
    {"step3p5", "Step3p5ForCausalLM", &ReadStep3p5},
    {"step3p7", "Step3p7ForConditionalGeneration", &ReadStep3p5, "step3p5"},
    {"mimo_v2_flash", "MiMoV2FlashForCausalLM", &ReadMimoV2Flash},
    {"cohere2_moe", "Cohere2MoeForCausalLM", &ReadCohere2Moe},
    {"flex_olmo", "FlexOlmoForCausalLM", &ReadFlexOlmo},
    {"longcat_flash", "LongcatFlashForCausalLM", &ReadLongcatFlash},
    {"jamba", "JambaForCausalLM", &ReadJamba},
    {"kimi_linear", "KimiLinearForCausalLM", &ReadKimiLinear},
    {"bailing_hybrid", "BailingMoeV3ForCausalLM", &ReadBailingHybrid},
    {"glm5_next", "Glm5NextForConditionalGeneration", &ReadGlm5Next, "glm5_next_text"},
    {"deepseek_v4", "DeepseekV4ForCausalLM", &ReadDeepseekV4},
    {"qwen4_exp_text", "Qwen4ExpForCausalLM", &ReadQwen4Exp},
    {"qwen4_exp", "Qwen4ExpForConditionalGeneration", &ReadQwen4Exp, "qwen4_exp_text"},
};

absl::Status UnknownArchitecture(const std::string& subject, const std::string& name) {
  std::set<std::string> known;  // several types share one
  for (const Family& family : kFamilies) {
    known.insert(std::string(family.architecture));
  }
  return absl::UnimplementedError(absl::StrCat(
      subject, ": architecture ", name, " is not supported (supported: ", absl::StrJoin(known, ", "), ")"));
}

absl::StatusOr<const Family*> FindFamily(const JsonObject& config) {
  std::optional<std::string> architecture;
  if (config.Has("architectures")) {
    ASSIGN_OR_RETURN(const json* list, config.Array("architectures"));
    if (list->size() != 1 || !(*list)[0].is_string()) {
      return config.Error("architectures", "must name exactly one architecture");
    }
    architecture = (*list)[0].get<std::string>();
  }
  ASSIGN_OR_RETURN(const std::string model_type, config.StringOr("model_type", ""));
  // Either name alone is enough, since old files have only one of them; if both are present they must agree.
  for (const Family& family : kFamilies) {
    const bool type_fits = model_type.empty() || model_type == family.model_type;
    const bool architecture_fits = !architecture.has_value() || *architecture == family.architecture;
    if (type_fits && architecture_fits && (!model_type.empty() || architecture.has_value())) return &family;
  }
  if (!architecture.has_value() && model_type.empty()) {
    return config.Error("architectures", "is missing, and so is model_type");
  }
  const std::string name = architecture.value_or(model_type);
  return UnknownArchitecture(config.subject(), JsonExcerpt(json(name)));
}

// Reads a token id or a list of them; `*ids` keeps its value if the member is absent or null.
absl::Status ReadIds(const JsonObject& object, std::string_view key, uint32_t vocab,
                     std::vector<int32_t>* ids) {
  const json* value = object.Find(key);
  if (value == nullptr) return absl::OkStatus();
  std::vector<int32_t> read;
  const json list = value->is_array() ? *value : json::array({*value});
  if (list.size() > kMaxEndIds) {
    return object.Error(key, absl::StrCat("has ", list.size(), " ids, more than ", kMaxEndIds));
  }
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocab) {
      return object.Error(
          key, absl::StrCat("is ", JsonExcerpt(id), "; token ids from 0 to ", vocab - 1, " are expected"));
    }
    read.push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  *ids = std::move(read);
  return absl::OkStatus();
}

absl::Status ReadDouble(const JsonObject& object, std::string_view key, double low, double high,
                        std::optional<double>* out) {
  if (!object.Has(key)) return absl::OkStatus();
  ASSIGN_OR_RETURN(*out, object.Double(key, low, high));
  return absl::OkStatus();
}

absl::Status ReadGeneration(const JsonObject& object, GenerationDefaults* out) {
  if (object.Has("do_sample")) {
    ASSIGN_OR_RETURN(out->do_sample, object.Bool("do_sample"));
  }
  if (object.Has("top_k")) {
    ASSIGN_OR_RETURN(const uint64_t top_k, object.Uint("top_k", 0, kMaxVocab));
    out->top_k = static_cast<uint32_t>(top_k);
  }
  RETURN_IF_ERROR(ReadDouble(object, "temperature", 0, 1000, &out->temperature));
  RETURN_IF_ERROR(ReadDouble(object, "top_p", 0, 1, &out->top_p));
  RETURN_IF_ERROR(ReadDouble(object, "min_p", 0, 1, &out->min_p));
  return ReadDouble(object, "repetition_penalty", 1e-3, 1000, &out->repetition_penalty);
}

// Reads the members that the family's reader asks for. An unread member may change the computation, so
// Finish() refuses all that are not known to be inert.
absl::StatusOr<ModelConfig> ReadFields(const JsonObject& object, const Family& family) {
  HfFields fields(object);
  fields.Skip("quantization_config");  // read by ReadQuantization
  ModelConfig config = family.read(&fields);
  RETURN_IF_ERROR(fields.Finish());
  return config;
}

// True if `type` is the wrapper's usual text model or another name of the same family.
bool HasText(const Family& wrapper, std::string_view type) {
  return type == wrapper.text_type ||
         std::any_of(std::begin(kFamilies), std::end(kFamilies), [&](const Family& f) {
           return f.text_type == nullptr && f.model_type == type && f.read == wrapper.read;
         });
}

// Reads the text_config of a multimodal model; the members around it do not concern the text model, except
// tie_word_embeddings, which must not contradict it.
absl::StatusOr<ModelConfig> ReadTextConfig(const JsonObject& object, const Family& family) {
  ASSIGN_OR_RETURN(const JsonObject text, object.Object("text_config"));
  ASSIGN_OR_RETURN(const std::string type, text.StringOr("model_type", family.text_type));
  if (!HasText(family, type)) {
    return UnknownArchitecture(text.subject(), JsonExcerpt(json(type)));
  }
  ASSIGN_OR_RETURN(ModelConfig config, ReadFields(text, family));
  ASSIGN_OR_RETURN(const bool tied, object.BoolOr("tie_word_embeddings", config.tied_embeddings));
  if (tied != config.tied_embeddings) {
    return object.Error("tie_word_embeddings", "contradicts text_config");
  }
  RETURN_IF_ERROR(ReadIds(text, "bos_token_id", config.vocab, &config.bos_ids));
  RETURN_IF_ERROR(ReadIds(text, "eos_token_id", config.vocab, &config.eos_ids));
  return config;
}

// A multimodal model may have the member beside the text model's members or among them.
absl::StatusOr<Quantization> QuantizationOf(const JsonObject& object) {
  if (object.Has("quantization_config") || !object.Has("text_config")) return ReadQuantization(object);
  ASSIGN_OR_RETURN(const JsonObject text, object.Object("text_config"));
  return ReadQuantization(text);
}

// JSON has no infinities, but published configs contain them bare, as Python writes them. They are replaced
// by the object that transformers 5 writes, which HfFields reads as a number.
std::string SpellInfinities(std::string_view text) {
  constexpr std::string_view kWord = "Infinity";
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      out += text[i++];
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && text.substr(i).starts_with(kWord)) {
      const bool negative = !out.empty() && out.back() == '-';
      if (negative) out.pop_back();
      absl::StrAppend(&out, "{\"__float__\":\"", negative ? "-" : "", "Infinity\"}");
      i += kWord.size() - 1;
      continue;
    }
    out += text[i];
  }
  return out;
}

// Returns the template of a list of {name, template} that is called `name`; empty if there is none.
std::string NamedTemplate(const json& list, std::string_view name) {
  for (const json& entry : list) {
    if (entry.is_object() && entry.value("name", json()) == name &&
        entry.value("template", json()).is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  return std::string();
}

// Reads the member `chat_template`: a string, or a list of {name, template}, of which those called "default"
// (or the only one) and "tool_use" count.
absl::StatusOr<std::string> TemplateOf(const JsonObject& file) {
  const json* value = file.Find("chat_template");
  if (value == nullptr) return std::string();
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) return file.Error("chat_template", "is neither a string nor a list");
  if (value->size() == 1 && value->front().is_object() &&
      value->front().value("template", json()).is_string()) {
    return value->front()["template"].get<std::string>();
  }
  return JoinChatTemplates(NamedTemplate(*value, "default"), NamedTemplate(*value, "tool_use"));
}

absl::StatusOr<std::string> TemplateOfFile(const std::string& path, size_t max_bytes) {
  if (!FileExists(path)) return std::string();
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, max_bytes));
  ASSIGN_OR_RETURN(const json root, ParseJson(text, path));
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, path));
  ASSIGN_OR_RETURN(std::string chat_template, TemplateOf(object));
  if (chat_template.size() > kMaxTemplateBytes) {
    return object.Error("chat_template", absl::StrCat("is longer than ", kMaxTemplateBytes, " bytes"));
  }
  return chat_template;
}

// Tries the places where a folder can have its chat template, in the order that transformers prefers.
absl::StatusOr<std::string> ReadChatTemplate(const std::string& dir) {
  const std::string plain = absl::StrCat(dir, "/chat_template.jinja");
  if (FileExists(plain)) {
    ASSIGN_OR_RETURN(std::string chat_template, ReadFile(plain, kMaxTemplateBytes));
    const std::string tool_use = absl::StrCat(dir, "/additional_chat_templates/tool_use.jinja");
    if (!FileExists(tool_use)) return chat_template;
    ASSIGN_OR_RETURN(const std::string with_tools, ReadFile(tool_use, kMaxTemplateBytes));
    return JoinChatTemplates(chat_template, with_tools);
  }
  ASSIGN_OR_RETURN(std::string chat_template,
                   TemplateOfFile(absl::StrCat(dir, "/tokenizer_config.json"), kMaxTokenizerConfigBytes));
  if (!chat_template.empty()) return chat_template;
  return TemplateOfFile(absl::StrCat(dir, "/chat_template.json"), kMaxTokenizerConfigBytes);
}

}  // namespace

std::string JoinChatTemplates(std::string_view plain, std::string_view tool_use) {
  if (plain.empty() || tool_use.empty()) return std::string(plain);
  // As for a template of its own, one line feed at the end is dropped. The line feed behind a tag is dropped
  // by the tag; the empty expression keeps a tag from dropping blanks in front of it.
  if (plain.ends_with('\n')) plain.remove_suffix(1);
  if (tool_use.ends_with('\n')) tool_use.remove_suffix(1);
  return absl::StrCat("{% if tools %}\n", std::string(tool_use), "{{ '' }}{% else %}\n", std::string(plain),
                      "{{ '' }}{% endif %}");
}

absl::StatusOr<HfConfig> ParseHfConfig(std::string_view config_json, std::string_view generation_json,
                                       const std::string& subject) {
  const std::string config_name = absl::StrCat(subject, "/config.json");
  ASSIGN_OR_RETURN(const json root, ParseJson(SpellInfinities(config_json), config_name));
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, config_name));
  ASSIGN_OR_RETURN(const Family* family, FindFamily(object));
  HfConfig result;
  ASSIGN_OR_RETURN(result.quantization, QuantizationOf(object));
  ASSIGN_OR_RETURN(result.config, family->text_type != nullptr ? ReadTextConfig(object, *family)
                                                               : ReadFields(object, *family));
  RETURN_IF_ERROR(ReadIds(object, "bos_token_id", result.config.vocab, &result.config.bos_ids));
  RETURN_IF_ERROR(ReadIds(object, "eos_token_id", result.config.vocab, &result.config.eos_ids));
  if (!generation_json.empty()) {
    const std::string name = absl::StrCat(subject, "/generation_config.json");
    ASSIGN_OR_RETURN(const json generation_root, ParseJson(generation_json, name));
    ASSIGN_OR_RETURN(const JsonObject generation, JsonObject::Of(generation_root, name));
    RETURN_IF_ERROR(ReadIds(generation, "bos_token_id", result.config.vocab, &result.config.bos_ids));
    RETURN_IF_ERROR(ReadIds(generation, "eos_token_id", result.config.vocab, &result.config.eos_ids));
    RETURN_IF_ERROR(ReadGeneration(generation, &result.generation));
  }
  RETURN_IF_ERROR(ValidateModelConfig(result.config, config_name));
  return result;
}

absl::StatusOr<HfConfig> ReadHfConfig(const std::string& dir) {
  const std::string config_path = absl::StrCat(dir, "/config.json");
  if (!FileExists(config_path)) {
    return absl::NotFoundError(absl::StrCat(dir, ": no model folder: config.json is missing"));
  }
  ASSIGN_OR_RETURN(const std::string config_json, ReadFile(config_path, kMaxConfigBytes));
  const std::string generation_path = absl::StrCat(dir, "/generation_config.json");
  std::string generation_json;
  if (FileExists(generation_path)) {
    ASSIGN_OR_RETURN(generation_json, ReadFile(generation_path, kMaxConfigBytes));
  }
  ASSIGN_OR_RETURN(HfConfig result, ParseHfConfig(config_json, generation_json, dir));
  const std::string quant_path = absl::StrCat(dir, "/hf_quant_config.json");
  if (result.quantization.method == QuantMethod::kNone && FileExists(quant_path)) {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(quant_path, kMaxConfigBytes));
    ASSIGN_OR_RETURN(result.quantization, ParseModeloptQuantization(text, quant_path));
  }
  ASSIGN_OR_RETURN(result.chat_template, ReadChatTemplate(dir));
  return result;
}

std::vector<std::string> SupportedFamilies() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.push_back(family.model_type);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

namespace {

struct FamilyTensors {
  const char* family;
  void (*map)(const ModelConfig& config, TensorMapper* mapper);
};
constexpr FamilyTensors kMaps[] = {
    {"mixtral", &MapMixtral},
    {"qwen2_moe", &MapQwenMoe},
    {"qwen3_moe", &MapQwenMoe},
    {"olmoe", &MapOlmoe},
    {"granitemoe", &MapGraniteMoe},
    {"glm4_moe", &MapGlm4Moe},
    {"deepseek", &MapDeepseek},
    {"deepseek_v2", &MapDeepseek},
    {"deepseek_v3", &MapDeepseek},
    {"minimax_m2", &MapMinimaxM2},
    {"phimoe", &MapPhimoe},
    {"gpt_oss", &MapGptOss},
    {"llama4_text", &MapLlama4},
    {"qwen3_5_moe_text", &MapQwen35Moe},
    {"xverse", &MapXverse},
    {"qwen3_vl_moe_text", &MapQwen3VlMoe},
    {"qwen3_next", &MapQwen35Moe},
    {"gemma4_text", &MapGemma4},
    {"glm4_moe_lite", &MapGlm4Moe},
    {"dots1", &MapGlm4Moe},
    {"ernie4_5_moe", &MapErnie45Moe},
    {"mistral4", &MapDeepseek},
    {"hunyuan_v1_moe", &MapHunyuanV1Moe},
    {"afmoe", &MapAfmoe},
    {"nemotron_h", &MapNemotronH},
    {"granitemoehybrid", &MapGraniteMoeHybrid},
    {"lfm2_moe", &MapLfm2Moe},
    {"deepseek_v32", &MapDeepseek},
    {"glm_moe_dsa", &MapDeepseek},
    {"minimax_m3_vl_text", &MapMinimaxM3},
    {"hy_v3", &MapHyV3},
    {"exaone_moe", &MapExaoneMoe},
    {"solar_open", &MapGlm4Moe},
    {"mellum", &MapMellum},
    {"laguna", &MapLaguna},
    {"step3p5", &MapStep3p5},
    {"mimo_v2_flash", &MapMimoV2Flash},
    {"cohere2_moe", &MapCohere2Moe},
    {"flex_olmo", &MapFlexOlmo},
    {"longcat_flash", &MapLongcatFlash},
    {"jamba", &MapJamba},
    {"kimi_linear", &MapKimiLinear},
    {"bailing_hybrid", &MapBailingHybrid},
    {"glm5_next_text", &MapGlm5Next},
    {"deepseek_v4", &MapDeepseekV4},
    {"qwen4_exp_text", &MapQwen4Exp},
};

}  // namespace

// Families whose packs once ended where an indexer begins to choose.
std::string_view LacksPart(const ModelConfig& config) {
  constexpr std::string_view kIndexed[] = {"deepseek_v32", "glm_moe_dsa", "minimax_m3_vl_text"};
  const bool indexed =
      std::find(std::begin(kIndexed), std::end(kIndexed), config.family) != std::end(kIndexed);
  const bool has = std::any_of(config.layers.begin(), config.layers.end(),
                               [](const LayerConfig& layer) { return layer.attention.index.heads > 0; });
  return indexed && !has ? "indexers" : "";
}

absl::StatusOr<SourceMap> MapTensors(const ModelConfig& config, const Checkpoint& checkpoint) {
  for (const FamilyTensors& family : kMaps) {
    if (config.family != family.family) continue;
    TensorMapper mapper(checkpoint);
    family.map(config, &mapper);
    ASSIGN_OR_RETURN(SourceMap map, mapper.Finish());
    map.experts.resize(config.layers.size());
    return map;
  }
  return absl::UnimplementedError(absl::StrCat("tensor names of family ", config.family, " are not known"));
}

}  // namespace sluice
