#include "inferd/service/generate_service_call.h"

#include <type_traits>
#include <utility>

#include "daemon/grpc/grpc_status.h"
#include "inferd/service/service_response.h"

namespace sluice::inferd {
namespace {

namespace v1 = inference::v1;

// Name of a call in the log.
template <typename Response>
constexpr const char* kStreamName =
    std::is_same_v<Response, v1::ChatStreamResponse> ? "chat_stream" : "generate_stream";
template <typename Response>
constexpr const char* kUnaryName = std::is_same_v<Response, v1::ChatResponse> ? "chat" : "generate";

void BeginAnswer(v1::GenerateResponse*) {}
void BeginAnswer(v1::ChatResponse* response) {
  response->mutable_message()->set_role(v1::CHAT_ROLE_ASSISTANT);
}

}  // namespace

template <typename Response>
StreamedAnswerCall<Response>::StreamedAnswerCall(const ServingContext& context,
                                                 grpc::CallbackServerContext* call, const GenerateSpec& spec,
                                                 const ReportOptions& report)
    : ServiceStream<Response>(context, call),
      client_(spec.client),
      report_(report),
      request_(context.engine, spec.request_id) {}

template <typename Response>
void StreamedAnswerCall<Response>::OnStarted(const Usage& usage, double queue_seconds) {
  const absl::MutexLock lock(&this->mutex_);
  if (!this->Open()) {
    return;
  }
  inference::v1::Started& started = started_.emplace();
  started.set_request_id(request_.id());
  started.set_model(serving().model.id);
  started.set_prompt_tokens(usage.prompt_tokens);
  started.set_cached_prompt_tokens(usage.cached_prompt_tokens);
  started.set_queue_seconds(queue_seconds);
  this->Wake();
}

template <typename Response>
void StreamedAnswerCall<Response>::OnTokens(absl::Span<const TokenOut> tokens, std::string_view text) {
  const absl::MutexLock lock(&this->mutex_);
  if (!this->Open()) {
    return;
  }
  const size_t bytes = AppendTokens(tokens, text, report_, &delta_);
  delta_bytes_ += bytes;
  delta_tokens_ += static_cast<uint32_t>(tokens.size());
  this->Appended(bytes, /*may_cut=*/true);
  this->Wake();
}

template <typename Response>
void StreamedAnswerCall<Response>::OnFinished(const FinishInfo& info) {
  request_.Ended();
  {
    const absl::MutexLock lock(&this->mutex_);
    if (this->Open()) {
      info_ = info;
    }
  }
  End(absl::OkStatus());
}

template <typename Response>
void StreamedAnswerCall<Response>::OnError(const absl::Status& status) {
  request_.Ended();
  End(status);
}

template <typename Response>
std::optional<size_t> StreamedAnswerCall<Response>::Take(bool ending, Response* out) {
  out->Clear();
  if (started_.has_value()) {
    *out->mutable_started() = *std::move(started_);
    started_.reset();
    return 0;
  }
  // Tokens that arrived during a write are merged into the next message.
  if (delta_tokens_ >= report_.interval_tokens || (ending && (delta_tokens_ > 0 || delta_bytes_ > 0))) {
    out->mutable_delta()->Swap(&delta_);
    delta_.Clear();
    delta_tokens_ = 0;
    return std::exchange(delta_bytes_, 0);
  }
  if (ending && info_.has_value() && !std::exchange(finished_sent_, true)) {
    FillFinished(*info_, out->mutable_finished());
    return 0;
  }
  return std::nullopt;
}

template <typename Response>
void StreamedAnswerCall<Response>::DropPending() {
  started_.reset();
  delta_.Clear();
  delta_bytes_ = 0;
  delta_tokens_ = 0;
}

template <typename Response>
void StreamedAnswerCall<Response>::Ending(const absl::Status& status) {
  LogRequestEnd(serving(), kStreamName<Response>, request_.id(), client_,
                status.ok() && info_ ? &*info_ : nullptr, status);
}

template <typename Response>
UnaryAnswerCall<Response>::UnaryAnswerCall(const ServingContext& context, const GenerateSpec& spec,
                                           const ReportOptions& report, Response* response)
    : serving_(context),
      client_(spec.client),
      report_(report),
      request_(context.engine, spec.request_id),
      response_(response) {}

template <typename Response>
void UnaryAnswerCall<Response>::End(absl::Status status) {
  const absl::MutexLock lock(&mutex_);
  if (!end_.has_value()) {
    end_ = std::move(status);
  }
  // A finished call was cancelled already, and the server and its pump may be gone.
  if (!finished_) {
    serving_.pump->Schedule(this->shared_from_this());
  }
}

template <typename Response>
void UnaryAnswerCall<Response>::OnTokens(absl::Span<const TokenOut> tokens, std::string_view text) {
  const absl::MutexLock lock(&mutex_);
  if (!end_.has_value()) {
    AppendTokens(tokens, text, report_, &collected_);
  }
}

template <typename Response>
void UnaryAnswerCall<Response>::OnFinished(const FinishInfo& info) {
  request_.Ended();
  {
    const absl::MutexLock lock(&mutex_);
    info_ = info;
  }
  End(absl::OkStatus());
}

template <typename Response>
void UnaryAnswerCall<Response>::OnError(const absl::Status& status) {
  request_.Ended();
  End(status);
}

template <typename Response>
void UnaryAnswerCall<Response>::Pump() {
  const absl::MutexLock lock(&mutex_);
  if (end_.has_value()) {
    FinishLocked();
  }
}

template <typename Response>
void UnaryAnswerCall<Response>::OnCancel() {
  request_.Cancel();
  const absl::MutexLock lock(&mutex_);
  if (!end_.has_value()) {
    end_ = absl::CancelledError("cancelled by the client, or its deadline passed");
  }
  FinishLocked();
}

template <typename Response>
void UnaryAnswerCall<Response>::FinishLocked() {
  if (std::exchange(finished_, true)) {
    return;
  }
  if (end_->ok()) {
    BeginAnswer(&collected_);
    collected_.set_request_id(request_.id());
    collected_.set_model(serving_.model.id);
    FillFinished(*info_, collected_.mutable_finished());
    response_->Swap(&collected_);
  }
  LogRequestEnd(serving_, kUnaryName<Response>, request_.id(), client_, end_->ok() ? &*info_ : nullptr,
                *end_);
  Finish(ToGrpcStatus(Explain(*end_)));
}

template class StreamedAnswerCall<v1::GenerateStreamResponse>;
template class StreamedAnswerCall<v1::ChatStreamResponse>;
template class UnaryAnswerCall<v1::GenerateResponse>;
template class UnaryAnswerCall<v1::ChatResponse>;

}  // namespace sluice::inferd
