#include "inferd/grpc/inference_service.h"

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "daemon/grpc_status.h"
#include "inferd/grpc/service_call.h"
#include "inferd/grpc/service_request.h"
#include "inferd/grpc/service_response.h"

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
StreamedAnswerCall<Response>::StreamedAnswerCall(const ServiceContext& context,
                                                 grpc::CallbackServerContext* call, const GenerateSpec& spec,
                                                 const ReportOptions& report)
    : ServiceStream<Response>(context, call, {kStreamName<Response>, spec.request_id, spec.client},
                              {spec.request_id}),
      report_(report) {}

template <typename Response>
void StreamedAnswerCall<Response>::OnStarted(const Usage& usage, double queue_seconds) {
  const absl::MutexLock lock(&this->mutex_);
  if (!this->Open()) {
    return;
  }
  inference::v1::Started& started = started_.emplace();
  started.set_request_id(label().request_id);
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
  this->RequestEnded(0);
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
  this->RequestEnded(0);
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
  this->LogEnd(status.ok() && info_ ? &*info_ : nullptr, status);
}

template <typename Response>
UnaryAnswerCall<Response>::UnaryAnswerCall(const ServiceContext& context, const GenerateSpec& spec,
                                           const ReportOptions& report, Response* response)
    : PumpedCall(context, {kUnaryName<Response>, spec.request_id, spec.client}, {spec.request_id}),
      pump_(context.pump),
      report_(report),
      response_(response) {}

template <typename Response>
void UnaryAnswerCall<Response>::End(absl::Status status) {
  const absl::MutexLock lock(&mutex_);
  if (!end_.has_value()) {
    end_ = std::move(status);
  }
  // A finished call was cancelled already, and the server and its pump may be gone.
  if (!finished_) {
    pump_->Schedule(this->shared_from_this());
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
  RequestEnded(0);
  {
    const absl::MutexLock lock(&mutex_);
    info_ = info;
  }
  End(absl::OkStatus());
}

template <typename Response>
void UnaryAnswerCall<Response>::OnError(const absl::Status& status) {
  RequestEnded(0);
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
  CancelRequests();
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
    collected_.set_request_id(label().request_id);
    collected_.set_model(serving().model.id);
    FillFinished(*info_, collected_.mutable_finished());
    response_->Swap(&collected_);
  }
  LogEnd(end_->ok() ? &*info_ : nullptr, *end_);
  Finish(ToGrpcStatus(Explain(*end_)));
}

template class StreamedAnswerCall<v1::GenerateStreamResponse>;
template class StreamedAnswerCall<v1::ChatStreamResponse>;
template class UnaryAnswerCall<v1::GenerateResponse>;
template class UnaryAnswerCall<v1::ChatResponse>;

namespace {

// The conversation of a ChatRequest, ChatStreamRequest or TokenizeRequest.
template <typename Request>
ConversationView ConversationOf(const Request& request) {
  return {request.messages(), request.options()};
}

absl::Status Admit(const ServingContext& context, const grpc::CallbackServerContext& call,
                   const google::protobuf::Message& request) {
  RETURN_IF_ERROR(CheckNoUnknownFields(request));
  return CheckQueueSpace(context, FactsOf(call).client);
}

// Submits the request to the engine; a refusal ends the call. The call is added to the pump before the engine
// gets it, since its first token may arrive at once.
template <typename Call>
void Submit(const ServiceContext& context, GenerateSpec spec, const std::shared_ptr<Call>& call) {
  context.pump->Add(call);
  if (const absl::Status status = call->Submit(0, std::move(spec), call); !status.ok()) {
    call->End(status);
  }
}

}  // namespace

grpc::ServerUnaryReactor* InferenceServiceImpl::Generate(grpc::CallbackServerContext* call,
                                                         const v1::GenerateRequest* request,
                                                         v1::GenerateResponse* response) {
  absl::Status admitted = Admit(context_, *call, *request);
  auto plan = admitted.ok() ? PlanGeneration(context_, FactsOf(*call), request->spec()) : admitted;
  if (!plan.ok()) {
    return Reply(call, plan.status());
  }
  call->AddInitialMetadata("x-request-id", plan->spec.request_id);
  auto generation = std::make_shared<GenerateCall>(context_, plan->spec, plan->report, response);
  Submit(context_, std::move(plan->spec), generation);
  return generation.get();
}

