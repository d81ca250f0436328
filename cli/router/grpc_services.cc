#include "cli/router/grpc_services.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/router/routed_grpc_call.h"
#include "daemon/grpc_status.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "inferd/grpc/service_call.h"
#include "inferd/serving/serving_context.h"
#include "sluice/inference/v1/evaluation.grpc.pb.h"
#include "sluice/inference/v1/inference.grpc.pb.h"
#include "sluice/inference/v1/model.grpc.pb.h"

namespace sluice::cli {
namespace {

namespace asio = boost::asio;
namespace v1 = inference::v1;

// Parts that all services use.
struct Endpoint {
  asio::io_context& io;
  const size_t models;
  const GrpcHooks hooks;
};

class UnaryClient final : public grpc::ServerUnaryReactor, public GrpcClient {
 public:
  explicit UnaryClient(grpc::ByteBuffer* response) : response_(response) {}

  void Follow(std::shared_ptr<RoutedGrpcCall> call) { call_ = std::move(call); }
  void Write(grpc::ByteBuffer response) override {
    *response_ = std::move(response);  // sent with the status
    call_->OnWritten(/*sent=*/true);
  }
  void Finish(const grpc::Status& status) override { ServerUnaryReactor::Finish(status); }
  void OnCancel() override {
    if (call_ != nullptr) {
      call_->OnCancelled();
    }
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer* const response_;
  std::shared_ptr<RoutedGrpcCall> call_;  // null: refused at once
};

class StreamClient final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public GrpcClient {
 public:
  void Follow(std::shared_ptr<RoutedGrpcCall> call) { call_ = std::move(call); }
  void Write(grpc::ByteBuffer response) override {
    response_ = std::move(response);
    StartWrite(&response_);
  }
  void Finish(const grpc::Status& status) override { ServerWriteReactor::Finish(status); }
  void OnWriteDone(bool ok) override { call_->OnWritten(ok); }
  void OnCancel() override {
    if (call_ != nullptr) {
      call_->OnCancelled();
    }
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer response_;
  std::shared_ptr<RoutedGrpcCall> call_;
};

const std::string& ModelOf(const v1::TokenizeRequest& request) { return request.model(); }
const std::string& ModelOf(const v1::DetokenizeRequest& request) { return request.model(); }
const std::string& ModelOf(const v1::ScoreRequest& request) { return request.model(); }
template <typename Request>
const std::string& ModelOf(const Request& request) {
  return request.spec().model();
}

// Number of the model that the request names.
template <typename Request>
absl::StatusOr<size_t> FindModel(const Endpoint& endpoint, const grpc::ByteBuffer& message) {
  grpc::ByteBuffer read = message;  // reading clears it
  Request request;
  if (!grpc::SerializationTraits<Request>::Deserialize(&read, &request).ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the request is no ", Request::descriptor()->full_name()));
  }
  return endpoint.hooks.find(ModelOf(request));
}

// Begins a call whose client is `client`, which it returns.
template <typename Request, typename Client>
Client* Route(const Endpoint& endpoint, std::string method, grpc::CallbackServerContext* context,
              const grpc::ByteBuffer& request, Client* client) {
  const absl::StatusOr<size_t> model = FindModel<Request>(endpoint, request);
  if (!model.ok()) {
    client->Finish(ToGrpcStatus(inferd::Explain(model.status())));
    return client;
  }
  auto call =
      std::make_shared<RoutedGrpcCall>(endpoint.io, *model, std::move(method), request, context, client);
  client->Follow(call);
  asio::post(endpoint.io, [admit = &endpoint.hooks.admit, call = std::move(call)] { (*admit)(call); });
  return client;
}

using grpc::ByteBuffer;
using ServerContext = grpc::CallbackServerContext;
using Unary = grpc::ServerUnaryReactor;
using Stream = grpc::ServerWriteReactor<ByteBuffer>;

using Inference = v1::InferenceService;
using RawInference = Inference::WithRawCallbackMethod_Generate<
    Inference::WithRawCallbackMethod_GenerateStream<Inference::WithRawCallbackMethod_Chat<
        Inference::WithRawCallbackMethod_ChatStream<Inference::WithRawCallbackMethod_Tokenize<
            Inference::WithRawCallbackMethod_Detokenize<Inference::Service>>>>>>;
using Evaluation = v1::EvaluationService;
using RawEvaluation = Evaluation::WithRawCallbackMethod_Score<Evaluation::Service>;

class RoutedInference final : public RawInference {
 public:
  explicit RoutedInference(const Endpoint& endpoint) : endpoint_(endpoint) {}

