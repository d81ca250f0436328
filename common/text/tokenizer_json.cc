// Reader of tokenizer.json.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/tokenizer_readers.h"
#include "common/text/tokenizer_spec.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

// TokenizerDocument: tokenizer.json as a tree, without its two big members, model.vocab and model.merges:
// they are read as a stream, because a tree of several hundred thousand nodes would be the largest part of
// the load time.
//
// Thread safety: a plain value.
struct TokenizerDocument {
  Json tree;  // an object
  std::vector<std::pair<std::string, int64_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // in the file's order, which is their rank
  bool has_vocab = false;                                   // true if both members exist, as object and list
  bool has_merges = false;
};

// DocumentReader: takes vocabulary and merges, hundreds of thousands of entries, straight into vectors; the
// mode tells which of the two, if any, is being read.
class DocumentReader final : public JsonBuilder<Json> {
 public:
  explicit DocumentReader(TokenizerDocument* document)
      : JsonBuilder({.allow_duplicate_keys = true}), document_(*document) {}

  bool number_unsigned(number_unsigned_t value) override {
    if (mode_ != Mode::kVocab) {
      return JsonBuilder::number_unsigned(value);
    }
    if (value >= static_cast<uint64_t>(Vocabulary::kMaxIds)) {
      return Fail(
          absl::StrCat("id of token \"", token_, "\" is ", value, ", not below ", Vocabulary::kMaxIds));
    }
    document_.vocab.emplace_back(std::move(token_), static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (mode_ == Mode::kMerges) {
      const size_t space = value.find(' ');
      if (space == std::string::npos || value.find(' ', space + 1) != std::string::npos) {
        return Fail(absl::StrCat("merge ", document_.merges.size(), " \"", value, "\" is not two tokens"));
      }
      document_.merges.emplace_back(value.substr(0, space), value.substr(space + 1));
      return true;
    }
    if (mode_ == Mode::kMerge) {
      pair_.push_back(std::move(value));
      return pair_.size() <= 2 || FailMerge();
    }
    return JsonBuilder::string(value);
  }

  bool key(string_t& value) override {
    if (mode_ == Mode::kVocab) {
      token_ = std::move(value);
      return true;
    }
    return JsonBuilder::key(value);
  }

  bool start_object(size_t size) override {
    if (mode_ == Mode::kTree && IsAt({"model", "vocab"})) {
      mode_ = Mode::kVocab;
      document_.has_vocab = true;
      return true;
    }
    return JsonBuilder::start_object(size);
  }

  bool end_object() override { return mode_ == Mode::kVocab ? EndStream() : JsonBuilder::end_object(); }

  bool start_array(size_t size) override {
    if (mode_ == Mode::kTree && IsAt({"model", "merges"})) {
      mode_ = Mode::kMerges;
      document_.has_merges = true;
      return true;
    }
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kMerge;
      pair_.clear();
      return true;
    }
    return JsonBuilder::start_array(size);
  }

  bool end_array() override {
    if (mode_ == Mode::kMerge) {
      if (pair_.size() != 2) {
        return FailMerge();
      }
      document_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      mode_ = Mode::kMerges;
      return true;
    }
    return mode_ == Mode::kMerges ? EndStream() : JsonBuilder::end_array();
  }

 private:
  enum class Mode { kTree, kVocab, kMerges, kMerge };

  bool FailMerge() {
    return Fail(absl::StrCat("merge ", document_.merges.size(), " is not a pair of strings"));
  }
  bool EndStream() {
    mode_ = Mode::kTree;
    return true;
  }
  bool MayAdd() override {
    return mode_ == Mode::kTree ||
           Fail(mode_ == Mode::kVocab
                    ? absl::StrCat("id of token \"", token_, "\" is not a whole number from 0")
                    : absl::StrCat("merge ", document_.merges.size(), " is not two strings"));
  }

  TokenizerDocument& document_;
  Mode mode_ = Mode::kTree;
  std::string token_;  // whose id follows
  std::vector<std::string> pair_;
};

// INVALID_ARGUMENT if `bytes` is not a well-formed JSON object, is nested deeper than 64, or if an id or a
// merge (two tokens, as a list or separated by a space) is malformed.
absl::StatusOr<TokenizerDocument> ParseTokenizerDocument(const std::string& bytes) {
  TokenizerDocument document;
  DocumentReader reader(&document);
  ASSIGN_OR_RETURN(document.tree, reader.Parse(bytes, "JSON", &reader));
  return document;
}

