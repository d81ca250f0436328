// `sluice run`: streams the answer to a prompt.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/answer.h"
#include "cli/command_line.h"
#include "cli/launcher.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

struct Options {
  CommonOptions common;
  GenerationFlags generation;
  GrammarFlags grammar;
  bool json = false;
};

absl::StatusOr<Answer> Stream(Client* client, const api::GenerateStreamRequest& request, bool show) {
  Answer answer;
  const auto handle = [&](const api::GenerateStreamResponse& event) -> absl::Status {
    if (event.has_delta()) {
      answer.Add(event.delta());
      return show ? WriteStdout(event.delta().text()) : absl::OkStatus();
    }
    if (event.has_finished()) {
      answer.finished = event.finished();
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(client->GenerateStream(request, handle));
  return answer;
}

absl::StatusOr<int> Run(const CommandContext& context, const Options& o) {
  api::GenerateStreamRequest request;
  RETURN_IF_ERROR(o.generation.Fill(request.mutable_spec()));
  RETURN_IF_ERROR(o.grammar.Fill(request.mutable_spec()));
  ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher, Launcher::Launch(context, o.common, o.json));
  // Without a tokenizer token ids have no text.
  request.mutable_spec()->mutable_output()->set_return_text(launcher->model().has_tokenizer());
  const absl::StatusOr<Answer> answer = Stream(&launcher->client(), request, !o.json);
  if (!o.json) {
    RETURN_IF_ERROR(WriteStdout("\n"));
  }
  RETURN_IF_ERROR(answer.status());
  if (o.json) {
    return PrintJson(AnswerJson(*answer));
  }
  if (!launcher->model().has_tokenizer()) {
    RETURN_IF_ERROR(WriteStdout(absl::StrCat(absl::StrJoin(answer->token_ids, ","), "\n")));
  }
  if (!o.common.quiet) {
    PrintStatistics(*answer);
  }
  return kExitOk;
}

}  // namespace

int RunRun(const CommandContext& context, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice run", "Streams an answer to a prompt.");
  options.generation.Declare(&parser);
  options.grammar.Declare(&parser);
  parser.Flag("--json", &options.json, "prints one JSON object instead of the text");
  options.common.takes_served_name = true;
  options.common.Declare(&parser);
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  if (options.generation.Ambiguous(StdinIsTerminal())) {
    return parser.UsageError("give one of --prompt and --token-ids, or a prompt on standard input");
  }
  if (options.grammar.Ambiguous()) {
    return parser.UsageError(
        "give at most one of --json-object, --json-schema, --regex, --grammar and --choice");
  }
  const absl::StatusOr<int> code = Run(context, options);
  return code.ok() ? *code : Fail("sluice run", code.status(), options.json);
}

}  // namespace sluice::cli