 private:
  Unary* Generate(ServerContext* context, const ByteBuffer* request, ByteBuffer* response) override {
    return RouteUnary<v1::GenerateRequest>("Generate", context, *request, response);
  }
  Unary* Chat(ServerContext* context, const ByteBuffer* request, ByteBuffer* response) override {
    return RouteUnary<v1::ChatRequest>("Chat", context, *request, response);
  }
  Unary* Tokenize(ServerContext* context, const ByteBuffer* request, ByteBuffer* response) override {
    return RouteUnary<v1::TokenizeRequest>("Tokenize", context, *request, response);
  }
  Unary* Detokenize(ServerContext* context, const ByteBuffer* request, ByteBuffer* response) override {
    return RouteUnary<v1::DetokenizeRequest>("Detokenize", context, *request, response);
  }
  Stream* GenerateStream(ServerContext* context, const ByteBuffer* request) override {
    return Route<v1::GenerateStreamRequest>(endpoint_, PathOf("GenerateStream"), context, *request,
                                            new StreamClient);
  }
  Stream* ChatStream(ServerContext* context, const ByteBuffer* request) override {
    return Route<v1::ChatStreamRequest>(endpoint_, PathOf("ChatStream"), context, *request, new StreamClient);
  }

  static std::string PathOf(const char* method) {
    return absl::StrCat("/", Inference::service_full_name(), "/", method);
  }
  template <typename Request>
  Unary* RouteUnary(const char* method, ServerContext* context, const ByteBuffer& request,
                    ByteBuffer* response) {
    return Route<Request>(endpoint_, PathOf(method), context, request, new UnaryClient(response));
  }

  const Endpoint& endpoint_;
};

class RoutedEvaluation final : public RawEvaluation {
 public:
  explicit RoutedEvaluation(const Endpoint& endpoint) : endpoint_(endpoint) {}

 private:
  Stream* Score(ServerContext* context, const ByteBuffer* request) override {
    return Route<v1::ScoreRequest>(endpoint_, absl::StrCat("/", Evaluation::service_full_name(), "/Score"),
                                   context, *request, new StreamClient);
  }

  const Endpoint& endpoint_;
};

class Models final : public v1::ModelService::CallbackService {
 public:
  explicit Models(const Endpoint& endpoint) : endpoint_(endpoint) {}

 private:
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* call,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override {
    return Answer(call, inferd::CheckNoUnknownFields(*request), [this, response] {
      for (size_t i = 0; i < endpoint_.models; ++i) {
        endpoint_.hooks.describe(i, response->add_models());
      }
    });
  }
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* call, const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override {
    absl::Status status = inferd::CheckNoUnknownFields(*request);
    const absl::StatusOr<size_t> model = endpoint_.hooks.find(request->model());
    status.Update(model.status());
    return Answer(call, status,
                  [this, response, model] { endpoint_.hooks.describe(*model, response->mutable_model()); });
  }

  // Fills the response on the loop's thread, if `status` is OK.
  template <typename Fill>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* call, const absl::Status& status, Fill fill) {
    if (!status.ok()) {
      return inferd::Reply(call, status);
    }
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    asio::post(endpoint_.io, [reactor, fill = std::move(fill)] {
      fill();
      reactor->Finish(grpc::Status::OK);
    });
    return reactor;
  }

  const Endpoint& endpoint_;
};

}  // namespace

struct GrpcServices::Parts {
  Endpoint endpoint;
  RoutedInference inference{endpoint};
  RoutedEvaluation evaluation{endpoint};
  Models models{endpoint};
};

GrpcServices::GrpcServices(asio::io_context& io, size_t models, GrpcHooks hooks)
    : parts_(new Parts{{io, models, std::move(hooks)}}) {}

GrpcServices::~GrpcServices() = default;

std::vector<NamedService> GrpcServices::services() const {
  return {{&parts_->inference, v1::InferenceService::service_full_name()},
          {&parts_->models, v1::ModelService::service_full_name()},
          {&parts_->evaluation, v1::EvaluationService::service_full_name()}};
}

}  // namespace sluice::cli
