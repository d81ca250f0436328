#include "inferd/http/answer_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "inferd/http/request_fields.h"

namespace sluice::inferd {
namespace {

// Interval of keep-alive comments on a silent stream; they keep proxies from closing it.
constexpr absl::Duration kPingInterval = absl::Seconds(5);
constexpr char kPing[] = ": ping\n\n";
constexpr size_t kLogprobBytes = 12;

// Sink of one choice.
class ChoiceSink final : public RequestSink {
 public:
  ChoiceSink(std::shared_ptr<AnswerCall> call, size_t choice) : call_(std::move(call)), choice_(choice) {}
  void OnStarted(const Usage& usage, double) override { call_->Started(choice_, usage); }
  void OnTokens(absl::Span<const TokenOut> tokens, std::string_view text) override {
    call_->Tokens(choice_, tokens, text);
  }
  void OnFinished(const FinishInfo& info) override { call_->Finished(choice_, info); }
  void OnError(const absl::Status& status) override { call_->Failed(choice_, status); }

 private:
  const std::shared_ptr<AnswerCall> call_;
  const size_t choice_;
};

std::vector<std::string> ChoiceIds(const AnswerPlan& plan) {
  std::vector<std::string> ids;
  for (const GenerateSpec& spec : plan.specs) {
    ids.push_back(spec.request_id);
  }
  return ids;
}

}  // namespace

AnswerCall::AnswerCall(const ServingContext& context, AnswerPlan plan, std::unique_ptr<AnswerWriter> writer,
                       std::shared_ptr<HttpExchange> exchange)
    : ServedCall(context, {plan.kind, plan.request_id, plan.client}, ChoiceIds(plan)),
      plan_(std::move(plan)),
      exchange_(std::move(exchange)),
      writer_(std::move(writer)),
      wrote_(SteadyNow()) {
  const MutexLock lock(&mutex_);
  choices_.resize(plan_.specs.size());
  for (const GenerateSpec& spec : plan_.ungenerated) {
    FinishInfo end;
    end.reason = FinishReason::kLength;
    end.usage.prompt_tokens = static_cast<uint32_t>(spec.prompt.size());
    choices_.emplace_back().end = end;
  }
}

void AnswerCall::Start(const ServingContext& context, AnswerPlan plan, std::unique_ptr<AnswerWriter> writer,
                       std::shared_ptr<HttpExchange> exchange) {
  const auto call =
      std::make_shared<AnswerCall>(context, std::move(plan), std::move(writer), std::move(exchange));
  call->Enter();                       // the connection's end always ends it
  call->exchange_->SetObserver(call);  // before any answer
  call->Submit();
}

void AnswerCall::Submit() {
  if (!plan_.ungenerated.empty()) {
    const MutexLock lock(&mutex_);
    Wake();
  }
  for (size_t i = 0; i < plan_.specs.size(); ++i) {
    const absl::Status status =
        ServedCall::Submit(i, plan_.specs[i], std::make_shared<ChoiceSink>(shared_from_this(), i));
    if (!status.ok()) {
      const MutexLock lock(&mutex_);
      Fail(status);
      break;
    }
  }
}

void AnswerCall::Wake() {
  if (!over_) {
    exchange_->Wake();
  }
}

void AnswerCall::Fail(const absl::Status& status) {
  if (!error_.has_value() && !over_) {
    error_ = ToClientFieldNames(status, plan_.constraint_fields);
    Wake();
  }
}

void AnswerCall::Started(size_t choice, const Usage& usage) {
  const MutexLock lock(&mutex_);
  choices_[choice].running = usage;
}

void AnswerCall::Tokens(size_t choice, absl::Span<const TokenOut> tokens, std::string_view text) {
  const MutexLock lock(&mutex_);
  if (over_ || ended_ || error_.has_value()) {
    return;
  }
  Choice& to = choices_[choice];
  to.running.completion_tokens += static_cast<uint32_t>(tokens.size());
  to.pending.text.append(text);
  size_t bytes = text.size();
  if (plan_.wants_tokens) {
    to.pending.tokens.insert(to.pending.tokens.end(), tokens.begin(), tokens.end());
    for (const TokenOut& token : tokens) {
      bytes += kLogprobBytes * (1 + token.candidates.size());
    }
  }
  SetUnsent(unsent() + bytes);
  if (!plan_.stream) {
    return;  // bounded by max_tokens; nothing is sent before the end
  }
  if (unsent() > serving().limits.max_unsent_bytes.Get()) {
    serving().calls->CountSlowConsumer();
    Fail(ReasonError(absl::StatusCode::kResourceExhausted, "SLOW_CONSUMER",
                     absl::StrCat("the reader of this stream is too slow: ", unsent(), " bytes wait")));
    writing_ = false;  // the connection is cut; pending writes do not matter
    return;
  }
  if (!writing_) {
    Wake();
  }
}

void AnswerCall::Finished(size_t choice, const FinishInfo& info) {
  RequestEnded(choice);
  const MutexLock lock(&mutex_);
  choices_[choice].end = info;
  Wake();
}

void AnswerCall::Failed(size_t choice, const absl::Status& status) {
  RequestEnded(choice);
  const MutexLock lock(&mutex_);
  Fail(status);
}

std::optional<AnswerCall::Round> AnswerCall::TakeRound() {
  const MutexLock lock(&mutex_);
  if (over_ || ended_ || writing_) {
    return std::nullopt;
  }
  Round round;
  if (error_.has_value()) {
    round.error = error_;
    end_status_ = *error_;
    ended_ = true;
    return round;
  }
  round.all_delivered = true;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    if (!choice.end_delivered &&
        (choice.end.has_value() || !choice.pending.text.empty() || !choice.pending.tokens.empty())) {
      round.parts.push_back({i, std::exchange(choice.pending, {}), choice.running, choice.end});
      choice.end_delivered = choice.end.has_value();
    }
    round.all_delivered = round.all_delivered && choice.end_delivered;
  }
  if (plan_.stream || round.all_delivered) {
    SetUnsent(0);
  }
  ended_ = round.all_delivered;
  return round;
}

