// ServiceFixture: inferd's services over a unix socket, with a FakeEngine as the engine and clients.
//
// Thread safety: thread-compatible; a test's own thread uses it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "common/base/listen_address.h"
#include "common/text/tokenizer.h"
#include "daemon/grpc_status.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "inferd/grpc/inferd_server.h"
#include "inferd/serving/server_state.h"
#include "sluice/inference/v1/admin.grpc.pb.h"
#include "sluice/inference/v1/evaluation.grpc.pb.h"
#include "sluice/inference/v1/inference.grpc.pb.h"
#include "sluice/inference/v1/model.grpc.pb.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/null_sink.h"
#include "tests/support/fakes/fake_engine.h"
#include "tests/support/temp_dir.h"

namespace sluice {

class ServiceFixture : public testing::Test {
 protected:
  static constexpr uint32_t kVocab = 1000;
  static constexpr uint32_t kContext = 64;

  ServiceFixture() : log_("test", std::make_shared<spdlog::sinks::null_sink_mt>()) {
    context_.model.id = "0123456789abcdef0123456789abcdef";
    context_.model.name = "tiny";
    context_.model.family = "mixtral";
    context_.model.vocab = kVocab;
    context_.model.context = kContext;
    context_.log = &log_;
  }

  void StartServer() {
    inferd::ServerInfo info;
    info.version = "1.2.3";
    info.model_id = context_.model.id;
    info.pack_path = "/packs/tiny";
    info.options = {{"context", "64", true}, {"kv", "f16", false}};
    state_ = std::make_unique<inferd::ServerState>(std::move(info));
    state_->SetEngine(&engine_);
    context_.state = state_.get();
    inferd::InferdServerOptions options;
    options.addresses = {Address("inferd.sock")};
    options.admin = {Address("admin.sock")};
    options.health_interval = absl::Milliseconds(5);
    auto server = inferd::InferdServer::Start(std::move(options), context_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = Connect("inferd.sock");
    admin_channel_ = Connect("admin.sock");
    inference_ = inference::v1::InferenceService::NewStub(channel_);
    admin_ = inference::v1::AdminService::NewStub(admin_channel_);
  }

  ListenAddress Address(const std::string& name) {
    return *ParseListenAddress("unix:" + dir_.path() + "/" + name);
  }
  std::shared_ptr<grpc::Channel> Connect(const std::string& name) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    return grpc::CreateCustomChannel(Address(name).ToString(), grpc::InsecureChannelCredentials(), arguments);
  }

  // A request of three ids under the id `id`.
  static inference::v1::GenerationSpec Spec(const std::string& id) {
    inference::v1::GenerationSpec spec;
    spec.set_request_id(id);
    for (const uint32_t token : {1, 2, 3}) {
      spec.mutable_token_ids()->add_ids(token);
    }
    return spec;
  }
  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_wait_for_ready(true);
    // Without an answer the call fails its test instead of hanging the run.
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    return context;
  }
  absl::Status Generate(const inference::v1::GenerationSpec& spec,
                        inference::v1::GenerateResponse* response) {
    inference::v1::GenerateRequest request;
    *request.mutable_spec() = spec;
    return FromGrpcStatus(inference_->Generate(Context().get(), request, response));
  }
  using Stream = std::unique_ptr<grpc::ClientReader<inference::v1::GenerateStreamResponse>>;
  Stream OpenStream(const inference::v1::GenerationSpec& spec, grpc::ClientContext* context) {
    inference::v1::GenerateStreamRequest request;
    *request.mutable_spec() = spec;
    return inference_->GenerateStream(context, request);
  }
  inference::v1::GetStatsResponse Stats() {
    inference::v1::GetStatsResponse response;
    EXPECT_TRUE(admin_->GetStats(Context().get(), {}, &response).ok());
    return response;
  }

  TempDir dir_;
  spdlog::logger log_;
  FakeEngine engine_;
  inferd::ServingContext context_;
  std::unique_ptr<inferd::ServerState> state_;
  std::unique_ptr<inferd::InferdServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<grpc::Channel> admin_channel_;
  std::unique_ptr<inference::v1::InferenceService::Stub> inference_;
  std::unique_ptr<inference::v1::AdminService::Stub> admin_;
};

}  // namespace sluice
