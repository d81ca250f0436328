#include "common/model/gguf/gguf_config.h"

#include <algorithm>
#include <utility>

#include "common/model/gguf/gguf_families.h"
#include "common/model/model_limits.h"
#include "common/status.h"
#include "common/strict_json.h"

namespace sluice {
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

GgufBaseConfig ReadGgufBase(GgufKeyReader* q) {
  GgufBaseConfig base;
  const uint64_t blocks = q->RequiredInt("block_count");
  const uint64_t predicting = q->IntOr("nextn_predict_layers", 0);
  if (predicting >= blocks) q->Refuse("nextn_predict_layers", absl::StrCat(predicting, " of ", blocks));
  base.layers = std::min<uint64_t>(predicting < blocks ? blocks - predicting : 1, kMaxLayers);
  if (blocks > kMaxLayers) q->Refuse("block_count", absl::StrCat(blocks));
  base.blocks = blocks;
  base.hidden = q->RequiredInt("embedding_length");
  base.context = q->RequiredInt("context_length");
  base.heads = q->UniformInt("attention.head_count", 0);
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
  const GgufBaseConfig base = ReadGgufBase(&questions);
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
  result.chat_template = questions.Text("tokenizer.chat_template");
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