void AnswerCall::OnReady() {
  std::optional<Round> round = TakeRound();
  if (!round.has_value()) {
    return;
  }
  if (round->error.has_value()) {
    CancelRequests();
    WriteError(*round->error);
    return;
  }
  WriteRound(*std::move(round));
}

void AnswerCall::WriteRound(Round round) {
  std::string out;
  for (Round::Part& part : round.parts) {
    if (!part.piece.text.empty() || !part.piece.tokens.empty()) {
      writer_->Add(part.choice, std::move(part.piece), part.running, &out);
    }
    if (part.end.has_value()) {
      writer_->Finish(part.choice, *part.end, &out);
    }
  }
  if (round.all_delivered) {
    AnswerTotals totals;
    {
      const MutexLock lock(&mutex_);
      totals = Totals();
    }
    writer_->End(totals, &out);
  }
  if (!plan_.stream) {
    if (round.all_delivered) {
      HttpResponse answer;
      answer.headers = plan_.headers;
      answer.body = std::move(out);
      exchange_->Answer(std::move(answer));
    }
    return;
  }
  if (!out.empty()) {
    {
      const MutexLock lock(&mutex_);
      writing_ = true;
      wrote_ = SteadyNow();
    }
    Begin();
    exchange_->Write(std::move(out));
  }
  if (round.all_delivered) {
    exchange_->End(/*whole=*/true);
  }
}

void AnswerCall::Begin() {
  if (!std::exchange(begun_, true)) {
    HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers = plan_.headers;
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");
    exchange_->Begin(std::move(head));
  }
}

void AnswerCall::WriteError(const absl::Status& status) {
  if (!begun_) {
    HttpResponse answer = ErrorAnswer(status, plan_.errors);
    answer.headers.insert(answer.headers.end(), plan_.headers.begin(), plan_.headers.end());
    exchange_->Answer(std::move(answer));
    return;
  }
  exchange_->Write(writer_->ErrorEvent(status));
  exchange_->End(/*whole=*/false);
}

void AnswerCall::OnTick(absl::Time now) {
  {
    const MutexLock lock(&mutex_);
    if (!plan_.stream || over_ || ended_ || writing_ || now < wrote_ + kPingInterval) {
      return;
    }
    writing_ = true;
    wrote_ = now;
  }
  Begin();
  exchange_->Write(kPing);
}

void AnswerCall::OnWritten() {
  {
    const MutexLock lock(&mutex_);
    writing_ = false;
  }
  OnReady();  // output may have arrived meanwhile
}

void AnswerCall::OnEnded(bool disconnected) {
  std::optional<FinishInfo> info;
  absl::Status status;
  {
    const MutexLock lock(&mutex_);
    if (std::exchange(over_, true)) {
      return;
    }
    status = end_status_;
    if (disconnected && status.ok()) {
      status = absl::CancelledError("the client went away");
    }
    if (status.ok()) {
      const AnswerTotals totals = Totals();
      info.emplace();
      info->usage = totals.usage;
      info->timings = totals.timings;
    }
  }
  if (disconnected) {
    CancelRequests();
  }
  LogEnd(info.has_value() ? &*info : nullptr, status);
  Leave();
}

AnswerTotals AnswerCall::Totals() const {
  AnswerTotals totals;
  double longest = -1;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const FinishInfo& end = *choices_[i].end;
    totals.usage.completion_tokens += end.usage.completion_tokens;
    totals.usage.drafted_tokens += end.usage.drafted_tokens;
    totals.usage.accepted_tokens += end.usage.accepted_tokens;
    if (plan_.first_of[i] != 0) {
      totals.usage.prompt_tokens += end.usage.prompt_tokens;
      totals.usage.cached_prompt_tokens += end.usage.cached_prompt_tokens;
    }
    const double seconds = end.timings.prompt_seconds + end.timings.decode_seconds;
    if (seconds > longest) {
      longest = seconds;
      totals.timings = end.timings;
    }
  }
  return totals;
}

}  // namespace sluice::inferd
