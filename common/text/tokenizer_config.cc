#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/tokenizer_readers.h"
#include "common/text/tokenizer_spec.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr const char* kQwen2Regex =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// Reads {"token": id, ..}.
absl::Status ParseVocabulary(const JsonObject& object, Vocabulary* vocabulary) {
  for (const auto& [token, id] : object.value().items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(Vocabulary::kMaxIds)) {
      return absl::InvalidArgumentError(absl::StrCat(object.subject(), ": id of token \"", token,
                                                     "\" is not a whole number below ", Vocabulary::kMaxIds));
    }
    RETURN_IF_ERROR(Annotate(vocabulary->Add(token, id.get<int64_t>()), object.subject()));
  }
  return absl::OkStatus();
}

// Reads a token given by its text or by {"content": text, ..}.
absl::StatusOr<std::optional<std::string>> TokenMember(const JsonObject& object, const std::string& key) {
  const Json* member = object.Find(key);
  if (member == nullptr) {
    return std::nullopt;
  }
  if (member->is_string()) {
    return member->get<std::string>();
  }
  ASSIGN_OR_RETURN(const JsonObject token, JsonObject::Of(*member, key));
  return token.String("content");
}

absl::StatusOr<std::optional<bool>> OptionalBool(const JsonObject& object, const char* key) {
  if (!object.Has(key)) {
    return std::nullopt;
  }
  return object.Bool(key);
}

// Reads names of special tokens, which occur in tokenizer_config.json and in special_tokens_map.json; the
// first file that names one counts.
absl::Status ParseNamedTokens(const JsonObject& json, TokenizerConfig* config) {
  for (const char* key :
       {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
    ASSIGN_OR_RETURN(const std::optional<std::string> name, TokenMember(json, key));
    if (!name.has_value()) {
      continue;
    }
    config->names.emplace(key, *name);
    config->named_tokens.push_back(*name);
    if (absl::StartsWith(key, "bos") && !config->bos.has_value()) {
      config->bos = name;
    }
    if (absl::StartsWith(key, "eos") && !config->eos.has_value()) {
      config->eos = name;
    }
  }
  if (const Json* extra = json.Find("extra_special_tokens"); extra != nullptr && extra->is_object()) {
    ASSIGN_OR_RETURN(const JsonObject tokens, JsonObject::Of(*extra, "extra_special_tokens"));
    for (const auto& [key, unused] : extra->items()) {
      ASSIGN_OR_RETURN(const std::optional<std::string> name, TokenMember(tokens, key));
      if (name.has_value()) {
        config->names.emplace(key, *name);
        config->named_tokens.push_back(*name);
      }
    }
  }
  if (!json.Has("additional_special_tokens")) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Json* more, json.Array("additional_special_tokens"));
  for (const Json& entry : *more) {
    if (entry.is_string()) {
      config->named_tokens.push_back(entry.get<std::string>());
      continue;
    }
    ASSIGN_OR_RETURN(const JsonObject token, JsonObject::Of(entry, "additional_special_tokens"));
    ASSIGN_OR_RETURN(std::string content, token.String("content"));
    config->named_tokens.push_back(std::move(content));
  }
  return absl::OkStatus();
}

absl::Status ParseAddedTokensDecoder(const JsonObject& json, TokenizerConfig* config) {
  if (!json.Has("added_tokens_decoder")) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const JsonObject decoder, json.Object("added_tokens_decoder"));
  for (const auto& [key, unused] : decoder.value().items()) {
    ASSIGN_OR_RETURN(const JsonObject entry, decoder.Object(key));
    ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(entry));
    if (!absl::SimpleAtoi(key, &token.id)) {
      return decoder.Error(key, "is not the id of an added token");
    }
    config->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// Reads the form {"token": id} of older tools; such tokens are not special, unless a name makes them so.
