#include "inferd/service/inference_service.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/error_detail.h"
#include "common/status.h"
#include "inferd/service/chat_prompt.h"
#include "inferd/service/generate_service_call.h"
#include "inferd/service/service_call.h"
#include "inferd/service/service_request.h"

namespace sluice::inferd {
namespace {

namespace v1 = inference::v1;

// The conversation of a ChatRequest, ChatStreamRequest or TokenizeRequest.
template <typename Request>
ConversationView ConversationOf(const Request& request) {
  return {request.messages(), request.options()};
}

// Admission before parsing: refusals of a full queue must not cost more for a long text.
absl::Status Admit(const ServingContext& context, const grpc::CallbackServerContext& call,
                   const google::protobuf::Message& request) {
  RETURN_IF_ERROR(CheckNoUnknownFields(request));
  return context.engine->CheckQueueSpace(FactsOf(call).client);
}

// Submits the request to the engine; a refusal ends the call. The call is added to the pump before the engine
// gets it, since its first token may arrive at once.
template <typename Call>
void Submit(const ServingContext& context, GenerateSpec spec, const std::shared_ptr<Call>& call) {
  context.pump->Add(call);
  const absl::Status status = context.engine->Generate(std::move(spec), call);
  if (status.ok()) {
    call->request().Accepted();
  } else {
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
