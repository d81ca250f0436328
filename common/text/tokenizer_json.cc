#include "common/text/tokenizer_json.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/text/json_fields.h"
#include "common/text/spec_builder.h"
#include "common/text/tokenizer_document.h"
#include "common/text/unicode/utf8.h"

namespace sluice {
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