absl::Status ParseOldAddedTokens(const JsonObject& json, TokenizerConfig* config) {
  Vocabulary tokens;
  RETURN_IF_ERROR(ParseVocabulary(json, &tokens));
  for (int32_t id = 0; id < tokens.end(); ++id) {
    const std::optional<std::string_view> content = tokens.TokenOf(id);
    const auto is_known = [id](const AddedToken& token) { return token.id == id; };
    if (content.has_value() &&
        std::none_of(config->added_tokens.begin(), config->added_tokens.end(), is_known)) {
      AddedToken token;
      token.id = id;
      token.content = *content;
      config->added_tokens.push_back(std::move(token));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseConfigFile(const JsonObject& json, TokenizerConfig* config) {
  ASSIGN_OR_RETURN(config->tokenizer_class, json.StringOr("tokenizer_class", ""));
  ASSIGN_OR_RETURN(config->add_bos, OptionalBool(json, "add_bos_token"));
  ASSIGN_OR_RETURN(config->add_eos, OptionalBool(json, "add_eos_token"));
  ASSIGN_OR_RETURN(config->legacy, OptionalBool(json, "legacy"));
  ASSIGN_OR_RETURN(config->add_prefix_space, json.BoolOr("add_prefix_space", false));
  RETURN_IF_ERROR(ParseNamedTokens(json, config));
  return ParseAddedTokensDecoder(json, config);
}

absl::Status ParseFile(const TokenizerFiles& files, const char* name,
                       absl::Status (*parse)(const JsonObject&, TokenizerConfig*), TokenizerConfig* config) {
  const auto it = files.find(name);
  if (it == files.end()) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Json json, ParseJson(it->second, name, {.allow_duplicate_keys = true}));
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, name));
  return parse(object, config);
}

absl::StatusOr<std::optional<int32_t>> IdOfNamed(const std::optional<std::string>& name, bool needed,
                                                 const char* key, const TokenizerSpec& spec) {
  const std::optional<int32_t> id = name.has_value() ? spec.vocabulary.Find(*name) : std::nullopt;
  if (needed && !id.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer_config.json: add_", key, " is set, but ", key,
                                                   " ", name.has_value() ? "\"" + *name + "\"" : "(none)",
                                                   " is not in the vocabulary"));
  }
  return id;
}

}  // namespace

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const TokenizerFiles& files) {
  TokenizerConfig config;
  RETURN_IF_ERROR(ParseFile(files, "tokenizer_config.json", ParseConfigFile, &config));
  RETURN_IF_ERROR(ParseFile(files, "special_tokens_map.json", ParseNamedTokens, &config));
  RETURN_IF_ERROR(ParseFile(files, "added_tokens.json", ParseOldAddedTokens, &config));
  return config;
}

absl::Status ApplyAddedTokens(const TokenizerConfig& config, TokenizerSpec* spec) {
  for (const AddedToken& token : config.added_tokens) {
    RETURN_IF_ERROR(AddAddedToken(token, spec));
  }
  for (const std::string& name : config.named_tokens) {
    const std::optional<int32_t> id = spec->vocabulary.Find(name);
    if (!id.has_value()) {
      continue;
    }
    const auto known = std::find_if(spec->added_tokens.begin(), spec->added_tokens.end(),
                                    [id](const AddedToken& token) { return token.id == *id; });
    if (known != spec->added_tokens.end()) {
      known->special = true;
      continue;
    }
    AddedToken token;
    token.id = *id;
    token.content = name;
    token.special = true;
    RETURN_IF_ERROR(AddAddedToken(std::move(token), spec));
  }
  return absl::OkStatus();
}

