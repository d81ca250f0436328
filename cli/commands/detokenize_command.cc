// `sluice detokenize`: converts token ids to text.

#include "absl/strings/str_cat.h"
#include "cli/command_line.h"
#include "cli/prompt.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

absl::StatusOr<int> Detokenize(const TokenizerSource& source, const std::vector<int32_t>& ids,
                               bool skip_special, bool json) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(source));
  ASSIGN_OR_RETURN(const std::string text, tokenizer->Decode(ids, skip_special));
  if (json) {
    return PrintJson(Json::Object().Set("text", text));
  }
  RETURN_IF_ERROR(WriteStdout(absl::StrCat(text, "\n")));
  return kExitOk;
}

}  // namespace

int RunDetokenize(const CommandContext&, const std::vector<std::string>& args) {
  TokenizerSource source;
  std::string ids_text;
  bool skip_special = false;
  bool json = false;
  ArgParser parser("sluice detokenize", "Turns token ids into text.");
  source.Declare(&parser);
  parser.Text("--token-ids", &ids_text, "1,2,3")
      .Required()
      .Flag("--skip-special", &skip_special, "leaves special tokens out")
      .Flag("--json", &json, "prints {\"text\": ...}");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  if (!source.GivenOnce()) {
    return parser.UsageError("give one of --pack and --tokenizer");
  }
  const absl::StatusOr<std::vector<int32_t>> ids = ParseTokenIds(ids_text);
  if (!ids.ok()) {
    return parser.UsageError(absl::StrCat("--token-ids: ", ids.status().message()));
  }
  const absl::StatusOr<int> code = Detokenize(source, *ids, skip_special, json);
  return code.ok() ? *code : Fail("sluice detokenize", code.status(), json);
}

}  // namespace sluice::cli