// Sequences are flattened, so nesting deeper than this has no use.
constexpr int kMaxStepsDepth = 8;
constexpr size_t kMaxSteps = 64;

absl::Status Unsupported(const char* what, const std::string& name) {
  return absl::UnimplementedError(absl::StrCat(what, " \"", name, "\" is not supported"));
}

// Calls `leaf` with every component of a (possibly nested) Sequence whose members lie under `list_key`.
absl::Status ForEachStep(const Json& component, const char* list_key, int depth,
                         const std::function<absl::Status(const JsonObject&, const std::string&)>& leaf) {
  ASSIGN_OR_RETURN(const JsonObject step, JsonObject::Of(component, ""));
  ASSIGN_OR_RETURN(const std::string type, step.String("type"));
  if (type != "Sequence") {
    return Annotate(leaf(step, type), type);
  }
  const Json* list = step.Find(list_key);
  if (list == nullptr || !list->is_array() || depth >= kMaxStepsDepth || list->size() > kMaxSteps) {
    return absl::InvalidArgumentError(absl::StrCat("Sequence without a list \"", list_key, "\", longer than ",
                                                   kMaxSteps, " or nested deeper than ", kMaxStepsDepth));
  }
  for (const Json& member : *list) {
    RETURN_IF_ERROR(ForEachStep(member, list_key, depth + 1, leaf));
  }
  return absl::OkStatus();
}

absl::StatusOr<PatternSpec> ParsePattern(const JsonObject& component) {
  ASSIGN_OR_RETURN(const JsonObject pattern, component.Object("pattern"));
  PatternSpec spec;
  spec.is_regex = pattern.Has("Regex");
  ASSIGN_OR_RETURN(spec.text, pattern.String(spec.is_regex ? "Regex" : "String"));
  return spec;
}

absl::StatusOr<std::string> OneCharacter(const JsonObject& component, const char* key) {
  ASSIGN_OR_RETURN(std::string text, component.String(key));
  if (text.empty() || text.size() != Utf8Length(text[0])) {
    return component.Error(key, "is not one character");
  }
  return text;
}

absl::StatusOr<NormalizerSpec> ParseNormalizer(const JsonObject& json, const std::string& type) {
  if (type == "NFC") {
    return UnicodeForm::kNfc;
  }
  if (type == "NFD") {
    return UnicodeForm::kNfd;
  }
  if (type == "NFKC") {
    return UnicodeForm::kNfkc;
  }
  if (type == "NFKD") {
    return UnicodeForm::kNfkd;
  }
  if (type == "Lowercase") {
    return LowercaseNormalizer();
  }
  if (type == "ByteLevel") {
    return ByteLevelNormalizer();
  }
  if (type == "Prepend") {
    PrependNormalizer prepend;
    ASSIGN_OR_RETURN(prepend.prefix, json.String("prepend"));
    return prepend;
  }
  if (type == "Strip") {
    StripNormalizer strip;
    ASSIGN_OR_RETURN(strip.left, json.BoolOr("strip_left", true));
    ASSIGN_OR_RETURN(strip.right, json.BoolOr("strip_right", true));
    return strip;
  }
  if (type == "Replace") {
    ReplaceNormalizer replace;
    ASSIGN_OR_RETURN(replace.pattern, ParsePattern(json));
    ASSIGN_OR_RETURN(replace.content, json.String("content"));
    return replace;
  }
  return Unsupported("normalizer", type);
}

absl::StatusOr<SplitBehavior> ParseBehavior(const JsonObject& json) {
  ASSIGN_OR_RETURN(const std::string name, json.StringOr("behavior", "Isolated"));
  if (name == "Removed") {
    return SplitBehavior::kRemoved;
  }
  if (name == "Isolated") {
    return SplitBehavior::kIsolated;
  }
  if (name == "MergedWithPrevious") {
    return SplitBehavior::kMergedWithPrevious;
  }
  if (name == "MergedWithNext") {
    return SplitBehavior::kMergedWithNext;
  }
  if (name == "Contiguous") {
    return SplitBehavior::kContiguous;
  }
  return Unsupported("behavior", name);
}

