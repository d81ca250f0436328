// `sluice run`: streams an answer to a prompt.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/launcher.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "common/size.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

struct Options {
  CommonOptions common;
  GenerationFlags generation;
  bool json = false;
};

struct Answer {
  std::vector<uint32_t> token_ids;
  std::string text;
  api::Finished finished;
};

std::string FinishWord(api::FinishReason reason) {
  switch (reason) {
    case api::FINISH_REASON_STOP:
      return "stop";
    case api::FINISH_REASON_LENGTH:
      return "length";
    case api::FINISH_REASON_STOP_SEQUENCE:
      return "stop_sequence";
    default:
      return "unknown";
  }
}

Json AnswerJson(const Answer& answer) {
  const api::Usage& usage = answer.finished.usage();
  const api::Timings& timings = answer.finished.timings();
  return Json::Object()
      .Set("token_ids", answer.token_ids)
      .Set("text", answer.text)
      .Set("finish_reason", FinishWord(answer.finished.reason()))
      .Set("usage", Json::Object()
                        .Set("prompt_tokens", usage.prompt_tokens())
                        .Set("completion_tokens", usage.completion_tokens())
                        .Set("cached_prompt_tokens", usage.cached_prompt_tokens()))
      .Set("timings", Json::Object()
                          .Set("queue_seconds", timings.queue_seconds())
                          .Set("prompt_seconds", timings.prompt_seconds())
                          .Set("decode_seconds", timings.decode_seconds())
                          .Set("stall_seconds", timings.stall_seconds())
                          .Set("tokens_per_second", timings.tokens_per_second()))
      .Set("experts", Json::Object()
                          .Set("requests", timings.expert_requests())
                          .Set("hits", timings.expert_hits())
                          .Set("bytes_ssd", timings.bytes_ssd())
                          .Set("bytes_link", timings.bytes_link()))
      .Set("seed", answer.finished.seed());
}

// Two lines under the answer: what it took.
void PrintStatistics(const Answer& answer) {
  const api::Usage& usage = answer.finished.usage();
  const api::Timings& timings = answer.finished.timings();
  const double prompt_rate =
      timings.prompt_seconds() > 0 ? usage.prompt_tokens() / timings.prompt_seconds() : 0;
  const double hit_share = timings.expert_requests() > 0
                               ? 100.0 * static_cast<double>(timings.expert_hits()) /
                                     static_cast<double>(timings.expert_requests())
                               : 0;
  const std::string lines = absl::StrFormat(
      "prompt %d tokens in %.3f s (%.1f tokens/s), answer %d tokens in %.3f s (%.1f tokens/s), ended by %s\n"
      "experts %d used, %.1f %% were in memory; %s from SSD, %.3f s of waiting for it; seed %d",
      usage.prompt_tokens(), timings.prompt_seconds(), prompt_rate, usage.completion_tokens(),
      timings.decode_seconds(), timings.tokens_per_second(), FinishWord(answer.finished.reason()),
      timings.expert_requests(), hit_share, FormatSize(timings.bytes_ssd()), timings.stall_seconds(),
      answer.finished.seed());
  std::fprintf(stderr, "%s\n", Styled(lines, Style::kDim, StderrIsTerminal()).c_str());
}

absl::StatusOr<Answer> Stream(Client* client, const api::GenerateStreamRequest& request, bool show) {
  Answer answer;
  const auto handle = [&](const api::GenerateStreamResponse& event) -> absl::Status {
    if (event.has_delta()) {
      const api::Delta& delta = event.delta();
      answer.token_ids.insert(answer.token_ids.end(), delta.token_ids().begin(), delta.token_ids().end());
      answer.text += delta.text();
      return show ? WriteStdout(delta.text()) : absl::OkStatus();
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
  ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher, Launcher::Launch(context, o.common, o.json));
  // Token ids of a model without a tokenizer have no text.
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
  parser.Flag("--json", &options.json, "prints one JSON object instead of the text");
  options.common.Declare(&parser);
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  if (options.generation.Ambiguous(StdinIsTerminal())) {
    return parser.UsageError("give one of --prompt and --token-ids, or a prompt on standard input");
  }
  const absl::StatusOr<int> code = Run(context, options);
  return code.ok() ? *code : Fail("run", code.status(), options.json);
}

}  // namespace sluice::cli
