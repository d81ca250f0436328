#include "daemon/grpc_server.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "sluice/inference/v1/model.grpc.pb.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using inference::v1::GetModelRequest;
using inference::v1::GetModelResponse;
using inference::v1::ModelService;

constexpr char kServiceName[] = "sluice.inference.v1.ModelService";

// Answers with the client's class; the model "hang" is answered when the call is cancelled.
class EchoService final : public ModelService::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const GetModelRequest* request,
                                     GetModelResponse* response) override {
    class Hanging : public grpc::ServerUnaryReactor {
     public:
      explicit Hanging(absl::Notification* entered) { entered->Notify(); }
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    if (request->model() == "hang") {
      return new Hanging(&entered_);
    }
    response->mutable_model()->set_name(ClientClassOf(*context));
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  void WaitUntilHanging() { entered_.WaitForNotification(); }

 private:
  absl::Notification entered_;
};

class GrpcServerTest : public testing::Test {
 protected:
  ListenAddress Unix(const std::string& name = "s.sock") {
    return *ParseListenAddress("unix:" + dir_.path() + "/" + name);
  }
  absl::StatusOr<std::unique_ptr<GrpcServer>> Start(std::vector<ListenAddress> addresses) {
    GrpcServerOptions options;
    options.addresses = std::move(addresses);
    options.max_receive_bytes = 1 << 16;
    return GrpcServer::Start(std::move(options), {{&service_, kServiceName}});
  }
  static std::shared_ptr<grpc::Channel> Connect(const ListenAddress& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address.ToString(), grpc::InsecureChannelCredentials(), arguments);
  }
  static grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& model,
                          std::string* name) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    GetModelRequest request;
    request.set_model(model);
    GetModelResponse response;
    const grpc::Status status = ModelService::NewStub(channel)->GetModel(&context, request, &response);
    *name = response.model().name();
    return status;
  }
  static HealthCheckResponse::ServingStatus Check(const std::shared_ptr<grpc::Channel>& channel,
                                                  const std::string& service, grpc::Status* status) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    *status = Health::NewStub(channel)->Check(&context, request, &response);
    return response.status();
  }

  TempDir dir_;
  EchoService service_;
};

TEST_F(GrpcServerTest, UnixClientIsTheOwnerTcpClientIsTcp) {
  auto server = Start({Unix(), *ParseListenAddress("127.0.0.1:0")});
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_NE(0, (*server)->addresses()[1].port);
  std::string name;
  EXPECT_TRUE(Ask(Connect((*server)->addresses()[0]), "", &name).ok());
  EXPECT_EQ("owner", name);
  EXPECT_TRUE(Ask(Connect((*server)->addresses()[1]), "", &name).ok());
  EXPECT_EQ("tcp", name);
}

TEST_F(GrpcServerTest, ConnectionsAreCountedWhileTheyAreOpen) {
  auto server = Start({Unix(), *ParseListenAddress("127.0.0.1:0")});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(0u, (*server)->CountConnections());
  auto over_unix = Connect((*server)->addresses()[0]);
  auto over_tcp = Connect((*server)->addresses()[1]);
  std::string name;
  ASSERT_TRUE(Ask(over_unix, "", &name).ok());
  EXPECT_EQ(1u, (*server)->CountConnections());
  ASSERT_TRUE(Ask(over_tcp, "", &name).ok());
  EXPECT_EQ(2u, (*server)->CountConnections());
}

TEST_F(GrpcServerTest, SecondServerOnTheSameSocketIsRefused) {
  auto first = Start({Unix()});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(absl::StatusCode::kAlreadyExists, Start({Unix()}).status().code());
  std::string name;
  EXPECT_TRUE(Ask(Connect(Unix()), "", &name).ok());
}

TEST_F(GrpcServerTest, SecondServerOnTheSamePortIsRefused) {
  auto first = Start({*ParseListenAddress("127.0.0.1:0")});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Start({(*first)->addresses()[0]});
  EXPECT_EQ(absl::StatusCode::kAlreadyExists, second.status().code());
  EXPECT_NE(std::string::npos, second.status().ToString().find((*first)->addresses()[0].ToString()));
}

TEST_F(GrpcServerTest, AddressBeyondLoopbackIsRefused) {
  for (const char* text : {"0.0.0.0:0", "[::]:0", "192.0.2.1:4000"}) {
    EXPECT_EQ(absl::StatusCode::kInvalidArgument, Start({*ParseListenAddress(text)}).status().code()) << text;
  }
}

TEST_F(GrpcServerTest, SocketFileIsPrivateAndGoesWithTheServer) {
  const std::string path = Unix().path;
  auto server = Start({Unix()});
  ASSERT_TRUE(server.ok()) << server.status();
  struct stat info;
  ASSERT_EQ(0, stat(path.c_str(), &info));
  EXPECT_EQ(0600u, info.st_mode & 07777u);
  server->reset();
  EXPECT_NE(0, stat(path.c_str(), &info));
  EXPECT_TRUE(Start({Unix()}).ok());
}

TEST_F(GrpcServerTest, HealthFollowsSetServing) {
  auto server = Start({Unix()});
  ASSERT_TRUE(server.ok()) << server.status();
  auto channel = Connect(Unix());
  grpc::Status status;
  EXPECT_EQ(HealthCheckResponse::NOT_SERVING, Check(channel, "", &status));
  EXPECT_EQ(HealthCheckResponse::NOT_SERVING, Check(channel, kServiceName, &status));
  (*server)->SetServing(true);
  EXPECT_EQ(HealthCheckResponse::SERVING, Check(channel, "", &status));
  EXPECT_EQ(HealthCheckResponse::SERVING, Check(channel, kServiceName, &status));
  (*server)->SetServing(false);
  EXPECT_EQ(HealthCheckResponse::NOT_SERVING, Check(channel, "", &status));
  Check(channel, "no.such.Service", &status);
  EXPECT_EQ(grpc::StatusCode::NOT_FOUND, status.error_code());
}

TEST_F(GrpcServerTest, HealthWatchSendsChangesAndNothingElse) {
  auto server = Start({Unix()});
  ASSERT_TRUE(server.ok()) << server.status();
  auto channel = Connect(Unix());
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  auto watch = Health::NewStub(channel)->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(HealthCheckResponse::NOT_SERVING, response.status());
  (*server)->SetServing(false);
  (*server)->SetServing(true);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(HealthCheckResponse::SERVING, response.status());
  context.TryCancel();
  watch->Finish();
}

TEST_F(GrpcServerTest, RequestAboveTheLimitIsResourceExhausted) {
  auto server = Start({Unix()});
  ASSERT_TRUE(server.ok()) << server.status();
  auto channel = Connect(Unix());
  std::string name;
  EXPECT_TRUE(Ask(channel, std::string((1 << 16) - 8, 'x'), &name).ok());
  EXPECT_EQ(grpc::StatusCode::RESOURCE_EXHAUSTED,
            Ask(channel, std::string(1 << 16, 'x'), &name).error_code());
}

TEST_F(GrpcServerTest, ShutdownCancelsCallsAfterItsPatience) {
  auto server = Start({Unix()});
  ASSERT_TRUE(server.ok()) << server.status();
  auto channel = Connect(Unix());
  grpc::Status status;
  std::thread caller([&] {
    std::string name;
    status = Ask(channel, "hang", &name);
  });
  service_.WaitUntilHanging();
  (*server)->Shutdown(absl::Milliseconds(50));
  caller.join();
  EXPECT_FALSE(status.ok());
  (*server)->Shutdown(absl::ZeroDuration());
  (*server)->SetServing(true);
}

}  // namespace
}  // namespace sluice
