// Reader of tokenizer.json.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/json_fields.h"
#include "common/text/tokenizer_readers.h"
#include "common/text/tokenizer_spec.h"

namespace sluice {

// TokenizerDocument: tokenizer.json as a tree, without its two big members, model.vocab and model.merges:
// they are read as a stream, because a tree of several hundred thousand nodes would be the largest part of
// the load time.
//
// Thread safety: plain values and a free function, safe to call from any thread.

struct TokenizerDocument {
  Json tree;  // an object
  std::vector<std::pair<std::string, int64_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // in the file's order, which is their rank
  bool has_vocab = false;                                   // true if both members exist, as object and list
  bool has_merges = false;
};

// InvalidArgument if `bytes` is not a well-formed JSON object, is nested deeper than 64, or if an id or a
// merge (two tokens, as a list or separated by a space) is malformed.
absl::StatusOr<TokenizerDocument> ParseTokenizerDocument(const std::string& bytes);

namespace {

constexpr size_t kMaxDocumentDepth = 64;

// DocumentReader: receives the parser's events; each handler returns false to stop. Vocabulary and merges,
// hundreds of thousands of entries, go straight into vectors: a JSON tree of them would need many times the
// memory and time. The mode tells which of the two, if any, is being read.
class DocumentReader {
 public:
  explicit DocumentReader(TokenizerDocument* document) : document_(*document) {}

  const absl::Status& status() const { return status_; }

  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(int64_t value) { return Add(value); }
  bool number_unsigned(uint64_t value) {
    if (mode_ != Mode::kVocab) {
      return Add(value);
    }
    if (value >= static_cast<uint64_t>(Vocabulary::kMaxIds)) {
      return Fail(absl::StrCat("id of token \"", key_, "\" is ", value, ", not below ", Vocabulary::kMaxIds));
    }
    document_.vocab.emplace_back(std::move(key_), static_cast<int64_t>(value));
    return true;
  }
  bool number_float(double value, const std::string&) { return Add(value); }
  bool binary(Json::binary_t&) { return Fail("binary value"); }

  bool string(std::string& value) {
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
    return Add(std::move(value));
  }

  bool key(std::string& value) {
    key_ = std::move(value);
    return true;
  }

  bool start_object(size_t) {
    if (InModel() && key_ == "vocab") {
      mode_ = Mode::kVocab;
      document_.has_vocab = true;
      return true;
    }
    return Open(Json::object());
  }

  bool end_object() {
    if (mode_ == Mode::kVocab) {
      mode_ = Mode::kTree;
      return true;
    }
    return Close();
  }

  bool start_array(size_t) {
    if (InModel() && key_ == "merges") {
      mode_ = Mode::kMerges;
      document_.has_merges = true;
      return true;
    }
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kMerge;
      pair_.clear();
      return true;
    }
    return Open(Json::array());
  }

  bool end_array() {
    if (mode_ == Mode::kMerge) {
      if (pair_.size() != 2) {
        return FailMerge();
      }
      document_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      mode_ = Mode::kMerges;
      return true;
    }
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kTree;
      return true;
    }
    return Close();
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return Fail(absl::StrCat("not well-formed JSON at byte ", position));
  }

 private:
  enum class Mode { kTree, kVocab, kMerges, kMerge };

  bool Fail(const std::string& message) {
    status_ = absl::InvalidArgumentError(message);
    return false;
  }
  bool FailMerge() {
    return Fail(absl::StrCat("merge ", document_.merges.size(), " is not a pair of strings"));
  }

  // True directly in the member "model" of the document.
  bool InModel() const {
    return mode_ == Mode::kTree && open_.size() == 2 && open_[1]->is_object() && top_key_ == "model";
  }

  // Returns the position of the next value in the tree; null if there can be none.
  Json* Slot() {
    if (mode_ != Mode::kTree) {
      Fail(mode_ == Mode::kVocab ? absl::StrCat("id of token \"", key_, "\" is not a whole number from 0")
                                 : absl::StrCat("merge ", document_.merges.size(), " is not two strings"));
      return nullptr;
    }
    if (open_.empty()) {
      return &document_.tree;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(nullptr);
      return &parent.back();
    }
    if (open_.size() == 1) {
      top_key_ = key_;
    }
    return &parent[key_];
  }

  template <typename Value>
  bool Add(Value&& value) {
    Json* const slot = Slot();
    if (slot == nullptr) {
      return false;
    }
    *slot = Json(std::forward<Value>(value));
    return true;
  }

