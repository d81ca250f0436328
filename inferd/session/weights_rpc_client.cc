#include "inferd/session/weights_rpc_client.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unix_listener.h"
#include "daemon/grpc_status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "sluice/weights/v1/weights.grpc.pb.h"

namespace sluice::inferd {
namespace v1 = ::sluice::weights::v1;

namespace {

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& socket_path) {
  grpc::ChannelArguments arguments;
  // gRPC shares subchannels between channels of one address, and with them the back-off after a failed
  // attempt. Each attempt here has a new channel and must not wait for the last one's failure.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  return grpc::CreateCustomChannel(absl::StrCat("unix:", socket_path), grpc::InsecureChannelCredentials(),
                                   arguments);
}

v1::OpenSessionRequest RequestOf(const OpenSessionParams& params) {
  v1::OpenSessionRequest request;
  v1::AbiSignature& abi = *request.mutable_abi();
  abi.set_version(params.abi.version);
  abi.set_residency_header(params.abi.residency_header);
  abi.set_residency_entry(params.abi.residency_entry);
  abi.set_pins_header(params.abi.pins_header);
  abi.set_pin_entry(params.abi.pin_entry);
  abi.set_control_header(params.abi.control_header);
  abi.set_control_cursors(params.abi.control_cursors);
  abi.set_submission_entry(params.abi.submission_entry);
  abi.set_completion_entry(params.abi.completion_entry);
  abi.set_side_message(params.abi.side_message);
  request.set_expected_boot_epoch(params.expected_boot_epoch);
  request.add_packs()->set_model_id(params.model_id);
  request.set_compute_threads(params.compute_threads);
  request.set_client_name(params.client_name);
  request.mutable_rings()->set_ring_entries(params.layout.ring_entries);
  request.mutable_rings()->set_list_entries(params.layout.list_entries);
  request.mutable_rings()->set_progress_words(params.layout.progress_words);
  return request;
}

absl::StatusOr<OpenedSession> SessionOf(const v1::OpenSessionResponse& response) {
  OpenedSession opened;
  if (response.nonce().size() != opened.nonce.size() || response.packs_size() != 1 ||
      response.boot_epoch() == 0) {
    return absl::InternalError(absl::StrCat("weightd's answer makes no sense: a nonce of ",
                                            response.nonce().size(), " bytes, ", response.packs_size(),
                                            " packs, boot epoch ", response.boot_epoch()));
  }
  opened.session = response.session();
  opened.boot_epoch = response.boot_epoch();
  std::copy(response.nonce().begin(), response.nonce().end(), opened.nonce.begin());
  opened.side_socket = response.side_socket();
  opened.extent_count = response.packs(0).extent_count();
  opened.control_bytes = response.control_bytes();
  opened.reserved_bytes = response.reserved_bytes();
  opened.dram_budget_bytes = response.dram_budget_bytes();
  opened.io_engine = response.io_engine();
  return opened;
}

}  // namespace

struct WeightsRpcClient::Impl {
  std::string socket_path;
  std::unique_ptr<v1::WeightService::Stub> stub;
};

WeightsRpcClient::WeightsRpcClient(const std::string& socket_path)
    : impl_(std::make_unique<Impl>(Impl{socket_path, v1::WeightService::NewStub(ChannelTo(socket_path))})) {}
WeightsRpcClient::~WeightsRpcClient() = default;
WeightsRpcClient::WeightsRpcClient(WeightsRpcClient&&) noexcept = default;
WeightsRpcClient& WeightsRpcClient::operator=(WeightsRpcClient&&) noexcept = default;

absl::StatusOr<OpenedSession> WeightsRpcClient::OpenSession(const OpenSessionParams& params,
                                                            absl::Time deadline) {
  // gRPC detects a missing listener late; the kernel reports it at once.
  const auto probe = ConnectUnix(impl_->socket_path, UnixSocketType::kStream);
  if (!probe.ok()) {
    return absl::UnavailableError(absl::StrCat("weightd: ", probe.status().message()));
  }
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(ToWallClock(deadline)));
  v1::OpenSessionResponse response;
  const grpc::Status status = impl_->stub->OpenSession(&context, RequestOf(params), &response);
  if (!status.ok()) {
    return Annotate(FromGrpcStatus(status),
                    absl::StrCat("opening a session with weightd at ", impl_->socket_path));
  }
  return SessionOf(response);
}

absl::Status WeightsRpcClient::CloseSession(uint64_t session, uint64_t boot_epoch, absl::Time deadline) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(ToWallClock(deadline)));
  v1::CloseSessionRequest request;
  request.set_session(session);
  request.set_boot_epoch(boot_epoch);
  v1::CloseSessionResponse response;
  return FromGrpcStatus(impl_->stub->CloseSession(&context, request, &response));
}

absl::StatusOr<WeightsRpcClient::DramBudget> WeightsRpcClient::SetDramBudget(uint64_t bytes,
                                                                             absl::Time deadline) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(ToWallClock(deadline)));
  v1::SetDramBudgetRequest request;
  request.set_dram_budget_bytes(bytes);
  v1::SetDramBudgetResponse response;
  RETURN_IF_ERROR(FromGrpcStatus(impl_->stub->SetDramBudget(&context, request, &response)));
  return DramBudget{response.previous_bytes(), response.segment_bytes()};
}

}  // namespace sluice::inferd
