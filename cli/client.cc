#include "cli/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "daemon/grpc_status.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace sluice::cli {
namespace {

// Maximum message size: a row of logits of the largest vocabularies takes about 1 MiB; a few fit.
constexpr int kMaxMessageBytes = 16 << 20;
// Interval between health checks of a starting daemon, and the timeout of a unary call: longer than any pause
// of a loaded machine.
constexpr absl::Duration kAskAgain = absl::Milliseconds(20);
constexpr absl::Duration kQuestionPatience = absl::Seconds(10);

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // A unix path is no host name; servers other than ours refuse it as an authority.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A web proxy of the environment must not apply to a local daemon.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// One gRPC call; Ctrl-C cancels it.
class Call {
 public:
  explicit Call(Interrupt* interrupt)
      : interrupt_(interrupt), canceller_(interrupt, [this] { context_.TryCancel(); }) {}

  grpc::ClientContext* context() { return &context_; }
  void SetDeadline(absl::Duration patience) {
    context_.set_deadline(absl::ToChronoTime(ToWallClock(SteadyNow() + patience)));
  }
  // Returns the call's final status; CANCELLED after an interrupt.
  absl::Status Result(const grpc::Status& status) const {
    RETURN_IF_ERROR(interrupt_->Check());
    return FromGrpcStatus(status);
  }

 private:
  Interrupt* const interrupt_;
  grpc::ClientContext context_;
  ScopedInterruptCall canceller_;
};

// Makes a unary call.
template <typename Response, typename Ask>
absl::StatusOr<Response> Question(Interrupt* interrupt, const Ask& ask) {
  Call call(interrupt);
  call.SetDeadline(kQuestionPatience);
  Response response;
  const absl::Status status = call.Result(ask(call.context(), &response));
  RETURN_IF_ERROR(interrupt->Check());
  if (absl::IsCancelled(status)) {
    return absl::UnavailableError(
        "the server ended the call");  // the server is stopping: nobody here cancelled
  }
  RETURN_IF_ERROR(status);
  return response;
}

template <typename Response>
absl::Status ReadAll(Call* call, std::unique_ptr<grpc::ClientReader<Response>> reader,
                     absl::FunctionRef<absl::Status(const Response&)> handle) {
  Response response;
  absl::Status handled;
  while (handled.ok() && reader->Read(&response)) {
    handled = handle(response);
  }
  if (!handled.ok()) {
    call->context()->TryCancel();
    while (reader->Read(&response)) {
    }
  }
  const absl::Status ended = call->Result(reader->Finish());
  return handled.ok() ? ended : handled;
}

}  // namespace

struct Client::Health {
  std::unique_ptr<grpc::health::v1::Health::Stub> stub;
};

Client::Client(const std::string& address, const std::string& admin_address, Interrupt* interrupt)
    : address_(address), interrupt_(interrupt), health_(std::make_unique<Health>()) {
  const std::shared_ptr<grpc::Channel> channel = Connect(address);
  inference_ = api::InferenceService::NewStub(channel);
  model_ = api::ModelService::NewStub(channel);
  evaluation_ = api::EvaluationService::NewStub(channel);
  health_->stub = grpc::health::v1::Health::NewStub(channel);
  if (!admin_address.empty()) {
    admin_ = api::AdminService::NewStub(Connect(admin_address));
  }
}

Client::~Client() = default;

bool CallStopper::Stop() {
  absl::MutexLock lock(&mutex_);
  if (stop_ == nullptr) {
    return false;
  }
  std::exchange(stop_, nullptr)();
  return true;
}

void CallStopper::Began(std::function<void()> stop) {
  absl::MutexLock lock(&mutex_);
  stop_ = std::move(stop);
}

void CallStopper::Ended() {
  absl::MutexLock lock(&mutex_);
  stop_ = nullptr;
}

