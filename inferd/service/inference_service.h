// InferenceService: Generate, GenerateStream, Chat, ChatStream, Tokenize, Detokenize.
//
// Thread safety: thread-safe; gRPC calls the handlers from its threads.
#pragma once

#include "inferd/serving/serving_context.h"
#include "sluice/inference/v1/inference.grpc.pb.h"

namespace sluice::inferd {

class InferenceServiceImpl final : public inference::v1::InferenceService::CallbackService {
 public:
  // `context` is borrowed and must outlive the server.
  explicit InferenceServiceImpl(const ServingContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* call,
                                     const inference::v1::GenerateRequest* request,
                                     inference::v1::GenerateResponse* response) override;
  grpc::ServerWriteReactor<inference::v1::GenerateStreamResponse>* GenerateStream(
      grpc::CallbackServerContext* call, const inference::v1::GenerateStreamRequest* request) override;
  grpc::ServerUnaryReactor* Chat(grpc::CallbackServerContext* call, const inference::v1::ChatRequest* request,
                                 inference::v1::ChatResponse* response) override;
  grpc::ServerWriteReactor<inference::v1::ChatStreamResponse>* ChatStream(
      grpc::CallbackServerContext* call, const inference::v1::ChatStreamRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* call,
                                     const inference::v1::TokenizeRequest* request,
                                     inference::v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* call,
                                       const inference::v1::DetokenizeRequest* request,
                                       inference::v1::DetokenizeResponse* response) override;

 private:
  absl::Status TokenizeText(const inference::v1::TokenizeRequest& request,
                            inference::v1::TokenizeResponse* response) const;
  absl::Status TokenizeConversation(const inference::v1::TokenizeRequest& request,
                                    inference::v1::TokenizeResponse* response) const;

  const ServingContext& context_;
};

}  // namespace sluice::inferd