// Values are "first", "always", "never", or the older add_prefix_space.
absl::StatusOr<PrependScheme> ParsePrependScheme(const JsonObject& json) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, json.BoolOr("add_prefix_space", true));
  ASSIGN_OR_RETURN(const std::string name,
                   json.StringOr("prepend_scheme", add_prefix_space ? "always" : "never"));
  if (name == "never") {
    return PrependScheme::kNever;
  }
  if (!add_prefix_space) {
    return absl::InvalidArgumentError(absl::StrCat("add_prefix_space is false, prepend_scheme is ", name));
  }
  if (name == "always") {
    return PrependScheme::kAlways;
  }
  if (name == "first") {
    return PrependScheme::kFirst;
  }
  return Unsupported("prepend_scheme", name);
}

absl::StatusOr<PreTokenizerSpec> ParsePreTokenizer(const JsonObject& json, const std::string& type) {
  if (type == "ByteLevel") {
    ByteLevelPreTokenizer byte_level;
    ASSIGN_OR_RETURN(byte_level.add_prefix_space, json.BoolOr("add_prefix_space", true));
    ASSIGN_OR_RETURN(byte_level.use_regex, json.BoolOr("use_regex", true));
    return byte_level;
  }
  if (type == "Split") {
    SplitPreTokenizer split;
    ASSIGN_OR_RETURN(split.pattern, ParsePattern(json));
    ASSIGN_OR_RETURN(split.behavior, ParseBehavior(json));
    ASSIGN_OR_RETURN(split.invert, json.BoolOr("invert", false));
    return split;
  }
  if (type == "Digits") {
    DigitsPreTokenizer digits;
    ASSIGN_OR_RETURN(digits.individual, json.BoolOr("individual_digits", false));
    return digits;
  }
  if (type == "Punctuation") {
    PunctuationPreTokenizer punctuation;
    ASSIGN_OR_RETURN(punctuation.behavior, ParseBehavior(json));
    return punctuation;
  }
  if (type == "Whitespace" || type == "WhitespaceSplit") {
    return WhitespacePreTokenizer{type == "Whitespace"};
  }
  if (type == "Metaspace") {
    MetaspacePreTokenizer metaspace;
    ASSIGN_OR_RETURN(metaspace.replacement, OneCharacter(json, "replacement"));
    ASSIGN_OR_RETURN(metaspace.prepend, ParsePrependScheme(json));
    ASSIGN_OR_RETURN(metaspace.split, json.BoolOr("split", true));
    return metaspace;
  }
  return Unsupported("pre_tokenizer", type);
}

absl::StatusOr<DecoderSpec> ParseDecoder(const JsonObject& json, const std::string& type) {
  if (type == "ByteLevel") {
    return ByteLevelDecoder();
  }
  if (type == "ByteFallback") {
    return ByteFallbackDecoder();
  }
  if (type == "Fuse") {
    return FuseDecoder();
  }
  if (type == "Replace") {
    ReplaceDecoder replace;
    ASSIGN_OR_RETURN(replace.pattern, ParsePattern(json));
    ASSIGN_OR_RETURN(replace.content, json.String("content"));
    return replace;
  }
  if (type == "Strip") {
    constexpr uint64_t kMaxStrip = 1023;
    StripDecoder strip;
    ASSIGN_OR_RETURN(strip.content, OneCharacter(json, "content"));
    ASSIGN_OR_RETURN(strip.start, json.Uint("start", 0, kMaxStrip));
    ASSIGN_OR_RETURN(strip.stop, json.Uint("stop", 0, kMaxStrip));
    return strip;
  }
  if (type == "Metaspace") {
    MetaspaceDecoder metaspace;
    ASSIGN_OR_RETURN(metaspace.replacement, OneCharacter(json, "replacement"));
    ASSIGN_OR_RETURN(metaspace.prepend, ParsePrependScheme(json));
    return metaspace;
  }
  return Unsupported("decoder", type);
}