absl::Status ApplySpecialTokenRules(const TokenizerConfig& config, TokenizerSpec* spec) {
  const bool needs_bos = config.add_bos.value_or(false);
  const bool needs_eos = config.add_eos.value_or(false);
  ASSIGN_OR_RETURN(const std::optional<int32_t> bos, IdOfNamed(config.bos, needs_bos, "bos_token", *spec));
  ASSIGN_OR_RETURN(const std::optional<int32_t> eos, IdOfNamed(config.eos, needs_eos, "eos_token", *spec));
  if (bos.has_value()) {
    spec->bos = bos;
  } else if (!spec->bos.has_value() && !spec->prefix.empty()) {
    spec->bos = spec->prefix.front();
  }
  if (eos.has_value()) {
    spec->eos = eos;
  } else if (!spec->eos.has_value() && !spec->suffix.empty()) {
    spec->eos = spec->suffix.back();
  }
  // add_bos_token and add_eos_token override the tokens that the tokenizer file's template adds.
  const bool has_bos = !spec->prefix.empty() && spec->prefix.front() == spec->bos;
  const bool has_eos = !spec->suffix.empty() && spec->suffix.back() == spec->eos;
  if (config.add_bos.has_value() && *config.add_bos != has_bos) {
    if (has_bos) {
      spec->prefix.erase(spec->prefix.begin());
    } else {
      spec->prefix.insert(spec->prefix.begin(), *spec->bos);
    }
  }
  if (config.add_eos.has_value() && *config.add_eos != has_eos) {
    if (has_eos) {
      spec->suffix.pop_back();
    } else {
      spec->suffix.push_back(*spec->eos);
    }
  }
  return absl::OkStatus();
}

std::map<std::string, std::string> CollectSpecialTokenNames(const TokenizerConfig& config,
                                                            const TokenizerSpec& spec) {
  std::map<std::string, std::string> names = config.names;
  for (const auto& [name, id] : {std::pair("bos_token", spec.bos), std::pair("eos_token", spec.eos)}) {
    const std::optional<std::string_view> token =
        id.has_value() ? spec.vocabulary.TokenOf(*id) : std::nullopt;
    if (token.has_value()) {
      names.emplace(name, *token);
    }
  }
  return names;
}

absl::StatusOr<TokenizerSpec> ParseVocabAndMerges(const std::string& vocab_json,
                                                  const std::string& merges_txt,
                                                  const TokenizerConfig& config) {
  TokenizerSpec spec;
  std::string family = config.tokenizer_class;
  if (absl::EndsWith(family, "Fast")) {
    family.resize(family.size() - 4);
  }
  const bool is_qwen = family == "Qwen2Tokenizer";
  if (!is_qwen && family != "GPT2Tokenizer") {
    return absl::UnimplementedError(absl::StrCat(
        "vocab.json and merges.txt of tokenizer_class \"", config.tokenizer_class,
        "\" are not supported (GPT2Tokenizer and Qwen2Tokenizer are): tokenizer.json is needed"));
  }
  ASSIGN_OR_RETURN(const Json vocab, ParseJson(vocab_json, "vocab.json", {.allow_duplicate_keys = true}));
  ASSIGN_OR_RETURN(const JsonObject tokens, JsonObject::Of(vocab, "vocab.json"));
  RETURN_IF_ERROR(ParseVocabulary(tokens, &spec.vocabulary));
  uint32_t rank = 0;
  for (size_t begin = 0; begin < merges_txt.size();) {
    const size_t end = std::min(merges_txt.find('\n', begin), merges_txt.size());
    std::string line = merges_txt.substr(begin, end - begin);
    begin = end + 1;
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (line.empty() || absl::StartsWith(line, "#version")) {
      continue;
    }
    if (!IsWellFormedUtf8(line)) {
      return absl::InvalidArgumentError(absl::StrCat("merges.txt: merge ", rank, " is not UTF-8"));
    }
    RETURN_IF_ERROR(Annotate(AddMergeLine(line, rank++, &spec), "merges.txt"));
  }
  if (is_qwen) {
    spec.normalizers.emplace_back(UnicodeForm::kNfc);
    spec.pre_tokenizers.emplace_back(
        SplitPreTokenizer{{kQwen2Regex, true}, SplitBehavior::kIsolated, /*invert=*/false});
  }
  spec.pre_tokenizers.emplace_back(ByteLevelPreTokenizer{config.add_prefix_space, /*use_regex=*/!is_qwen});
  spec.decoders = {ByteLevelDecoder()};
  RETURN_IF_ERROR(ApplyAddedTokens(config, &spec));
  return spec;
}

}  // namespace sluice
