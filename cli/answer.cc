#include "cli/answer.h"

#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/terminal.h"
#include "common/base/size.h"
#include "common/base/status.h"

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

namespace {

absl::Status CheckRows(const api::ScoreRows& rows, const ScoreTask& task, uint64_t vocab, uint64_t next_row) {
  const uint64_t count = static_cast<uint64_t>(rows.argmax_size());
  const uint64_t logprobs = task.targets.empty() ? 0 : count;
  const uint64_t logit_bytes = task.want_logits ? count * vocab * sizeof(float) : 0;
  if (rows.first_row() != next_row || next_row + count > task.input.size() ||
      static_cast<uint64_t>(rows.target_logprobs_size()) != logprobs || rows.logits().size() != logit_bytes) {
    return absl::InternalError(
        absl::StrCat("inferd sent rows that do not add up: row ", rows.first_row(), " after ", next_row,
                     " of ", task.input.size(), ", ", count, " rows with ", rows.target_logprobs_size(),
                     " log probabilities and ", rows.logits().size(), " bytes of logits"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Score(Client* client, const ScoreTask& task, uint64_t vocab,
                   absl::FunctionRef<absl::Status(const ScoredRows&)> handle) {
  api::ScoreRequest request;
  request.mutable_token_ids()->Add(task.input.begin(), task.input.end());
  request.mutable_targets()->Add(task.targets.begin(), task.targets.end());
  request.set_want_logits(task.want_logits);
  uint64_t next_row = 0;
  std::vector<float> logits;  // a copy: the message's bytes are not aligned
  const auto on_event = [&](const api::ScoreResponse& event) -> absl::Status {
    if (!event.has_rows()) {
      return absl::OkStatus();
    }
    const api::ScoreRows& rows = event.rows();
    RETURN_IF_ERROR(CheckRows(rows, task, vocab, next_row));
    logits.resize(rows.logits().size() / sizeof(float));
    std::memcpy(logits.data(), rows.logits().data(), rows.logits().size());
    next_row += static_cast<uint64_t>(rows.argmax_size());
    return handle({rows.first_row(), absl::MakeConstSpan(rows.argmax().data(), rows.argmax().size()),
                   absl::MakeConstSpan(rows.target_logprobs().data(), rows.target_logprobs().size()),
                   logits});
  };
  RETURN_IF_ERROR(client->Score(request, on_event));
  if (next_row != task.input.size()) {
    return absl::InternalError(absl::StrCat("inferd sent ", next_row, " rows of ", task.input.size()));
  }
  return absl::OkStatus();
}

void Conversation::Ask(const std::string& question) { turns_.push_back({question, "", false}); }

void Conversation::Answer(const std::string& text) {
  turns_.back().answer = text;
  turns_.back().answered = true;
}

bool Conversation::TakeBack() {
  if (turns_.empty()) {
    return false;
  }
  turns_.pop_back();
  return true;
}

bool Conversation::ForgetOldest() {
  if (turns_.empty()) {
    return false;
  }
  turns_.erase(turns_.begin());
  return true;
}

void Conversation::Fill(google::protobuf::RepeatedPtrField<api::ChatMessage>* messages) const {
  const auto add = [messages](api::ChatRole role, const std::string& content) {
    api::ChatMessage* message = messages->Add();
    message->set_role(role);
    message->set_content(content);
  };
  if (!system_.empty()) {
    add(api::CHAT_ROLE_SYSTEM, system_);
  }
  for (const Turn& turn : turns_) {
    add(api::CHAT_ROLE_USER, turn.question);
    if (turn.answered) {
      add(api::CHAT_ROLE_ASSISTANT, turn.answer);
    }
  }
}

Json Conversation::Messages() const {
  Json messages = Json::Array();
  const auto add = [&messages](const char* role, const std::string& content) {
    messages.Append(Json::Object().Set("role", role).Set("content", content));
  };
  if (!system_.empty()) {
    add("system", system_);
  }
  for (const Turn& turn : turns_) {
    add("user", turn.question);
    if (turn.answered) {
      add("assistant", turn.answer);
    }
  }
  return messages;
}

absl::Status AddTemplateArgument(const std::string& argument, api::ChatOptions* options) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--template-arg '", argument, "' is not of the form NAME=VALUE"));
  }
  const std::string value = argument.substr(equals + 1);
  (*options->mutable_template_variables())[argument.substr(0, equals)] =
      IsJson(value) ? value : Json(value).Dump();
  return absl::OkStatus();
}

}  // namespace sluice::cli
