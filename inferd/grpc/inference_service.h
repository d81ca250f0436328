// InferenceService: Generate, GenerateStream, Chat, ChatStream, Tokenize, Detokenize.
//
// Thread safety: thread-safe; gRPC calls the handlers from its threads.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "inferd/api/engine_api.h"
#include "inferd/grpc/service_call.h"
#include "inferd/grpc/service_request.h"
#include "inferd/serving/serving_context.h"
#include "sluice/inference/v1/evaluation.pb.h"
#include "sluice/inference/v1/inference.grpc.pb.h"
#include "sluice/inference/v1/inference.pb.h"

namespace sluice::inferd {

class InferenceServiceImpl final : public inference::v1::InferenceService::CallbackService {
 public:
  // `context` is borrowed and must outlive the server.
  explicit InferenceServiceImpl(const ServiceContext& context) : context_(context) {}

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

  const ServiceContext& context_;
};

// Generating calls, each a sink of the engine: Generate and Chat collect, GenerateStream and ChatStream
// stream.
//
// Thread safety: thread-safe; service_call.h documents the calling threads.

// `Response` is GenerateStreamResponse or ChatStreamResponse.
template <typename Response>
class StreamedAnswerCall final : public ServiceStream<Response>, public RequestSink {
 public:
  StreamedAnswerCall(const ServiceContext& context, grpc::CallbackServerContext* call,
                     const GenerateSpec& spec, const ReportOptions& report);
  void OnStarted(const Usage& usage, double queue_seconds) override ABSL_LOCKS_EXCLUDED(this->mutex_);
  void OnTokens(absl::Span<const TokenOut> tokens, std::string_view text) override
      ABSL_LOCKS_EXCLUDED(this->mutex_);
  void OnFinished(const FinishInfo& info) override ABSL_LOCKS_EXCLUDED(this->mutex_);
  void OnError(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(this->mutex_);

  using ServiceStream<Response>::End;

 private:
  using ServiceStream<Response>::serving;
  using ServiceStream<Response>::label;

  std::optional<size_t> Take(bool ending, Response* out) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(this->mutex_);
  void DropPending() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(this->mutex_);
  void Ending(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(this->mutex_);

  const ReportOptions report_;
  std::optional<inference::v1::Started> started_ ABSL_GUARDED_BY(this->mutex_);
  inference::v1::Delta delta_ ABSL_GUARDED_BY(this->mutex_);
  size_t delta_bytes_ ABSL_GUARDED_BY(this->mutex_) = 0;
  uint32_t delta_tokens_ ABSL_GUARDED_BY(this->mutex_) = 0;
  std::optional<FinishInfo> info_ ABSL_GUARDED_BY(this->mutex_);
  bool finished_sent_ ABSL_GUARDED_BY(this->mutex_) = false;
};

// `Response` is GenerateResponse or ChatResponse.
template <typename Response>
class UnaryAnswerCall final : public grpc::ServerUnaryReactor,
                              public PumpedCall,
                              public RequestSink,
                              public std::enable_shared_from_this<UnaryAnswerCall<Response>> {
 public:
  // `response` is owned by gRPC until OnDone.
  UnaryAnswerCall(const ServiceContext& context, const GenerateSpec& spec, const ReportOptions& report,
                  Response* response);
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnStarted(const Usage&, double) override {}
  void OnTokens(absl::Span<const TokenOut> tokens, std::string_view text) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFinished(const FinishInfo& info) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnError(const absl::Status& status) override;

  void Pump() override ABSL_LOCKS_EXCLUDED(mutex_);
  void CheckStall(absl::Time) override {}

  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override { pump_->Remove(this); }

 private:
  void FinishLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  StreamPump* const pump_;
  const ReportOptions report_;
  absl::Mutex mutex_;
  Response* const response_ ABSL_PT_GUARDED_BY(mutex_);
  Response collected_ ABSL_GUARDED_BY(mutex_);
  std::optional<FinishInfo> info_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

using GenerateStreamCall = StreamedAnswerCall<inference::v1::GenerateStreamResponse>;
using ChatStreamCall = StreamedAnswerCall<inference::v1::ChatStreamResponse>;
using GenerateCall = UnaryAnswerCall<inference::v1::GenerateResponse>;
using ChatCall = UnaryAnswerCall<inference::v1::ChatResponse>;

extern template class StreamedAnswerCall<inference::v1::GenerateStreamResponse>;
extern template class StreamedAnswerCall<inference::v1::ChatStreamResponse>;
extern template class UnaryAnswerCall<inference::v1::GenerateResponse>;
extern template class UnaryAnswerCall<inference::v1::ChatResponse>;

}  // namespace sluice::inferd
