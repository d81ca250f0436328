// GrpcServices and RoutedGrpcCall between a client and a scripted inferd: order, errors, slow readers,
// cancellation, and a call whose inferd was lost.

#include "cli/router/grpc_services.h"

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/listen_address.h"
#include "common/base/status.h"
#include "daemon/grpc_server.h"
#include "daemon/grpc_status.h"
#include "grpcpp/create_channel.h"
#include "sluice/inference/v1/inference.grpc.pb.h"
#include "sluice/inference/v1/model.grpc.pb.h"
#include "tests/support/temp_dir.h"

namespace sluice::cli {
namespace {

namespace asio = boost::asio;
namespace v1 = inference::v1;

constexpr int kMessageBytes = 64 << 10;

// An inferd: GenerateStream sends max_tokens messages, numbered; Generate answers with the request's id, or
// the error that the prompt "bad" asks for.
class ScriptedInferd final : public v1::InferenceService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context, const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto id = context->client_metadata().find("x-request-id");
    if (id != context->client_metadata().end()) {
      response->set_request_id(std::string(id->second.data(), id->second.size()));
    }
    reactor->Finish(
        request->spec().text() == "bad"
            ? ToGrpcStatus(ReasonError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "full"))
            : grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<v1::GenerateStreamResponse>* GenerateStream(
      grpc::CallbackServerContext*, const v1::GenerateStreamRequest* request) override {
    class Numbers final : public grpc::ServerWriteReactor<v1::GenerateStreamResponse> {
     public:
      Numbers(uint32_t count, ScriptedInferd* owner) : count_(count), owner_(owner) { Next(); }
      void OnWriteDone(bool) override { Next(); }
      void OnCancel() override { owner_->cancelled.Notify(); }
      void OnDone() override { delete this; }

     private:
      void Next() {
        if (sent_ == count_) {
          Finish(grpc::Status::OK);
          return;
        }
        message_.mutable_delta()->set_index(sent_++);
        message_.mutable_delta()->set_text(std::string(kMessageBytes, 'x'));
        StartWrite(&message_);
      }
      const uint32_t count_;
      ScriptedInferd* const owner_;
      uint32_t sent_ = 0;
      v1::GenerateStreamResponse message_;
    };
    return new Numbers(request->spec().stopping().max_tokens(), this);
  }

  absl::Notification cancelled;
};

class GrpcServicesTest : public testing::Test {
 protected:
  GrpcServicesTest() : guard_(io_.get_executor()) {
    inferd_server_ = Serve("inferd", {{&inferd_, "inferd"}});
    GrpcHooks hooks;
    hooks.find = [](const std::string& name) -> absl::StatusOr<size_t> {
      if (name == "a") return 0;
      return ReasonError(absl::StatusCode::kNotFound, "UNKNOWN_MODEL", "no such model");
    };
    hooks.admit = [this](const std::shared_ptr<RoutedCall>& call) { Admit(call); };
    hooks.describe = [](size_t, v1::Model* out) { out->set_name("a"); };
    services_ = std::make_unique<GrpcServices>(io_, 1, std::move(hooks));
    server_ = Serve("router", services_->services());
    stub_ = v1::InferenceService::NewStub(Connect("router"));
    loop_ = std::thread([this] { io_.run(); });
  }
  ~GrpcServicesTest() override {
    server_->Shutdown(absl::ZeroDuration());
    asio::post(io_, [this] { guard_.reset(); });
    loop_.join();
    inferd_server_->Shutdown(absl::ZeroDuration());
  }