grpc::ServerWriteReactor<v1::GenerateStreamResponse>* InferenceServiceImpl::GenerateStream(
    grpc::CallbackServerContext* call, const v1::GenerateStreamRequest* request) {
  absl::Status admitted = Admit(context_, *call, *request);
  auto plan = admitted.ok() ? PlanGeneration(context_, FactsOf(*call), request->spec()) : admitted;
  if (!plan.ok()) {
    return Refuse<v1::GenerateStreamResponse>(plan.status());
  }
  call->AddInitialMetadata("x-request-id", plan->spec.request_id);
  auto stream = std::make_shared<GenerateStreamCall>(context_, call, plan->spec, plan->report);
  Submit(context_, std::move(plan->spec), stream);
  return stream.get();
}

grpc::ServerUnaryReactor* InferenceServiceImpl::Chat(grpc::CallbackServerContext* call,
                                                     const v1::ChatRequest* request,
                                                     v1::ChatResponse* response) {
  absl::Status admitted = Admit(context_, *call, *request);
  auto plan = admitted.ok() ? PlanChat(context_, FactsOf(*call), request->spec(), ConversationOf(*request))
                            : admitted;
  if (!plan.ok()) {
    return Reply(call, plan.status());
  }
  call->AddInitialMetadata("x-request-id", plan->spec.request_id);
  auto chat = std::make_shared<ChatCall>(context_, plan->spec, plan->report, response);
  Submit(context_, std::move(plan->spec), chat);
  return chat.get();
}

grpc::ServerWriteReactor<v1::ChatStreamResponse>* InferenceServiceImpl::ChatStream(
    grpc::CallbackServerContext* call, const v1::ChatStreamRequest* request) {
  absl::Status admitted = Admit(context_, *call, *request);
  auto plan = admitted.ok() ? PlanChat(context_, FactsOf(*call), request->spec(), ConversationOf(*request))
                            : admitted;
  if (!plan.ok()) {
    return Refuse<v1::ChatStreamResponse>(plan.status());
  }
  call->AddInitialMetadata("x-request-id", plan->spec.request_id);
  auto stream = std::make_shared<ChatStreamCall>(context_, call, plan->spec, plan->report);
  Submit(context_, std::move(plan->spec), stream);
  return stream.get();
}

grpc::ServerUnaryReactor* InferenceServiceImpl::Tokenize(grpc::CallbackServerContext* call,
                                                         const v1::TokenizeRequest* request,
                                                         v1::TokenizeResponse* response) {
  absl::Status status = CheckNoUnknownFields(*request);
  status.Update(CheckModel(context_, request->model()));
  status.Update(CheckTokenizer(context_));
  if (status.ok()) {
    status = request->messages().empty() ? TokenizeText(*request, response)
                                         : TokenizeConversation(*request, response);
  }
  return Reply(call, status);
}

absl::Status InferenceServiceImpl::TokenizeText(const v1::TokenizeRequest& request,
                                                v1::TokenizeResponse* response) const {
  if (request.has_options()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "options", "is about messages, and there are none");
  }
  EncodeOptions options;
  options.add_special_tokens = !request.has_add_special_tokens() || request.add_special_tokens();
  options.parse_special = !request.has_parse_special() || request.parse_special();
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, context_.tokenizer->Encode(request.text(), options));
  response->mutable_token_ids()->Assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status InferenceServiceImpl::TokenizeConversation(const v1::TokenizeRequest& request,
                                                        v1::TokenizeResponse* response) const {
  if (!request.text().empty() || request.has_add_special_tokens() || request.has_parse_special()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "messages",
                      "and text, add_special_tokens, parse_special exclude each other");
  }
  ASSIGN_OR_RETURN(ChatPrompt prompt, MakeChatPrompt(context_, ConversationOf(request)));
  response->mutable_token_ids()->Assign(prompt.ids.begin(), prompt.ids.end());
  response->set_text(std::move(prompt.text));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* InferenceServiceImpl::Detokenize(grpc::CallbackServerContext* call,
                                                           const v1::DetokenizeRequest* request,
                                                           v1::DetokenizeResponse* response) {
  absl::Status status = CheckNoUnknownFields(*request);
  status.Update(CheckModel(context_, request->model()));
  status.Update(CheckTokenizer(context_));
  if (!status.ok()) {
    return Reply(call, status);
  }
  const auto ids = TokenIdsOf(request->token_ids(), context_.tokenizer->vocab_size(), "token_ids");
  if (!ids.ok()) {
    return Reply(call, ids.status());
  }
  auto text = context_.tokenizer->Decode(*ids, request->skip_special());
  if (text.ok()) {
    response->set_text(*std::move(text));
  }
  return Reply(call, text.status());
}

}  // namespace sluice::inferd