  bool Open(Json container) {
    if (open_.size() >= kMaxDocumentDepth) {
      return Fail(absl::StrCat("nested deeper than ", kMaxDocumentDepth));
    }
    Json* const slot = Slot();
    if (slot == nullptr) {
      return false;
    }
    *slot = std::move(container);
    open_.push_back(slot);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  TokenizerDocument& document_;
  absl::Status status_;
  Mode mode_ = Mode::kTree;
  std::vector<Json*> open_;  // containers from the document to the one being filled
  std::string key_;
  std::string top_key_;  // the document's member being filled
  std::vector<std::string> pair_;
};

}  // namespace

absl::StatusOr<TokenizerDocument> ParseTokenizerDocument(const std::string& bytes) {
  TokenizerDocument document;
  DocumentReader reader(&document);
  const bool whole = Json::sax_parse(bytes, &reader);
  if (!whole || !document.tree.is_object()) {
    return reader.status().ok() ? absl::InvalidArgumentError("not a JSON object") : reader.status();
  }
  return document;
}

namespace {

// Sequences are flattened, so nesting deeper than this has no use.
constexpr int kMaxStepsDepth = 8;
constexpr size_t kMaxSteps = 64;

absl::Status Unsupported(const char* what, const std::string& name) {
  return absl::UnimplementedError(absl::StrCat(what, " \"", name, "\" is not supported"));
}

// Calls `leaf` with every component of a (possibly nested) Sequence whose members lie under `list_key`.
absl::Status ForEachStep(const Json& component, const char* list_key, int depth,
                         const std::function<absl::Status(const Json&, const std::string&)>& leaf) {
  ASSIGN_OR_RETURN(const std::string type, StringMember(component, "type"));
  if (type != "Sequence") {
    return Annotate(leaf(component, type), type);
  }
  const Json* list = FindMember(component, list_key);
  if (list == nullptr || !list->is_array() || depth >= kMaxStepsDepth || list->size() > kMaxSteps) {
    return absl::InvalidArgumentError(absl::StrCat("Sequence without a list \"", list_key, "\", longer than ",
                                                   kMaxSteps, " or nested deeper than ", kMaxStepsDepth));
  }
  for (const Json& member : *list) {
    RETURN_IF_ERROR(ForEachStep(member, list_key, depth + 1, leaf));
  }
  return absl::OkStatus();
}

absl::StatusOr<PatternSpec> ParsePattern(const Json& component) {
  const Json* pattern = FindMember(component, "pattern");
  if (pattern == nullptr) {
    return absl::InvalidArgumentError("field \"pattern\" is missing");
  }
  PatternSpec spec;
  spec.is_regex = FindMember(*pattern, "Regex") != nullptr;
  ASSIGN_OR_RETURN(spec.text, StringMember(*pattern, spec.is_regex ? "Regex" : "String"));
  return spec;
}

absl::StatusOr<std::string> OneCharacter(const Json& component, const char* key) {
  ASSIGN_OR_RETURN(std::string text, StringMember(component, key));
  if (text.empty() || text.size() != Utf8Length(text[0])) {
    return absl::InvalidArgumentError(absl::StrCat("field \"", key, "\" is not one character"));
  }
  return text;
}

absl::StatusOr<NormalizerSpec> ParseNormalizer(const Json& json, const std::string& type) {
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
    ASSIGN_OR_RETURN(prepend.prefix, StringMember(json, "prepend"));
    return prepend;
  }
  if (type == "Strip") {
    StripNormalizer strip;
    ASSIGN_OR_RETURN(strip.left, BoolMember(json, "strip_left", true));
    ASSIGN_OR_RETURN(strip.right, BoolMember(json, "strip_right", true));
    return strip;
  }
  if (type == "Replace") {
    ReplaceNormalizer replace;
    ASSIGN_OR_RETURN(replace.pattern, ParsePattern(json));
    ASSIGN_OR_RETURN(replace.content, StringMember(json, "content"));
    return replace;
  }
  return Unsupported("normalizer", type);
}

