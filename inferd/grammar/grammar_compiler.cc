#include "inferd/grammar/grammar_compiler.h"

#include <xgrammar/compiler.h>
#include <xgrammar/grammar.h>
#include <xgrammar/matcher.h>
#include <xgrammar/tokenizer_info.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "inferd/grammar/grammar_text.h"
#include "inferd/grammar/schema_check.h"
#include "inferd/grammar/xgrammar_bridge.h"

namespace sluice::inferd {

GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, uint32_t vocab,
                               absl::Span<const int32_t> end_ids) {
  GrammarVocabulary vocabulary;
  vocabulary.size = vocab;
  vocabulary.end_ids.assign(end_ids.begin(), end_ids.end());
  // A tokenizer can have more tokens than the model has rows; those are never sampled.
  vocabulary.tokens.resize(std::min<uint32_t>(vocab, static_cast<uint32_t>(tokenizer.vocab_size())));
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    vocabulary.tokens[id] = tokenizer.TokenBytes(token);
    if (tokenizer.is_special(token)) {
      vocabulary.spellings[token] = std::string(tokenizer.IdToToken(token).value_or(""));
    }
  }
  return vocabulary;
}

namespace {

using Language = GrammarSource::Language;

absl::Status Invalid(const std::string& field, const std::string& what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}

absl::Status CheckText(const std::string& field, std::string_view text) {
  if (text.empty()) {
    return Invalid(field, "is empty");
  }
  if (text.size() > kMaxGrammarBytes) {
    return Invalid(field,
                   absl::StrCat("has ", text.size(), " bytes, at most ", kMaxGrammarBytes, " are supported"));
  }
  if (!IsWellFormedUtf8(text) || text.find('\0') != std::string_view::npos) {
    return Invalid(field, "is not UTF-8 without NUL");
  }
  return absl::OkStatus();
}

absl::StatusOr<GrammarSource> ChoiceSource(const std::vector<std::string>& choices) {
  const std::string field = "guided.choice";
  if (choices.empty() || choices.size() > kMaxChoices) {
    return Invalid(field, absl::StrCat("has ", choices.size(), " texts, must have 1 to ", kMaxChoices));
  }
  size_t bytes = 0;
  for (const std::string& choice : choices) {
    RETURN_IF_ERROR(CheckText(field, choice));
    bytes += choice.size();
  }
  if (bytes > kMaxGrammarBytes) {
    return Invalid(field,
                   absl::StrCat("has ", bytes, " bytes, at most ", kMaxGrammarBytes, " are supported"));
  }
  return GrammarSource{Language::kGrammar, ChoiceGrammar(choices), {}, {}};
}

absl::StatusOr<GrammarSource> CallSource(const std::vector<ToolCallGrammar>& calls,
                                         absl::Span<const int32_t> visible_tokens) {
  if (calls.empty() || calls.size() > kMaxCalls) {
    return Invalid("guided.calls", absl::StrCat("has ", calls.size(), " calls, must have 1 to ", kMaxCalls));
  }
  GrammarSource source;
  source.language = Language::kCalls;
  source.visible_tokens.assign(visible_tokens.begin(), visible_tokens.end());
  size_t bytes = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string field = absl::StrCat("guided.calls[", i, "]");
    for (const std::string* text : {&calls[i].begin, &calls[i].json_schema, &calls[i].end}) {
      if (!text->empty() || text == &calls[i].json_schema) {
        RETURN_IF_ERROR(CheckText(field, *text));
      }
      bytes += text->size();
    }
    absl::StatusOr<std::string> schema = CheckSchema(calls[i].json_schema);
    if (!schema.ok()) {
      return Invalid(field, std::string(schema.status().message()));
    }
    source.calls.push_back({calls[i].begin, *std::move(schema), calls[i].end});
  }
  if (bytes > kMaxGrammarBytes) {
    return Invalid("guided.calls",
                   absl::StrCat("has ", bytes, " bytes, at most ", kMaxGrammarBytes, " are supported"));
  }
  return source;
}

