#include "cli/prompt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/command_line.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "inferd/api/request_checks.h"
#include "pack/pack.h"

namespace sluice::cli {

void TokenizerSource::Declare(ArgParser* parser) {
  parser->Text("--pack", &pack, "PACK: takes the pack's tokenizer")
      .Text("--tokenizer", &dir, "DIR: takes the tokenizer files of a Hugging Face folder");
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const TokenizerSource& source) {
  if (!source.dir.empty()) {
    return Tokenizer::Load(source.dir);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(source.pack));
  ASSIGN_OR_RETURN(const TokenizerFiles files, pack->ReadTokenizerFiles());
  if (files.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(source.pack, ": the model came without a tokenizer"));
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::LoadFromFiles(files);
  if (!tokenizer.ok()) {
    return Annotate(tokenizer.status(), source.pack);
  }
  return tokenizer;
}

absl::StatusOr<std::vector<int32_t>> EncodeTextFile(const std::string& pack, const std::string& path,
                                                    uint64_t max_tokens) {
  TokenizerSource source;
  source.pack = pack;
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(source));
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  EncodeOptions encode;
  encode.add_special_tokens = false;
  encode.parse_special = false;
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer->Encode(text, encode));
  tokens.resize(std::min<uint64_t>(tokens.size(), max_tokens));
  if (tokens.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the text is empty"));
  }
  return tokens;
}

namespace {

constexpr uint32_t kDefaultTokens = 128;  // of an answer

}  // namespace

void SamplingFlags::Declare(ArgParser* parser, const std::string& default_tokens) {
  const auto real = [parser](const char* name, std::optional<double>* out, const char* help,
                             inferd::Field field) {
    const inferd::FieldBound& bound = inferd::BoundOf(field);
    parser->Real(name, out, help, bound.least, bound.most);
  };
  parser->Number("-n,--max-tokens", &max_tokens, "tokens to generate at most [" + default_tokens + "]", 1,
                 UINT32_MAX);
  real("--temperature", &temperature, "0: greedy [the model's default, else 0]", inferd::Field::kTemperature);
  real("--top-p", &top_p, "smallest set of tokens with this probability [the model's, else 1]",
       inferd::Field::kTopP);
  parser->Number("--top-k", &top_k, "the K most likely tokens, 0: all [the model's, else 0]", 0, UINT32_MAX);
  real("--min-p", &min_p, "tokens this likely beside the best [0]", inferd::Field::kMinP);
  real("--repetition-penalty", &repetition_penalty, "of tokens that occurred, 1: none [the model's, else 1]",
       inferd::Field::kRepetitionPenalty);
  parser->Number("--seed", &seed, "of the sampler: the same answer again")
      .Texts("--stop", &stop, "S: ends the answer before this text; may be repeated")
      .Flag("--ignore-eos", &ignore_eos, "goes on past the end token");
}

void GenerationFlags::Declare(ArgParser* parser) {
  parser->Text("--prompt", &prompt, "TEXT [standard input, when it is no terminal]")
      .Text("--token-ids", &token_ids, "1,2,3: the prompt as token ids, taken as they are");
  sampling.Declare(parser, std::to_string(kDefaultTokens));
  parser->Flag("--no-special", &no_special, "adds no BOS to a text prompt")
      .Flag("--plain", &plain, "special tokens spelt in a text prompt are text");
}

bool GenerationFlags::Ambiguous(bool stdin_is_terminal) const {
  return (prompt.has_value() && token_ids.has_value()) ||
         (!prompt.has_value() && !token_ids.has_value() && stdin_is_terminal);
}

absl::Status GenerationFlags::Fill(::sluice::inference::v1::GenerationSpec* spec) const {
  if (token_ids.has_value()) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseTokenIds(*token_ids));
    spec->mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  } else {
    std::string text;
    if (prompt.has_value()) {
      text = *prompt;
    } else {
      ASSIGN_OR_RETURN(text, ReadWholeFile("-"));
    }
    spec->set_text(ReplaceIllFormedUtf8(text));
    spec->set_add_special_tokens(!no_special);
    spec->set_parse_special(!plain);
  }
  sampling.Fill(spec);
  if (!sampling.max_tokens.has_value()) {
    spec->mutable_stopping()->set_max_tokens(kDefaultTokens);
  }
  return absl::OkStatus();
}

void SamplingFlags::Fill(::sluice::inference::v1::GenerationSpec* spec) const {
  auto* sampling = spec->mutable_sampling();
  if (temperature.has_value()) {
    sampling->set_temperature(static_cast<float>(*temperature));
  }
  if (top_p.has_value()) {
    sampling->set_top_p(static_cast<float>(*top_p));
  }
  if (top_k.has_value()) {
    sampling->set_top_k(static_cast<uint32_t>(*top_k));
  }
  if (min_p.has_value()) {
    sampling->set_min_p(static_cast<float>(*min_p));
  }
  if (repetition_penalty.has_value()) {
    sampling->set_repetition_penalty(static_cast<float>(*repetition_penalty));
  }
  if (seed.has_value()) {
    sampling->set_seed(*seed);
  }
  auto* stopping = spec->mutable_stopping();
  if (max_tokens.has_value()) {
    stopping->set_max_tokens(static_cast<uint32_t>(*max_tokens));
  }
  for (const std::string& text : stop) {
    stopping->add_stop(ReplaceIllFormedUtf8(text));
  }
  stopping->set_ignore_eos(ignore_eos);
}

namespace {

absl::StatusOr<std::string> ReadText(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path));
  return IsWellFormedUtf8(text) ? absl::StatusOr<std::string>(std::move(text))
                                : absl::InvalidArgumentError(absl::StrCat(path, ": not UTF-8"));
}

}  // namespace

void GrammarFlags::Declare(ArgParser* parser) {
  parser->Flag("--json-object", &json_object, "the answer is a JSON object")
      .Text("--json-schema", &json_schema, "FILE: the answer is JSON that this schema allows")
      .Text("--regex", &regex, "R: the whole answer matches")
      .Text("--grammar", &grammar, "FILE: GBNF whose rule root derives the answer")
      .Text("--choice", &choice, "A,B,C: the answer is one of these");
}

bool GrammarFlags::Ambiguous() const {
  return json_object + json_schema.has_value() + regex.has_value() + grammar.has_value() +
             choice.has_value() >
         1;
}

absl::Status GrammarFlags::Fill(::sluice::inference::v1::GenerationSpec* spec) const {
  if (json_object) {
    spec->mutable_guided()->mutable_json_object();
  }
  if (json_schema.has_value()) {
    ASSIGN_OR_RETURN(*spec->mutable_guided()->mutable_json_schema(), ReadText(*json_schema));
  }
  if (regex.has_value()) {
    spec->mutable_guided()->set_regex(ReplaceIllFormedUtf8(*regex));
  }
  if (grammar.has_value()) {
    ASSIGN_OR_RETURN(*spec->mutable_guided()->mutable_grammar(), ReadText(*grammar));
  }
  if (choice.has_value()) {
    for (const std::string& text : SplitList(*choice)) {
      spec->mutable_guided()->mutable_choice()->add_texts(ReplaceIllFormedUtf8(text));
    }
    if (!spec->has_guided()) {
      return absl::InvalidArgumentError("--choice names no text");
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::cli
