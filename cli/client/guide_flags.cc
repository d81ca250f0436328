#include "cli/client/guide_flags.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/ui/command.h"
#include "common/status.h"
#include "common/text/unicode/utf8.h"

namespace sluice::cli {
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
