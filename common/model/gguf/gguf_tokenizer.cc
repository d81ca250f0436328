#include "common/model/gguf/gguf_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/model/gguf/gguf_pre_tokenizers.h"
#include "common/model/model_limits.h"
#include "common/status.h"
#include "common/strict_json.h"

namespace sluice {
namespace {

using nlohmann::json;
using Files = std::map<std::string, std::string>;

// Values of tokenizer.ggml.token_type.
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// The lists of a vocabulary, all of one length.
struct Vocabulary {
  const std::vector<std::string>* tokens = nullptr;
  std::vector<int64_t> types;
};

std::string GgmlKey(std::string_view name) { return absl::StrCat("tokenizer.ggml.", std::string(name)); }

absl::StatusOr<Vocabulary> ReadVocabulary(const GgufKeys& keys) {
  Vocabulary vocabulary;
  ASSIGN_OR_RETURN(vocabulary.tokens, keys.Texts(GgmlKey("tokens")));
  if (vocabulary.tokens == nullptr || vocabulary.tokens->empty()) {
    return keys.Error(GgmlKey("tokens"), "is missing or empty");
  }
  const size_t count = vocabulary.tokens->size();
  if (count > kMaxVocab) return keys.Error(GgmlKey("tokens"), absl::StrCat("has ", count, " tokens"));
  ASSIGN_OR_RETURN(const std::vector<int64_t>* types, keys.Ints(GgmlKey("token_type")));
  vocabulary.types = types == nullptr ? std::vector<int64_t>(count, kNormal) : *types;
  if (vocabulary.types.size() != count) {
    return keys.Error(GgmlKey("token_type"),
                      absl::StrCat("has ", vocabulary.types.size(), " entries for ", count, " tokens"));
  }
  for (const int64_t type : vocabulary.types) {
    if (type < kNormal || type > kByte)
      return keys.Error(GgmlKey("token_type"), absl::StrCat("holds ", type));
  }
  return vocabulary;
}

absl::StatusOr<bool> Flag(const GgufKeys& keys, std::string_view name, bool fallback) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, keys.Int(GgmlKey(name), 0, 1));
  return value.value_or(fallback ? 1 : 0) != 0;
}

// Returns the token that a key names by its id; empty if the key is absent or names none.
absl::StatusOr<std::string> TokenOf(const GgufKeys& keys, std::string_view name,
                                    const Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> id, keys.Int(GgmlKey(name), -1, UINT32_MAX));
  if (!id.has_value() || *id < 0 || static_cast<uint64_t>(*id) >= vocabulary.tokens->size())
    return std::string();
  return (*vocabulary.tokens)[static_cast<size_t>(*id)];
}

absl::StatusOr<std::string> ConfigFile(const GgufKeys& keys, const Vocabulary& vocabulary, bool add_bos) {
  json config = json::object();
  for (const auto& [name, hub] :
       {std::pair("bos_token_id", "bos_token"), std::pair("eos_token_id", "eos_token"),
        std::pair("unknown_token_id", "unk_token"), std::pair("padding_token_id", "pad_token")}) {
    ASSIGN_OR_RETURN(const std::string token, TokenOf(keys, name, vocabulary));
    if (!token.empty()) config[hub] = token;
  }
  ASSIGN_OR_RETURN(const bool bos, Flag(keys, "add_bos_token", add_bos));
  ASSIGN_OR_RETURN(const bool eos, Flag(keys, "add_eos_token", false));
  config["add_bos_token"] = bos;
  config["add_eos_token"] = eos;
  return config.dump();
}

// --- BPE by merges: tokenizer.json ---

