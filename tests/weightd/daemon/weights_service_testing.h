// WeightsServiceTest: weightd's service over its unix socket, and the bare protocol of a client.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unix_listener.h"
#include "common/protocol/rings.h"
#include "common/protocol/shared_memory.h"
#include "common/protocol/side_channel.h"
#include "daemon/grpc_status.h"
#include "grpcpp/create_channel.h"
#include "inferd/session/session_weight_client.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_pack.h"
#include "tests/support/weight_client_calls.h"
#include "weightd/daemon/weightd_server.h"
#include "weightd/daemon/weights_service.h"

namespace sluice::weightd {
namespace v1 = ::sluice::weights::v1;

inline absl::Time Soon() { return SteadyNow() + absl::Seconds(20); }

class WeightsServiceTest : public testing::Test {
 protected:
  void SetUp() override { Serve(/*preload=*/false, 32 << 20); }

  // Replaces the server, if there is one.
  void Serve(bool preload, uint64_t dram_budget) {
    server_.reset();
    WeightdOptions options;
    options.preload = preload;
    options.socket = folder_.File("weightd.sock");
    options.packs = {pack_.dir()};
    options.dram_budget = ByteSize{dram_budget};
    options.reader_threads = 1;
    auto server = WeightdServer::Start(options, {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::WeightService::NewStub(
        grpc::CreateChannel("unix:" + folder_.File("weightd.sock"), grpc::InsecureChannelCredentials()));
  }

  // Makes one call; returns its status with reason and field.
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::WeightService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                    Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(Soon()));
    return FromGrpcStatus((stub_.get()->*method)(&context, request, response));
  }

  v1::OpenSessionRequest GoodRequest() const {
    v1::OpenSessionRequest request;
    const AbiSignature own;
    request.mutable_abi()->set_version(own.version);
    request.mutable_abi()->set_residency_header(own.residency_header);
    request.mutable_abi()->set_residency_entry(own.residency_entry);
    request.mutable_abi()->set_pins_header(own.pins_header);
    request.mutable_abi()->set_pin_entry(own.pin_entry);
    request.mutable_abi()->set_control_header(own.control_header);
    request.mutable_abi()->set_control_cursors(own.control_cursors);
    request.mutable_abi()->set_submission_entry(own.submission_entry);
    request.mutable_abi()->set_completion_entry(own.completion_entry);
    request.mutable_abi()->set_side_message(own.side_message);
    request.add_packs()->set_path(pack_.dir());
    request.set_compute_threads(1);
    return request;
  }

  absl::Status Open(const v1::OpenSessionRequest& request, v1::OpenSessionResponse* response) {
    return Call(&v1::WeightService::Stub::OpenSession, request, response);
  }

  // Expects that the request fails with this code, reason and field.
  void ExpectRefused(const v1::OpenSessionRequest& request, absl::StatusCode code, const std::string& reason,
                     const std::string& part) {
    v1::OpenSessionResponse response;
    const absl::Status status = Open(request, &response);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(ReasonOf(status), reason) << status;
    EXPECT_NE(status.message().find(part), absl::string_view::npos) << part << " in " << status;
    EXPECT_TRUE(server_->store().Look(&StoreCore::Stats).sessions.empty());
  }

  std::unique_ptr<inferd::SessionWeightClient> Connect() {
    inferd::SessionWeightClientOptions options;
    options.socket = folder_.File("weightd.sock");
    options.pack_dir = pack_.dir();
    auto client = inferd::SessionWeightClient::Connect(options, Soon());
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  // Expects that weightd still serves honest clients.
  void ExpectServes() {
    const auto client = Connect();
    inferd::ExtentLease lease;
    if (!client->TryLease(5, &lease)) {
      ASSERT_TRUE(FetchAndLease(client.get(), 1, 5, &lease).ok());
    }
    EXPECT_TRUE(pack_.Matches(5, lease));
    client->Release(5, 1);
  }

  // Waits until weightd has `count` sessions.
  void AwaitSessions(size_t count) {
    const absl::Time deadline = Soon();
    while (server_->store().Look(&StoreCore::Stats).sessions.size() != count && SteadyNow() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(server_->store().Look(&StoreCore::Stats).sessions.size(), count);
  }

  TempDir folder_;
  TestPack pack_;
  std::unique_ptr<WeightdServer> server_;
  std::unique_ptr<v1::WeightService::Stub> stub_;
};

// The bare protocol of a client, for violating it.
class RawClient {
 public:
  // Opens a session and attaches its side socket.
  static std::unique_ptr<RawClient> Join(const v1::OpenSessionResponse& opened) {
    auto client = std::make_unique<RawClient>();
    client->side_ = *ConnectUnix(opened.side_socket(), UnixSocketType::kSeqPacket);
    SideMessage hello;
    std::copy(opened.nonce().begin(), opened.nonce().end(), hello.nonce.begin());
    EXPECT_TRUE(SendSideMessage(client->side_.get(), hello).ok());
    const auto welcome = client->Receive();
    EXPECT_TRUE(welcome.ok() && welcome->message.type == SideType::kWelcome) << welcome.status();
    if (!welcome.ok() || welcome->fds.size() != WelcomeFds::Count(1)) return nullptr;
    client->map_ =
        *MapSharedMemory(welcome->fds[WelcomeFds::kControl].get(), opened.control_bytes(), true, true);
    client->view_ = *OpenControl(client->map_.data(), client->map_.bytes());
    client->pins_ = *MapSharedMemory(welcome->fds[WelcomeFds::Pins(0)].get(),
                                     PinsBytes(opened.packs(0).extent_count()), true, true);
    client->bell_.reset(dup(welcome->fds[WelcomeFds::kServerBell].get()));
    return client;
  }

  absl::StatusOr<SidePacket> Receive() {
    pollfd polled{side_.get(), POLLIN, 0};
    poll(&polled, 1, 20'000);
    return ReceiveSideMessage(side_.get());
  }
  void Ring() { eventfd_write(bell_.get(), 1); }
  // Reads until weightd ends the connection.
  bool AwaitEnd() {
    absl::StatusOr<SidePacket> packet = Receive();
    while (packet.ok()) packet = Receive();
    return absl::IsFailedPrecondition(packet.status());
  }
  const ControlView& view() const { return view_; }
  std::byte* control() { return map_.data(); }
  std::byte* pins() { return pins_.data(); }
  int side() const { return side_.get(); }

 private:
  UniqueFd side_;
  UniqueFd bell_;
  Mapping map_;
  Mapping pins_;
  ControlView view_;
};

}  // namespace sluice::weightd