  std::unique_ptr<GrpcServer> Serve(const std::string& name, const std::vector<NamedService>& services) {
    GrpcServerOptions options;
    options.addresses = {*ParseListenAddress("unix:" + dir_.path() + "/" + name)};
    return *GrpcServer::Start(std::move(options), services);
  }
  std::shared_ptr<grpc::Channel> Connect(const std::string& name) {
    grpc::ChannelArguments arguments;
    arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
    return grpc::CreateCustomChannel("unix:" + dir_.path() + "/" + name, grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  // The owner of calls: runs each at once, unless they are held; counts the lost ones, which go to the next
  // server.
  void Admit(const std::shared_ptr<RoutedCall>& call) {
    call->Begin([this] { left_.Notify(); });
    if (hold_) {
      held_ = call;
      admitted_.Notify();
      return;
    }
    Run(call);
  }
  void Run(const std::shared_ptr<RoutedCall>& call) {
    call->Forward({"", Connect(servers_[losses_])}, [this, call](bool lost, const std::string&) {
      if (lost && losses_ + 1 < servers_.size()) {
        ++losses_;
        Run(call);
      } else if (lost) {
        call->Fail(absl::UnavailableError("lost"));
      }
    });
  }

  grpc::Status Generate(const std::string& model, const std::string& text, v1::GenerateResponse* response) {
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", "mine");
    v1::GenerateRequest request;
    request.mutable_spec()->set_model(model);
    request.mutable_spec()->set_text(text);
    return stub_->Generate(&context, request, response);
  }
  static v1::GenerateStreamRequest StreamOf(uint32_t messages) {
    v1::GenerateStreamRequest request;
    request.mutable_spec()->set_model("a");
    request.mutable_spec()->mutable_stopping()->set_max_tokens(messages);
    return request;
  }

  TempDir dir_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  ScriptedInferd inferd_;
  std::unique_ptr<GrpcServer> inferd_server_;
  std::unique_ptr<GrpcServices> services_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  std::vector<std::string> servers_ = {"inferd"};
  size_t losses_ = 0;
  bool hold_ = false;
  std::shared_ptr<RoutedCall> held_;
  absl::Notification admitted_;
  absl::Notification left_;
  std::thread loop_;
};

TEST_F(GrpcServicesTest, AnswersAndErrorsPassUnchanged) {
  v1::GenerateResponse response;
  EXPECT_TRUE(Generate("a", "good", &response).ok());
  EXPECT_EQ(response.request_id(), "mine");
  const absl::Status full = FromGrpcStatus(Generate("a", "bad", &response));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full), "QUEUE_FULL");
  const absl::Status unknown = FromGrpcStatus(Generate("b", "good", &response));
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(unknown), "UNKNOWN_MODEL");
}

TEST_F(GrpcServicesTest, StreamsKeepTheirOrder) {
  grpc::ClientContext context;
  const auto reader = stub_->GenerateStream(&context, StreamOf(200));
  v1::GenerateStreamResponse message;
  for (uint32_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(reader->Read(&message)) << i;
    EXPECT_EQ(message.delta().index(), i);
  }
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GrpcServicesTest, ACancelledStreamEndsAtInferd) {
  grpc::ClientContext context;
  // More than the connections hold: most of it waits for the reader when the call is cancelled.
  const auto reader = stub_->GenerateStream(&context, StreamOf(10000));
  v1::GenerateStreamResponse message;
  ASSERT_TRUE(reader->Read(&message));
  context.TryCancel();
  inferd_.cancelled.WaitForNotification();
  while (reader->Read(&message)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcServicesTest, AClientMayLeaveWhileItWaits) {
  hold_ = true;
  grpc::ClientContext context;
  const auto reader = stub_->GenerateStream(&context, StreamOf(1));
  admitted_.WaitForNotification();
  context.TryCancel();
  left_.WaitForNotification();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcServicesTest, ALostCallIsPassedOnAgain) {
  servers_ = {"nobody", "inferd"};
  v1::GenerateResponse response;
  EXPECT_TRUE(Generate("a", "good", &response).ok());
  EXPECT_EQ(response.request_id(), "mine");
  servers_ = {"nobody", "nobody"};
  const absl::Status lost = FromGrpcStatus(Generate("a", "good", &response));
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(lost), "UNAVAILABLE");
}

TEST_F(GrpcServicesTest, ModelsAreListedByTheOwner) {
  const auto models = v1::ModelService::NewStub(Connect("router"));
  grpc::ClientContext context;
  v1::ListModelsResponse response;
  EXPECT_TRUE(models->ListModels(&context, {}, &response).ok());
  ASSERT_EQ(response.models_size(), 1);
  EXPECT_EQ(response.models(0).name(), "a");
}

}  // namespace
}  // namespace sluice::cli