// Refuses every unsupported option that would change the tokens: a model whose tokens differ from its
// training answers worse, without any error.
absl::Status CheckModelIsPlainBpe(const JsonObject& model) {
  ASSIGN_OR_RETURN(const std::string type, model.StringOr("type", "BPE"));
  if (type != "BPE") {
    return Unsupported("model", type);
  }
  if (const Json* dropout = model.Find("dropout");
      dropout != nullptr && !(dropout->is_number() && *dropout == 0)) {
    return absl::UnimplementedError("model with dropout is not supported");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ASSIGN_OR_RETURN(const std::string value, model.StringOr(affix, ""));
    if (!value.empty()) {
      return absl::UnimplementedError(absl::StrCat("model with ", affix, " is not supported"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseModel(const JsonObject& model, const TokenizerDocument& document, TokenizerSpec* spec) {
  RETURN_IF_ERROR(CheckModelIsPlainBpe(model));
  if (!document.has_vocab || !document.has_merges) {
    return absl::InvalidArgumentError("no object \"vocab\" or no list \"merges\"");
  }
  for (const auto& [token, id] : document.vocab) {
    RETURN_IF_ERROR(spec->vocabulary.Add(token, id));
  }
  ASSIGN_OR_RETURN(spec->bpe.fuse_unknown, model.BoolOr("fuse_unk", false));
  ASSIGN_OR_RETURN(spec->bpe.byte_fallback, model.BoolOr("byte_fallback", false));
  ASSIGN_OR_RETURN(spec->bpe.ignore_merges, model.BoolOr("ignore_merges", false));
  if (model.Find("unk_token") != nullptr) {
    ASSIGN_OR_RETURN(const std::string unknown, model.String("unk_token"));
    spec->bpe.unknown = spec->vocabulary.Find(unknown);
    if (!spec->bpe.unknown.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("unk_token \"", unknown, "\" is not in the vocabulary"));
    }
  }
  spec->bpe.merges.reserve(document.merges.size());
  uint32_t rank = 0;
  for (const auto& [left, right] : document.merges) {
    RETURN_IF_ERROR(AddMerge(left, right, rank++, spec));
  }
  return absl::OkStatus();
}

absl::Status ParseAddedTokens(const JsonObject& document, TokenizerSpec* spec) {
  if (!document.Has("added_tokens")) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Json* list, document.Array("added_tokens"));
  for (const Json& member : *list) {
    ASSIGN_OR_RETURN(const JsonObject entry, JsonObject::Of(member, ""));
    ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(entry));
    ASSIGN_OR_RETURN(token.id, entry.Uint("id", 0, Vocabulary::kMaxIds - 1));
    RETURN_IF_ERROR(AddAddedToken(std::move(token), spec));
  }
  return absl::OkStatus();
}

// Appends the ids of a template's token: {"id": name}.
absl::Status AppendTemplateToken(const JsonObject& processor, const JsonObject& token,
                                 const TokenizerSpec& spec, std::vector<int32_t>* ids) {
  ASSIGN_OR_RETURN(const std::string name, token.String("id"));
  ASSIGN_OR_RETURN(const JsonObject tokens, processor.Object("special_tokens"));
  ASSIGN_OR_RETURN(const JsonObject entry, tokens.Object(name));
  ASSIGN_OR_RETURN(const Json* list, entry.Array("ids"));
  for (const Json& id : *list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(spec.vocabulary.end())) {
      return absl::InvalidArgumentError(
          absl::StrCat("template token \"", name, "\" has an id outside [0, ", spec.vocabulary.end(), ")"));
    }
    ids->push_back(id.get<int32_t>());
  }
  return absl::OkStatus();
}

// Form: {"single": [{"SpecialToken": {"id": ..}}, {"Sequence": {"id": "A"}}, ..]}; pairs of texts have no use
// here.
absl::Status ParseTemplate(const JsonObject& processor, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const Json* single, processor.Array("single"));
  if (single->size() > kMaxSteps) {
    return processor.Error("single", absl::StrCat("has ", single->size(), " parts, at most ", kMaxSteps));
  }
  int texts = 0;
  for (const Json& part : *single) {
    ASSIGN_OR_RETURN(const JsonObject piece, JsonObject::Of(part, "single"));
    if (piece.Has("SpecialToken")) {
      ASSIGN_OR_RETURN(const JsonObject token, piece.Object("SpecialToken"));
      RETURN_IF_ERROR(
          AppendTemplateToken(processor, token, *spec, texts == 0 ? &spec->prefix : &spec->suffix));
      continue;
    }
    ASSIGN_OR_RETURN(const JsonObject sequence, piece.Object("Sequence"));
    ASSIGN_OR_RETURN(const std::string id, sequence.String("id"));
    if (id != "A") {
      return sequence.Error("id", absl::StrCat("is \"", id, "\", and only sequence A is supported"));
    }
    ++texts;
  }
  // Tokens before the text are the prefix, those after it the suffix; a template that repeats the text has no
  // such form.
  return texts == 1 ? absl::OkStatus()
                    : absl::UnimplementedError(absl::StrCat("template with the text ", texts, " times"));
}