json PipelineOf(const GgufPreTokenizer& pre) {
  json steps = json::array();
  for (const char* pattern : pre.patterns) {
    if (pattern == nullptr) break;
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

// Writes the parts common to both kinds: added tokens, vocabulary and merges; `model` holds the options of
// the BPE model.
absl::StatusOr<json> TokenizerJson(const GgufKeys& keys, const Vocabulary& vocabulary, json model) {
  ASSIGN_OR_RETURN(const std::vector<std::string>* merges, keys.Texts(GgmlKey("merges")));
  if (merges == nullptr) return keys.Error(GgmlKey("merges"), "is missing");
  json vocab = json::object();
  json added = json::array();
  absl::flat_hash_set<std::string> seen;
  for (size_t id = 0; id < vocabulary.tokens->size(); ++id) {
    const std::string& token = (*vocabulary.tokens)[id];
    const int64_t type = vocabulary.types[id];
    if (type == kUnused) continue;
    if (token.empty() || !seen.insert(token).second) {
      return keys.Error(GgmlKey("tokens"), absl::StrCat("holds an empty token, or one twice, at ", id));
    }
    if (type == kControl || type == kUserDefined) {
      added.push_back({{"id", id},
                       {"content", token},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", type == kControl}});
    } else {
      vocab[token] = id;
    }
  }
  json root = {{"version", "1.0"}, {"added_tokens", std::move(added)}};
  model["type"] = "BPE";
  model["vocab"] = std::move(vocab);
  model["merges"] = *merges;
  root["model"] = std::move(model);
  return root;
}

// Gemma-4's BPE: unsplit text, spaces as U+2581, byte tokens for uncovered characters.
absl::StatusOr<Files> SpacedBytePairFiles(const GgufKeys& keys) {
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(keys));
  ASSIGN_OR_RETURN(const std::string unknown, TokenOf(keys, "unknown_token_id", vocabulary));
  json model = {{"byte_fallback", true}, {"fuse_unk", true}};
  if (!unknown.empty()) model["unk_token"] = unknown;
  ASSIGN_OR_RETURN(json root, TokenizerJson(keys, vocabulary, std::move(model)));
  constexpr char kSpace[] = "\xe2\x96\x81";
  root["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
  root["pre_tokenizer"] = nullptr;
  root["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}}}}};
  Files files;
  files["tokenizer.json"] = root.dump();
  ASSIGN_OR_RETURN(files["tokenizer_config.json"], ConfigFile(keys, vocabulary, true));
  return files;
}

absl::StatusOr<Files> BytePairFiles(const GgufKeys& keys) {
  ASSIGN_OR_RETURN(const std::optional<std::string> name, keys.Text(GgmlKey("pre")));
  const GgufPreTokenizer* pre = FindGgufPreTokenizer(name.value_or("default"));
  if (pre == nullptr) {
    return keys.Unsupported(GgmlKey("pre"), absl::StrCat(JsonExcerpt(json(name.value_or("(absent)"))),
                                                         ": a pre-tokenizer that is not known"));
  }
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(keys));
  Files files;
  ASSIGN_OR_RETURN(json root, TokenizerJson(keys, vocabulary, {{"ignore_merges", pre->ignore_merges}}));
  root["normalizer"] = pre->nfc ? json{{"type", "NFC"}} : json();
  root["pre_tokenizer"] = PipelineOf(*pre);
  root["decoder"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  files["tokenizer.json"] = root.dump();
  ASSIGN_OR_RETURN(files["tokenizer_config.json"], ConfigFile(keys, vocabulary, pre->add_bos));
  return files;
}

// --- SentencePiece: tokenizer.model, a ModelProto in protobuf's wire form ---

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void AppendNumber(uint32_t field, uint64_t value, std::string* out) {
  AppendVarint(field << 3, out);
  AppendVarint(value, out);
}

void AppendBytes(uint32_t field, std::string_view bytes, std::string* out) {
  AppendVarint(field << 3 | 2, out);
  AppendVarint(bytes.size(), out);
  out->append(bytes);
}

std::string Piece(const std::string& text, float score, int64_t type) {
  std::string piece;
  AppendBytes(1, text, &piece);
  AppendVarint(2 << 3 | 5, &piece);
  piece.append(reinterpret_cast<const char*>(&score), sizeof(score));
  AppendNumber(3, static_cast<uint64_t>(type), &piece);
  return piece;
}

absl::StatusOr<Files> SentencePieceFiles(const GgufKeys& keys) {
  ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadVocabulary(keys));
  ASSIGN_OR_RETURN(const std::vector<double>* scores, keys.Reals(GgmlKey("scores")));
  if (scores == nullptr || scores->size() != vocabulary.tokens->size()) {
    return keys.Error(GgmlKey("scores"),
                      absl::StrCat("is missing or has not ", vocabulary.tokens->size(), " entries"));
  }
  ASSIGN_OR_RETURN(const bool trims, Flag(keys, "remove_extra_whitespaces", false));
  if (trims) return keys.Unsupported(GgmlKey("remove_extra_whitespaces"), "true");
  ASSIGN_OR_RETURN(const bool dummy_prefix, Flag(keys, "add_space_prefix", true));
  // Filler tokens at the end: an embedding may have more rows than its tokenizer has tokens.
  size_t count = vocabulary.tokens->size();
  while (count > 0 && vocabulary.types[count - 1] == kUnused) --count;
  std::string model;
  for (size_t id = 0; id < count; ++id) {
    AppendBytes(1, Piece((*vocabulary.tokens)[id], static_cast<float>((*scores)[id]), vocabulary.types[id]),
                &model);
  }
  std::string trainer;
  AppendNumber(3, 2, &trainer);  // model_type: BPE
  AppendNumber(35, std::count(vocabulary.types.begin(), vocabulary.types.end(), kByte) > 0 ? 1 : 0, &trainer);
  for (const auto& [field, name] : {std::pair(41u, "bos_token_id"), std::pair(42u, "eos_token_id")}) {
    ASSIGN_OR_RETURN(const std::optional<int64_t> id, keys.Int(GgmlKey(name), -1, UINT32_MAX));
    // -1 (none) is ten bytes as a varint.
    AppendNumber(field,
                 static_cast<uint64_t>(id.value_or(-1) < static_cast<int64_t>(count) ? id.value_or(-1) : -1),
                 &trainer);
  }
  AppendBytes(2, trainer, &model);
  std::string normalizer;
  AppendNumber(3, dummy_prefix ? 1 : 0, &normalizer);
  AppendNumber(4, 0, &normalizer);  // remove_extra_whitespaces
  AppendNumber(5, 1, &normalizer);  // escape_whitespaces
  AppendBytes(3, normalizer, &model);
  Files files;
  files["tokenizer.model"] = std::move(model);
  ASSIGN_OR_RETURN(files["tokenizer_config.json"], ConfigFile(keys, vocabulary, true));
  return files;
}

}  // namespace

absl::StatusOr<Files> GgufTokenizerFiles(const GgufKeys& keys) {
  ASSIGN_OR_RETURN(const std::optional<std::string> whole, keys.Text("tokenizer.huggingface.json"));
  ASSIGN_OR_RETURN(const std::optional<std::string> model, keys.Text(GgmlKey("model")));
  if (whole.has_value()) return Files{{"tokenizer.json", *whole}};
  if (!model.has_value()) return Files{};
  if (*model == "gpt2") return BytePairFiles(keys);
  if (*model == "llama") return SentencePieceFiles(keys);
  if (*model == "gemma4") return SpacedBytePairFiles(keys);
  return keys.Unsupported(GgmlKey("model"), JsonExcerpt(json(*model)) + " (known: gpt2, llama, gemma4)");
}

}  // namespace sluice
