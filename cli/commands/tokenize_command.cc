// `sluice tokenize`: converts text to token ids.

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command_line.h"
#include "cli/prompt.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

struct Options {
  TokenizerSource source;
  std::optional<std::string> text;
  std::optional<std::string> text_file;
  bool no_special = false;
  bool plain = false;
  bool json = false;
};

absl::StatusOr<int> Tokenize(const Options& o) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(o.source));
  std::string text;
  if (o.text.has_value()) {
    text = *o.text;
  } else {
    ASSIGN_OR_RETURN(text, ReadWholeFile(*o.text_file));
  }
  EncodeOptions options;
  options.add_special_tokens = !o.no_special;
  options.parse_special = !o.plain;
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer->Encode(text, options));
  if (o.json) {
    return PrintJson(Json::Object().Set("ids", ids));
  }
  RETURN_IF_ERROR(WriteStdout(absl::StrCat(absl::StrJoin(ids, ","), "\n")));
  return kExitOk;
}

}  // namespace

int RunTokenize(const CommandContext&, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice tokenize", "Turns text into token ids, printed as 1,2,3.");
  options.source.Declare(&parser);
  parser.Text("--text", &options.text, "the text")
      .Text("--text-file", &options.text_file, "FILE: the text, byte for byte; - is standard input")
      .Flag("--no-special", &options.no_special, "adds no BOS and no EOS")
      .Flag("--plain", &options.plain, "special tokens spelt in the text are text")
      .Flag("--json", &options.json, "prints {\"ids\": [...]}");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  if (!options.source.GivenOnce()) {
    return parser.UsageError("give one of --pack and --tokenizer");
  }
  if (options.text.has_value() == options.text_file.has_value()) {
    return parser.UsageError("give one of --text and --text-file");
  }
  const absl::StatusOr<int> code = Tokenize(options);
  return code.ok() ? *code : Fail("sluice tokenize", code.status(), options.json);
}

}  // namespace sluice::cli