absl::StatusOr<SplitBehavior> ParseBehavior(const Json& json) {
  ASSIGN_OR_RETURN(const std::string name, StringMemberOr(json, "behavior", "Isolated"));
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
absl::StatusOr<PrependScheme> ParsePrependScheme(const Json& json) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, BoolMember(json, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const std::string name,
                   StringMemberOr(json, "prepend_scheme", add_prefix_space ? "always" : "never"));
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

absl::StatusOr<PreTokenizerSpec> ParsePreTokenizer(const Json& json, const std::string& type) {
  if (type == "ByteLevel") {
    ByteLevelPreTokenizer byte_level;
    ASSIGN_OR_RETURN(byte_level.add_prefix_space, BoolMember(json, "add_prefix_space", true));
    ASSIGN_OR_RETURN(byte_level.use_regex, BoolMember(json, "use_regex", true));
    return byte_level;
  }
  if (type == "Split") {
    SplitPreTokenizer split;
    ASSIGN_OR_RETURN(split.pattern, ParsePattern(json));
    ASSIGN_OR_RETURN(split.behavior, ParseBehavior(json));
    ASSIGN_OR_RETURN(split.invert, BoolMember(json, "invert", false));
    return split;
  }
  if (type == "Digits") {
    DigitsPreTokenizer digits;
    ASSIGN_OR_RETURN(digits.individual, BoolMember(json, "individual_digits", false));
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
    ASSIGN_OR_RETURN(metaspace.split, BoolMember(json, "split", true));
    return metaspace;
  }
  return Unsupported("pre_tokenizer", type);
}

absl::StatusOr<DecoderSpec> ParseDecoder(const Json& json, const std::string& type) {
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
    ASSIGN_OR_RETURN(replace.content, StringMember(json, "content"));
    return replace;
  }
  if (type == "Strip") {
    constexpr int64_t kMaxStrip = 1024;
    StripDecoder strip;
    ASSIGN_OR_RETURN(strip.content, OneCharacter(json, "content"));
    ASSIGN_OR_RETURN(const int64_t start, IndexMember(json, "start", kMaxStrip));
    ASSIGN_OR_RETURN(const int64_t stop, IndexMember(json, "stop", kMaxStrip));
    strip.start = static_cast<size_t>(start);
    strip.stop = static_cast<size_t>(stop);
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
absl::Status CheckModelIsPlainBpe(const Json& model) {
  ASSIGN_OR_RETURN(const std::string type, StringMemberOr(model, "type", "BPE"));
  if (type != "BPE") {
    return Unsupported("model", type);
  }
  if (const Json* dropout = FindMember(model, "dropout");
      dropout != nullptr && !(dropout->is_number() && *dropout == 0)) {
    return absl::UnimplementedError("model with dropout is not supported");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ASSIGN_OR_RETURN(const std::string value, StringMemberOr(model, affix, ""));
    if (!value.empty()) {
      return absl::UnimplementedError(absl::StrCat("model with ", affix, " is not supported"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseModel(const Json& model, const TokenizerDocument& document, TokenizerSpec* spec) {
  RETURN_IF_ERROR(CheckModelIsPlainBpe(model));
  if (!document.has_vocab || !document.has_merges) {
    return absl::InvalidArgumentError("no object \"vocab\" or no list \"merges\"");
  }
  for (const auto& [token, id] : document.vocab) {
    RETURN_IF_ERROR(spec->vocabulary.Add(token, id));
  }
  ASSIGN_OR_RETURN(spec->bpe.fuse_unknown, BoolMember(model, "fuse_unk", false));
  ASSIGN_OR_RETURN(spec->bpe.byte_fallback, BoolMember(model, "byte_fallback", false));
  ASSIGN_OR_RETURN(spec->bpe.ignore_merges, BoolMember(model, "ignore_merges", false));
  if (FindMember(model, "unk_token") != nullptr) {
    ASSIGN_OR_RETURN(const std::string unknown, StringMember(model, "unk_token"));
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

absl::Status ParseAddedTokens(const Json& document, TokenizerSpec* spec) {
  const Json* list = FindMember(document, "added_tokens");
  if (list == nullptr) {
    return absl::OkStatus();
  }
  if (!list->is_array()) {
    return absl::InvalidArgumentError("field \"added_tokens\" is not a list");
  }
  for (const Json& entry : *list) {
    ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(entry));
    ASSIGN_OR_RETURN(const int64_t id, IndexMember(entry, "id", Vocabulary::kMaxIds));
    token.id = static_cast<int32_t>(id);
    RETURN_IF_ERROR(AddAddedToken(std::move(token), spec));
  }
  return absl::OkStatus();
}

absl::Status AppendTemplateToken(const Json& processor, const Json& piece, const TokenizerSpec& spec,
                                 std::vector<int32_t>* ids) {
  ASSIGN_OR_RETURN(const std::string name, StringMember(piece, "id"));
  const Json* tokens = FindMember(processor, "special_tokens");
  const Json* entry = tokens == nullptr ? nullptr : FindMember(*tokens, name.c_str());
  const Json* list = entry == nullptr ? nullptr : FindMember(*entry, "ids");
  if (list == nullptr || !list->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("template token \"", name, "\" has no ids"));
  }
  for (const Json& id : *list) {
    const auto* value = id.is_number_unsigned() ? id.get_ptr<const uint64_t*>() : nullptr;
    if (value == nullptr || *value >= static_cast<uint64_t>(spec.vocabulary.end())) {
      return absl::InvalidArgumentError(
          absl::StrCat("template token \"", name, "\" has an id outside [0, ", spec.vocabulary.end(), ")"));
    }
    ids->push_back(static_cast<int32_t>(*value));
  }
  return absl::OkStatus();
}

// Form: {"single": [{"SpecialToken": {"id": ..}}, {"Sequence": {"id": "A"}}, ..]}; pairs of texts have no use
// here.
absl::Status ParseTemplate(const Json& processor, TokenizerSpec* spec) {
  const Json* single = FindMember(processor, "single");
  if (single == nullptr || !single->is_array() || single->size() > kMaxSteps) {
    return absl::InvalidArgumentError("template \"single\" is not a list");
  }
  int texts = 0;
  for (const Json& piece : *single) {
    if (const Json* token = FindMember(piece, "SpecialToken"); token != nullptr) {
      RETURN_IF_ERROR(
          AppendTemplateToken(processor, *token, *spec, texts == 0 ? &spec->prefix : &spec->suffix));
      continue;
    }
    const Json* sequence = FindMember(piece, "Sequence");
    const Json* id = sequence == nullptr ? nullptr : FindMember(*sequence, "id");
    if (id == nullptr || *id != "A") {
      return absl::InvalidArgumentError(
          "template \"single\" holds something else than tokens and sequence A");
    }
    ++texts;
  }
  // Tokens before the text are the prefix, those after it the suffix; a template that repeats the text has no
  // such form.
  return texts == 1 ? absl::OkStatus()
                    : absl::UnimplementedError(absl::StrCat("template with the text ", texts, " times"));
}

// Form: {"cls": ["<s>", 0], "sep": ["</s>", 2]} around the text.
absl::Status ParsePairedProcessor(const Json& processor, TokenizerSpec* spec) {
  for (const bool is_prefix : {true, false}) {
    const char* key = is_prefix ? "cls" : "sep";
    const Json* pair = FindMember(processor, key);
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
  return ForEachStep(json, "processors", 0, [&](const Json& step, const std::string& type) -> absl::Status {
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

absl::Status ParsePipeline(const Json& document, TokenizerSpec* spec) {
  if (const Json* json = FindMember(document, "normalizer"); json != nullptr) {
    const auto add = [spec](const Json& step, const std::string& type) -> absl::Status {
      ASSIGN_OR_RETURN(NormalizerSpec normalizer, ParseNormalizer(step, type));
      spec->normalizers.push_back(std::move(normalizer));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(Annotate(ForEachStep(*json, "normalizers", 0, add), "normalizer"));
  }
  if (const Json* json = FindMember(document, "pre_tokenizer"); json != nullptr) {
    const auto add = [spec](const Json& step, const std::string& type) -> absl::Status {
      ASSIGN_OR_RETURN(PreTokenizerSpec pre_tokenizer, ParsePreTokenizer(step, type));
      spec->pre_tokenizers.push_back(std::move(pre_tokenizer));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(Annotate(ForEachStep(*json, "pretokenizers", 0, add), "pre_tokenizer"));
  }
  if (const Json* json = FindMember(document, "decoder"); json != nullptr) {
    spec->decoders.emplace();
    const auto add = [spec](const Json& step, const std::string& type) -> absl::Status {
      ASSIGN_OR_RETURN(DecoderSpec decoder, ParseDecoder(step, type));
      spec->decoders->push_back(std::move(decoder));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(Annotate(ForEachStep(*json, "decoders", 0, add), "decoder"));
  }
  if (const Json* json = FindMember(document, "post_processor"); json != nullptr) {
    RETURN_IF_ERROR(Annotate(ParsePostProcessor(*json, spec), "post_processor"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const std::string& bytes) {
  ASSIGN_OR_RETURN(const TokenizerDocument document, ParseTokenizerDocument(bytes));
  ASSIGN_OR_RETURN(const std::string version, StringMemberOr(document.tree, "version", "1.0"));
  if (version != "1.0") {
    return Unsupported("version", version);
  }
  const Json* model = FindMember(document.tree, "model");
  if (model == nullptr) {
    return absl::InvalidArgumentError("field \"model\" is missing");
  }
  TokenizerSpec spec;
  RETURN_IF_ERROR(Annotate(ParseModel(*model, document, &spec), "model"));
  RETURN_IF_ERROR(Annotate(ParseAddedTokens(document.tree, &spec), "added_tokens"));
  RETURN_IF_ERROR(ParsePipeline(document.tree, &spec));
  return spec;
}

}  // namespace sluice