absl::Status Client::CheckServing(absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  while (true) {
    Call call(interrupt_);
    call.SetDeadline(std::max(deadline - SteadyNow(), absl::Milliseconds(1)));
    grpc::health::v1::HealthCheckResponse response;
    const absl::Status status = call.Result(health_->stub->Check(call.context(), {}, &response));
    if (absl::IsCancelled(status)) {
      return status;
    }
    if (!status.ok()) {
      return absl::UnavailableError(
          absl::StrCat(address_, " does not answer: ", std::string(status.message())));
    }
    if (response.status() == grpc::health::v1::HealthCheckResponse::SERVING) {
      return absl::OkStatus();
    }
    // The server may be starting, or waiting for weightd's restart.
    if (SteadyNow() + kAskAgain >= deadline) {
      return absl::UnavailableError(
          absl::StrCat(address_, " is not serving after ", absl::FormatDuration(patience)));
    }
    RETURN_IF_ERROR(interrupt_->Check());
    absl::SleepFor(kAskAgain);
  }
}

absl::StatusOr<api::Model> Client::GetModel() {
  ASSIGN_OR_RETURN(api::GetModelResponse response,
                   (Question<api::GetModelResponse>(interrupt_, [this](auto* context, auto* response) {
                     api::GetModelRequest request;
                     request.set_model(named_);
                     return model_->GetModel(context, request, response);
                   })));
  return std::move(*response.mutable_model());
}

absl::StatusOr<api::ListModelsResponse> Client::ListModels() {
  return Question<api::ListModelsResponse>(interrupt_, [this](auto* context, auto* response) {
    return model_->ListModels(context, {}, response);
  });
}

absl::StatusOr<api::GetServerInfoResponse> Client::GetServerInfo() {
  return Question<api::GetServerInfoResponse>(interrupt_, [this](auto* context, auto* response) {
    return admin_->GetServerInfo(context, {}, response);
  });
}

absl::Status Client::CheckAdmin() const {
  return has_admin() ? absl::OkStatus()
                     : absl::FailedPreconditionError(
                           absl::StrCat(address_,
                                        ": no socket of its operators is known; --admin unix:PATH names the "
                                        "one that inferd has as --admin"));
}

absl::StatusOr<api::GetStatsResponse> Client::GetStats() {
  RETURN_IF_ERROR(CheckAdmin());
  return Question<api::GetStatsResponse>(
      interrupt_, [this](auto* context, auto* response) { return admin_->GetStats(context, {}, response); });
}

absl::Status Client::GenerateStream(
    api::GenerateStreamRequest request,
    absl::FunctionRef<absl::Status(const api::GenerateStreamResponse&)> handle) {
  request.mutable_spec()->set_model(named_);
  Call call(interrupt_);
  return ReadAll<api::GenerateStreamResponse>(&call, inference_->GenerateStream(call.context(), request),
                                              handle);
}

absl::Status Client::ChatStream(api::ChatStreamRequest request, CallStopper* stopper,
                                absl::FunctionRef<absl::Status(const api::ChatStreamResponse&)> handle) {
  request.mutable_spec()->set_model(named_);
  Call call(interrupt_);
  stopper->Began([&call] { call.context()->TryCancel(); });
  const absl::Status status =
      ReadAll<api::ChatStreamResponse>(&call, inference_->ChatStream(call.context(), request), handle);
  stopper->Ended();
  return status;
}

absl::Status Client::Score(api::ScoreRequest request,
                           absl::FunctionRef<absl::Status(const api::ScoreResponse&)> handle) {
  request.set_model(named_);
  Call call(interrupt_);
  return ReadAll<api::ScoreResponse>(&call, evaluation_->Score(call.context(), request), handle);
}

absl::Status Client::Calibrate(const api::CalibrateRequest& request,
                               absl::FunctionRef<absl::Status(const api::CalibrateResponse&)> handle) {
  RETURN_IF_ERROR(CheckAdmin());
  Call call(interrupt_);
  return ReadAll<api::CalibrateResponse>(&call, admin_->Calibrate(call.context(), request), handle);
}

}  // namespace sluice::cli