// Rejects rule options ("value[temperature=0.7] ::= ..."), which ask for more than masks.
absl::Status CheckNoOptions(std::string_view grammar) {
  for (size_t at = grammar.find("::="); at != std::string_view::npos; at = grammar.find("::=", at + 3)) {
    if (absl::EndsWith(absl::StripTrailingAsciiWhitespace(absl::string_view(grammar.data(), at)), "]")) {
      return Invalid("guided.grammar",
                     absl::StrCat("has options of a rule at byte ", at, ", which are not supported"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GrammarSource> RegexSource(const std::string& text) {
  absl::StatusOr<std::string> regex = RewriteRegex(text, /*in_json_string=*/false);
  if (!regex.ok()) {
    return Invalid("guided.regex", std::string(regex.status().message()));
  }
  return GrammarSource{Language::kRegex, *std::move(regex), {}, {}};
}

absl::StatusOr<GrammarSource> SchemaSource(const std::string& text) {
  absl::StatusOr<std::string> schema = CheckSchema(text);
  if (!schema.ok()) {
    return Invalid("guided.json_schema", std::string(schema.status().message()));
  }
  return GrammarSource{Language::kSchema, *std::move(schema), {}, {}};
}

xgrammar::Grammar GrammarOfSchema(const std::string& schema) {
  // Output on one line, in the format of Python's json. With free white space, an uncertain model wastes its
  // tokens there.
  return xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/false, std::nullopt, std::nullopt,
                                           /*strict_mode=*/true);
}

xgrammar::Grammar GrammarOfCall(const ToolCallGrammar& call) {
  std::vector<xgrammar::Grammar> parts;
  if (!call.begin.empty()) {
    parts.push_back(xgrammar::Grammar::FromEBNF(ChoiceGrammar({call.begin}), "root"));
  }
  parts.push_back(GrammarOfSchema(call.json_schema));
  if (!call.end.empty()) {
    parts.push_back(xgrammar::Grammar::FromEBNF(ChoiceGrammar({call.end}), "root"));
  }
  return parts.size() == 1 ? parts[0] : xgrammar::Grammar::Concat(parts);
}

xgrammar::Grammar GrammarOf(const GrammarSource& source) {
  switch (source.language) {
    case Language::kSchema:
      return GrammarOfSchema(source.text);
    case Language::kRegex:
      return xgrammar::Grammar::FromRegex(source.text);
    case Language::kGrammar:
      return xgrammar::Grammar::FromEBNF(source.text, "root");
    case Language::kCalls:
      break;
  }
  std::vector<xgrammar::Grammar> calls;
  for (const ToolCallGrammar& call : source.calls) {
    calls.push_back(GrammarOfCall(call));
  }
  return calls.size() == 1 ? calls[0] : xgrammar::Grammar::Union(calls);
}

xgrammar::TokenizerInfo InfoOf(const GrammarVocabulary& vocabulary, std::vector<std::string> tokens) {
  tokens.resize(vocabulary.size);
  return xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, static_cast<int>(vocabulary.size),
                                 vocabulary.end_ids);
}

// JSON needs no control character except the line feed, and the converter's grammar of a length-bounded
// string would allow some.
std::vector<std::string> TokensForJson(std::vector<std::string> tokens) {
  for (std::string& token : tokens) {
    if (std::any_of(token.begin(), token.end(),
                    [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\n'; })) {
      token.clear();
    }
  }
  return tokens;
}

}  // namespace

absl::StatusOr<GrammarSource> SourceOf(const GrammarSpec& spec, absl::Span<const int32_t> visible_tokens) {
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonObject:
      return SchemaSource(R"({"type": "object"})");
    case GrammarSpec::Kind::kJsonSchema:
      RETURN_IF_ERROR(CheckText("guided.json_schema", spec.text));
      return SchemaSource(spec.text);
    case GrammarSpec::Kind::kRegex:
      RETURN_IF_ERROR(CheckText("guided.regex", spec.text));
      return RegexSource(spec.text);
    case GrammarSpec::Kind::kGrammar:
      RETURN_IF_ERROR(CheckText("guided.grammar", spec.text));
      RETURN_IF_ERROR(CheckNoOptions(spec.text));
      if (const absl::Status counts = CheckCounts(spec.text, kMaxRepetitions); !counts.ok()) {
        return Invalid("guided.grammar", absl::StrCat("has ", counts.message()));
      }
      return GrammarSource{Language::kGrammar, spec.text, {}, {}};
    case GrammarSpec::Kind::kChoice:
      return ChoiceSource(spec.choices);
    case GrammarSpec::Kind::kCall:
      return CallSource(spec.calls, visible_tokens);
  }
  return absl::InternalError("a constraint of no kind");
}

std::string GrammarSource::Key() const {
  std::string key = absl::StrCat(std::string(1, static_cast<char>(language)), text);
  for (const ToolCallGrammar& call : calls) {
    for (const std::string* part : {&call.begin, &call.json_schema, &call.end}) {
      absl::StrAppend(&key, part->size(), ":", *part);
    }
  }
  for (const int32_t id : visible_tokens) {
    absl::StrAppend(&key, " ", id);
  }
  return key;
}

struct GrammarCompiler::Impl {
  const GrammarVocabulary* vocabulary;
  // Created on first use: sorting a vocabulary takes time, and most servers never see a constraint.
  std::optional<xgrammar::TokenizerInfo> for_text;
  std::optional<xgrammar::TokenizerInfo> for_json;
  std::optional<xgrammar::TokenizerInfo> for_calls;
  std::vector<int32_t> visible_tokens;  // special tokens in for_calls: a server has only one such set

  const xgrammar::TokenizerInfo& Info(const GrammarSource& source) {
    if (!source.visible_tokens.empty()) {
      return InfoWith(source.visible_tokens);
    }
    const bool json = source.language == Language::kSchema || source.language == Language::kCalls;
    std::optional<xgrammar::TokenizerInfo>& info = json ? for_json : for_text;
    if (!info.has_value()) {
      info = InfoOf(*vocabulary, json ? TokensForJson(vocabulary->tokens) : vocabulary->tokens);
    }
    return *info;
  }

  const xgrammar::TokenizerInfo& InfoWith(const std::vector<int32_t>& specials) {
    if (!for_calls.has_value() || visible_tokens != specials) {
      std::vector<std::string> tokens = TokensForJson(vocabulary->tokens);
      for (const int32_t id : specials) {
        const auto found = vocabulary->spellings.find(id);
        const std::vector<int32_t>& ends = vocabulary->end_ids;
        if (found != vocabulary->spellings.end() && std::find(ends.begin(), ends.end(), id) == ends.end()) {
          tokens[static_cast<size_t>(id)] = found->second;
        }
      }
      for_calls = InfoOf(*vocabulary, std::move(tokens));
      visible_tokens = specials;
    }
    return *for_calls;
  }
};

GrammarCompiler::GrammarCompiler(const GrammarVocabulary* vocabulary)
    : impl_(new Impl{vocabulary, {}, {}, {}, {}}) {}
GrammarCompiler::~GrammarCompiler() = default;

absl::StatusOr<std::shared_ptr<const CompiledGrammar>> GrammarCompiler::Compile(const GrammarSource& source) {
  const WarningScope warnings;
  std::shared_ptr<CompiledGrammar> compiled;
  try {
    const xgrammar::Grammar grammar = GrammarOf(source);
    if (!warnings.first().empty()) {  // before the expensive part
      return absl::InvalidArgumentError(warnings.first());
    }
    xgrammar::GrammarCompiler compiler(impl_->Info(source), /*max_threads=*/1, /*cache_enabled=*/false);
    compiled = std::make_shared<CompiledGrammar>(CompiledGrammar{compiler.CompileGrammar(grammar)});
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (!warnings.first().empty()) {
    return absl::InvalidArgumentError(warnings.first());
  }
  compiled->vocab = impl_->vocabulary->size;
  compiled->bytes = compiled->grammar.MemorySizeBytes() + source.Key().size();
  if (compiled->bytes > kMaxCompiledBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the compiled grammar has ", compiled->bytes,
                                                     " bytes, at most ", kMaxCompiledBytes,
                                                     " are supported"));
  }
  return compiled;
}

struct GrammarMatcher::Impl {
  std::shared_ptr<const CompiledGrammar> grammar;
  xgrammar::GrammarMatcher matcher;
};

GrammarMatcher::GrammarMatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarMatcher::~GrammarMatcher() = default;

absl::StatusOr<std::unique_ptr<GrammarMatcher>> GrammarMatcher::Create(
    std::shared_ptr<const CompiledGrammar> grammar, absl::Span<const int32_t> end_ids) {
  try {
    std::optional<std::vector<int>> ends;  // without any, the answer ends where no token is allowed
    if (!end_ids.empty()) {
      ends.emplace(end_ids.begin(), end_ids.end());
    }
    xgrammar::GrammarMatcher matcher(grammar->grammar, std::move(ends));
    return std::unique_ptr<GrammarMatcher>(
        new GrammarMatcher(std::make_unique<Impl>(Impl{std::move(grammar), std::move(matcher)})));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("a constraint cannot begin: ", error.what()));
  }
}

absl::Status GrammarMatcher::FillMask(std::vector<uint32_t>* mask) {
  const uint32_t vocab = impl_->grammar->vocab;
  mask->resize((vocab + 31) / 32);
  int64_t words = static_cast<int64_t>(mask->size());
  DLTensor tensor = {};
  tensor.data = mask->data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = &words;
  try {
    impl_->matcher.FillNextTokenBitmask(&tensor);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("a constraint has no mask: ", error.what()));
  }
  return absl::OkStatus();
}

absl::Status GrammarMatcher::Accept(int32_t token) {
  try {
    if (impl_->matcher.AcceptToken(token)) {
      return absl::OkStatus();
    }
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("a constraint failed at token ", token, ": ", error.what()));
  }
  return absl::InternalError(absl::StrCat("a constraint refuses token ", token, ", which it had allowed"));
}

bool GrammarMatcher::complete() const { return impl_->matcher.IsCompleted(); }

}  // namespace sluice::inferd