// Form: {"cls": ["<s>", 0], "sep": ["</s>", 2]} around the text.
absl::Status ParsePairedProcessor(const JsonObject& processor, TokenizerSpec* spec) {
  for (const bool is_prefix : {true, false}) {
    const char* key = is_prefix ? "cls" : "sep";
    const Json* pair = processor.Find(key);
    const bool well_formed =
        pair != nullptr && pair->is_array() && pair->size() == 2 && (*pair)[1].is_number_unsigned();
    const uint64_t id = well_formed ? *(*pair)[1].get_ptr<const uint64_t*>() : 0;
    if (!well_formed || id >= static_cast<uint64_t>(spec->vocabulary.end())) {
      return absl::InvalidArgumentError(absl::StrCat("field \"", key, "\" is not a token and its id"));
    }
    (is_prefix ? spec->prefix : spec->suffix).push_back(static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

absl::Status ParsePostProcessor(const Json& json, TokenizerSpec* spec) {
  int templates = 0;
  return ForEachStep(json, "processors", 0,
                     [&](const JsonObject& step, const std::string& type) -> absl::Status {
                       if (type == "ByteLevel") {
                         return absl::OkStatus();  // trims offsets, which are not used here
                       }
                       if (++templates > 1) {
                         return absl::UnimplementedError("more than one template is not supported");
                       }
                       if (type == "TemplateProcessing") {
                         return ParseTemplate(step, spec);
                       }
                       if (type == "RobertaProcessing" || type == "BertProcessing") {
                         return ParsePairedProcessor(step, spec);
                       }
                       return Unsupported("post_processor", type);
                     });
}

absl::Status ParsePipeline(const JsonObject& document, TokenizerSpec* spec) {
  if (const Json* json = document.Find("normalizer"); json != nullptr) {
    const auto add = [spec](const JsonObject& step, const std::string& type) -> absl::Status {
      ASSIGN_OR_RETURN(NormalizerSpec normalizer, ParseNormalizer(step, type));
      spec->normalizers.push_back(std::move(normalizer));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(Annotate(ForEachStep(*json, "normalizers", 0, add), "normalizer"));
  }
  if (const Json* json = document.Find("pre_tokenizer"); json != nullptr) {
    const auto add = [spec](const JsonObject& step, const std::string& type) -> absl::Status {
      ASSIGN_OR_RETURN(PreTokenizerSpec pre_tokenizer, ParsePreTokenizer(step, type));
      spec->pre_tokenizers.push_back(std::move(pre_tokenizer));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(Annotate(ForEachStep(*json, "pretokenizers", 0, add), "pre_tokenizer"));
  }
  if (const Json* json = document.Find("decoder"); json != nullptr) {
    spec->decoders.emplace();
    const auto add = [spec](const JsonObject& step, const std::string& type) -> absl::Status {
      ASSIGN_OR_RETURN(DecoderSpec decoder, ParseDecoder(step, type));
      spec->decoders->push_back(std::move(decoder));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(Annotate(ForEachStep(*json, "decoders", 0, add), "decoder"));
  }
  if (const Json* json = document.Find("post_processor"); json != nullptr) {
    RETURN_IF_ERROR(Annotate(ParsePostProcessor(*json, spec), "post_processor"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AddedToken> ParseAddedToken(const JsonObject& object) {
  AddedToken token;
  ASSIGN_OR_RETURN(token.content, object.String("content"));
  ASSIGN_OR_RETURN(token.single_word, object.BoolOr("single_word", false));
  ASSIGN_OR_RETURN(token.lstrip, object.BoolOr("lstrip", false));
  ASSIGN_OR_RETURN(token.rstrip, object.BoolOr("rstrip", false));
  ASSIGN_OR_RETURN(token.special, object.BoolOr("special", false));
  ASSIGN_OR_RETURN(token.normalized, object.BoolOr("normalized", !token.special));
  return token;
}

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const std::string& bytes) {
  ASSIGN_OR_RETURN(const TokenizerDocument document, ParseTokenizerDocument(bytes));
  ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(document.tree, ""));
  ASSIGN_OR_RETURN(const std::string version, root.StringOr("version", "1.0"));
  if (version != "1.0") {
    return Unsupported("version", version);
  }
  ASSIGN_OR_RETURN(const JsonObject model, root.Object("model"));
  TokenizerSpec spec;
  RETURN_IF_ERROR(Annotate(ParseModel(model, document, &spec), "model"));
  RETURN_IF_ERROR(Annotate(ParseAddedTokens(root, &spec), "added_tokens"));
  RETURN_IF_ERROR(ParsePipeline(root, &spec));
  return spec;
}

}  // namespace sluice
