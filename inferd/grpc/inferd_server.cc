#include "inferd/grpc/inferd_server.h"

#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "daemon/grpc_server.h"
#include "inferd/grpc/admin_service.h"
#include "inferd/grpc/inference_service.h"
#include "inferd/grpc/model_service.h"

namespace sluice::inferd {
namespace {

// Delay between the end of the last call and the close of its connection. A client that is writing (an HTTP/2
// acknowledgement) at the time of the close would discard the unread rest of the answer.
constexpr absl::Duration kLinger = absl::Milliseconds(100);

// Maximum size of an admin request. The largest is a calibration text: five million tokens of at most three
// bytes.
constexpr int kAdminRequestBytes = 16 << 20;

// Only users may be operators; allowed groups apply to clients.
PeerPolicy AdminPeers(std::vector<uid_t> allowed_uids) { return {std::move(allowed_uids), {}}; }

}  // namespace

// Members are destroyed in reverse order: servers before the services that they call, services before the
// pump that their calls use.
struct InferdServer::Parts {
  Parts(ServingContext serving, TuningApi* tuning)
      : context{std::move(serving), &pump},
        inference(context),
        model(context),
        evaluation(context),
        admin(context, tuning, [this] { return Connections(); }) {
    context.calls = &calls;
  }
  size_t Connections() const {
    const GrpcServer* clients = client_server_view.load();
    const GrpcServer* admins = admin_server_view.load();
    return (clients != nullptr ? clients->CountConnections() : 0) +
           (admins != nullptr ? admins->CountConnections() : 0);
  }

  LiveCalls calls;
  StreamPump pump;
  ServiceContext context;
  InferenceServiceImpl inference;
  ModelServiceImpl model;
  EvaluationServiceImpl evaluation;
  AdminServiceImpl admin;
  std::unique_ptr<GrpcServer> admin_server;
  std::unique_ptr<GrpcServer> client_server;
  // GetStats counts connections, and may run before Listen() has returned: the pointers are set once the
  // servers are up.
  std::atomic<const GrpcServer*> admin_server_view{nullptr};
  std::atomic<const GrpcServer*> client_server_view{nullptr};
  std::thread health;
};

InferdServer::InferdServer(InferdServerOptions options, ServingContext context)
    : options_(std::move(options)), parts_(std::make_unique<Parts>(std::move(context), options_.tuning)) {}

absl::StatusOr<std::unique_ptr<InferdServer>> InferdServer::Start(InferdServerOptions options,
                                                                  ServingContext context) {
  for (const ListenAddress& address : options.admin) {
    if (address.kind != ListenAddress::Kind::kUnix) {
      return absl::InvalidArgumentError(
          "the admin service is served on unix sockets only, where it is known who calls");
    }
  }
  std::unique_ptr<InferdServer> server(new InferdServer(std::move(options), std::move(context)));
  RETURN_IF_ERROR(server->Listen());
  server->parts_->health = std::thread([raw = server.get()] { raw->WatchHealth(); });
  return server;
}

absl::Status InferdServer::Listen() {
  auto report = [log = parts_->context.log](const std::string& why) { log->warn("{}", why); };
  if (!options_.admin.empty()) {
    GrpcServerOptions admin;
    admin.addresses = options_.admin;
    admin.peers = AdminPeers(options_.allowed_uids);
    admin.max_receive_bytes = kAdminRequestBytes;
    admin.on_refused = report;
    admin.inherited = options_.inherited;
    ASSIGN_OR_RETURN(parts_->admin_server,
                     GrpcServer::Start(std::move(admin),
                                       {{&parts_->admin, inference::v1::AdminService::service_full_name()}}));
    parts_->admin_server_view.store(parts_->admin_server.get());
    parts_->admin_server->SetServing(true);
  }
  GrpcServerOptions clients;
  clients.addresses = options_.addresses;
  clients.peers = {options_.allowed_uids, options_.allowed_gids};
  clients.socket_mode = options_.socket_mode;
  clients.tls = options_.tls;
  clients.on_refused = report;
  clients.inherited = options_.inherited;
  ASSIGN_OR_RETURN(
      parts_->client_server,
      GrpcServer::Start(std::move(clients),
                        {{&parts_->inference, inference::v1::InferenceService::service_full_name()},
                         {&parts_->model, inference::v1::ModelService::service_full_name()},
                         {&parts_->evaluation, inference::v1::EvaluationService::service_full_name()}}));
  parts_->client_server_view.store(parts_->client_server.get());
  return absl::OkStatus();
}

InferdServer::~InferdServer() { Shutdown(absl::ZeroDuration()); }

void InferdServer::StartDrain() {
  parts_->client_server->SetServing(false);
  parts_->context.state->StartDrain();
}

bool InferdServer::AwaitCalls(absl::Duration timeout) {
  if (parts_->calls.calls() == 0) {
    return true;
  }
  const bool ended = parts_->calls.AwaitIdle(timeout);
  if (ended) {
    absl::SleepFor(kLinger);
  }
  return ended;
}

void InferdServer::Shutdown(absl::Duration timeout) {
  if (!parts_->health.joinable()) {
    return;
  }
  StartDrain();
  AwaitCalls(timeout);
  // The admin service ends last, so that an operator can observe the drain.
  parts_->client_server->Shutdown(absl::ZeroDuration());
  {
    const absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  parts_->health.join();
  if (parts_->admin_server != nullptr) {
    parts_->admin_server->Shutdown(absl::ZeroDuration());
  }
}

void InferdServer::Tune(std::vector<uid_t> allowed_uids, std::vector<gid_t> allowed_gids,
                        const ServingLimits& limits) {
  parts_->context.limits = limits;
  if (parts_->admin_server != nullptr) {
    parts_->admin_server->SetPeers(AdminPeers(allowed_uids));
  }
  parts_->client_server->SetPeers({std::move(allowed_uids), std::move(allowed_gids)});
}

const ServingContext& InferdServer::context() const { return parts_->context; }

const std::vector<ListenAddress>& InferdServer::addresses() const {
  return parts_->client_server->addresses();
}

void InferdServer::WatchHealth() {
  bool first = true;
  ServerState::View last;
  while (true) {
    ServerState::View now = parts_->context.state->Look();
    if (first || now.phase != last.phase || now.detail != last.detail) {
      parts_->client_server->SetServing(now.phase == ServerState::Phase::kServing);
      if (options_.on_phase) {
        options_.on_phase(now);
      }
      last = std::move(now);
      first = false;
    }
    const absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), options_.health_interval)) {
      return;
    }
  }
}

}  // namespace sluice::inferd
