#include "cli/client/answer.h"

#include <cstdio>

#include "absl/strings/str_format.h"
#include "cli/ui/terminal.h"
#include "common/size.h"

namespace sluice::cli {
namespace {

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

}  // namespace

void Answer::Add(const api::Delta& delta) {
  token_ids.insert(token_ids.end(), delta.token_ids().begin(), delta.token_ids().end());
  text += delta.text();
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

void PrintStatistics(const Answer& answer) {
  const api::Usage& usage = answer.finished.usage();
  const api::Timings& timings = answer.finished.timings();
  const uint32_t cached = usage.cached_prompt_tokens();
  const double prompt_rate =
      timings.prompt_seconds() > 0 ? (usage.prompt_tokens() - cached) / timings.prompt_seconds() : 0;
  const double hit_share = timings.expert_requests() > 0
                               ? 100.0 * static_cast<double>(timings.expert_hits()) /
                                     static_cast<double>(timings.expert_requests())
                               : 0;
  const std::string lines = absl::StrFormat(
      "prompt %d tokens%s in %.3f s (%.1f tokens/s), answer %d tokens in %.3f s (%.1f tokens/s), ended by "
      "%s\n"
      "experts %d used, %.1f %% were in memory; %s from SSD, %.3f s of waiting for it; seed %d",
      usage.prompt_tokens(), cached > 0 ? absl::StrFormat(" (%d of them cached)", cached) : "",
      timings.prompt_seconds(), prompt_rate, usage.completion_tokens(), timings.decode_seconds(),
      timings.tokens_per_second(), FinishWord(answer.finished.reason()), timings.expert_requests(), hit_share,
      FormatSize(timings.bytes_ssd()), timings.stall_seconds(), answer.finished.seed());
  std::fprintf(stderr, "%s\n", Styled(lines, Style::kDim, StderrIsTerminal()).c_str());
}

}  // namespace sluice::cli
