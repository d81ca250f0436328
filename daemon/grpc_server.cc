#include "daemon/grpc_server.h"

#include <dirent.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unix_listener.h"
#include "grpc/grpc.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace sluice {
namespace {

// Time after which a renewed file is in use at the latest.
constexpr unsigned kRefreshSeconds = 5;

absl::Status Failed(const std::string& what) {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", reason == nullptr ? "it is broken" : reason));
}

// gRPC would serve with broken files and refuse every handshake, so the files are checked first.
absl::Status TryFiles(const GrpcTls& tls) {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) {
    return absl::InternalError("OpenSSL has no TLS");
  }
  if (SSL_CTX_use_certificate_chain_file(context.get(), tls.certificate.c_str()) != 1) {
    return Failed(absl::StrCat("--tls-certificate ", tls.certificate));
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), tls.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return Failed(absl::StrCat("--tls-key ", tls.key));
  }
  if (SSL_CTX_load_verify_locations(context.get(), tls.client_ca.c_str(), nullptr) != 1) {
    return Failed(absl::StrCat("--tls-client-ca ", tls.client_ca));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGrpcTls(const GrpcTls& tls) {
  if (tls.certificate.empty() == tls.key.empty() && tls.key.empty() == tls.client_ca.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--tls-certificate, --tls-key and --tls-client-ca go together: gRPC's clients beyond this machine are "
      "known by their certificates");
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> LoadGrpcTls(const GrpcTls& tls) {
  RETURN_IF_ERROR(CheckGrpcTls(tls));
  RETURN_IF_ERROR(TryFiles(tls));
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(tls.key, tls.certificate,
                                                                           tls.client_ca, kRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

namespace {

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

constexpr char kClassProperty[] = "sluice_client_class";
constexpr const char* kClasses[] = {"owner", "root", "listed"};
constexpr size_t kClassCount = 3;

constexpr int kMaxStreamsPerConnection = 256;
// The shortest allowed pause between a client's pings. Clients ping during a long prompt without output, and
// gRPC's default of five minutes would treat that as an attack and close the connection.
constexpr int kMinClientPingMs = 10'000;
constexpr int kTcpKeepaliveMs = 60'000;
constexpr int kTcpKeepaliveTimeoutMs = 20'000;

size_t ClassOf(const PeerCredentials& peer) { return peer.uid == geteuid() ? 0 : peer.uid == 0 ? 1 : 2; }

// Marks a connection with its class, once: the context belongs to the connection, which has many calls.
class ClassProcessor : public grpc::AuthMetadataProcessor {
 public:
  explicit ClassProcessor(std::string name) : name_(std::move(name)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata&, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const absl::MutexLock lock(&mutex_);
    if (context->FindPropertyValues(kClassProperty).empty()) {
      context->AddProperty(kClassProperty, name_);
    }
    return grpc::Status::OK;
  }

 private:
  const std::string name_;
  absl::Mutex mutex_;  // guards the contexts' property lists
};

// One unix socket: its lock, its listener, a gRPC acceptor for each class of peers, and the accept loop.
// Members are destroyed in reverse, so the socket file is removed before the lock that guards it.
struct UnixEndpoint {
  std::optional<SocketLock> lock;  // none for an inherited socket
  UnixListener listener;
  std::unique_ptr<Acceptor> by_class[kClassCount];
  std::unique_ptr<ConnectionAcceptor> loop;
};

void AddAcceptors(UnixEndpoint* endpoint, grpc::ServerBuilder* builder) {
  for (size_t i = 0; i < kClassCount; ++i) {
    // gRPC does not report the peer to a call. So each class has an acceptor of its own, whose processor
    // writes the class into the connection's context.
    auto credentials = grpc::experimental::LocalServerCredentials(UDS);
    credentials->SetAuthMetadataProcessor(std::make_shared<ClassProcessor>(kClasses[i]));
    endpoint->by_class[i] = builder->experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  }
}

absl::Status StartLoop(UnixEndpoint* endpoint, const GrpcServerOptions& options) {
  auto hand_over = [endpoint](AcceptedPeer peer) {
    Acceptor::NewConnectionParameters parameters;
    parameters.listener_fd = endpoint->listener.fd();
    parameters.fd = peer.socket.release();  // owned by gRPC from here on
    endpoint->by_class[ClassOf(peer.credentials)]->HandleNewConnection(&parameters);
  };
  auto refused = [report = options.on_refused](const std::string& why) {
    if (report) {
      report(why);
    }
  };
  ASSIGN_OR_RETURN(endpoint->loop, ConnectionAcceptor::Start(endpoint->listener.fd(), options.peers,
                                                             std::move(hand_over), std::move(refused)));
  return absl::OkStatus();
}

void Configure(const GrpcServerOptions& options, bool has_tcp, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(options.max_receive_bytes);
  grpc::ResourceQuota quota;
  quota.Resize(options.memory_quota_bytes);
  builder->SetResourceQuota(quota);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second instance fails instead of sharing
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinClientPingMs);
  if (has_tcp) {
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kTcpKeepaliveMs);
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kTcpKeepaliveTimeoutMs);
  }
}

// True if `fd` is an accepted connection of one of `addresses`: such a socket has the listener's address.
bool IsConnectionOf(int fd, const std::vector<ListenAddress>& addresses) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  int listening = 0;
  socklen_t flag_length = sizeof(listening);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0 ||
      getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &flag_length) != 0 || listening != 0) {
    return false;
  }
  for (const ListenAddress& address : addresses) {
    if (address.kind == ListenAddress::Kind::kUnix) {
      const auto* name = reinterpret_cast<const sockaddr_un*>(&storage);
      if (storage.ss_family == AF_UNIX && address.path == name->sun_path) {
        return true;
      }
    } else if (storage.ss_family == AF_INET || storage.ss_family == AF_INET6) {
      const uint16_t port = storage.ss_family == AF_INET
                                ? reinterpret_cast<const sockaddr_in*>(&storage)->sin_port
                                : reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port;
      if (ntohs(port) == address.port) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

struct GrpcServer::Impl {
  GrpcServerOptions options;
  std::vector<std::string> service_names;
  std::vector<std::unique_ptr<UnixEndpoint>> endpoints;
  std::vector<std::unique_ptr<int>> tcp_ports;  // gRPC stores the port in use; -1 or 0: it failed
  std::unique_ptr<grpc::Server> server;
  std::atomic<bool> stopped{false};
  absl::Mutex serving_mutex;
  std::optional<bool> serving ABSL_GUARDED_BY(serving_mutex);  // the health service's last reported state

  absl::StatusOr<UnixEndpoint> Listen(const std::string& path) const;
  absl::Status Bind(grpc::ServerBuilder* builder);
  absl::Status Launch(grpc::ServerBuilder* builder);
};

absl::StatusOr<UnixEndpoint> GrpcServer::Impl::Listen(const std::string& path) const {
  if (options.inherited != nullptr) {
    ASSIGN_OR_RETURN(std::optional<UnixListener> listener,
                     options.inherited->Claim(path, UnixSocketType::kStream));
    if (listener.has_value()) {
      return UnixEndpoint{std::nullopt, *std::move(listener), {}, nullptr};
    }
  }
  ASSIGN_OR_RETURN(SocketLock lock, SocketLock::Acquire(path));
  ASSIGN_OR_RETURN(UnixListener listener,
                   UnixListener::Bind(path, UnixSocketType::kStream, options.socket_mode));
  return UnixEndpoint{std::move(lock), std::move(listener), {}, nullptr};
}

absl::Status GrpcServer::Impl::Bind(grpc::ServerBuilder* builder) {
  bool has_tcp = false;
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (options.tls.enabled()) {
    ASSIGN_OR_RETURN(credentials, LoadGrpcTls(options.tls));
  }
  for (const ListenAddress& address : options.addresses) {
    if (!address.IsLocal() && !options.tls.enabled()) {
      return absl::InvalidArgumentError(
          absl::StrCat("address ", address.ToString(),
                       " can be reached from other machines: that needs --tls-certificate, --tls-key and "
                       "--tls-client-ca, or use a unix socket or a loopback address"));
    }
    if (address.kind == ListenAddress::Kind::kTcp) {
      has_tcp = true;
      tcp_ports.push_back(std::make_unique<int>(-1));
      builder->AddListeningPort(address.ToString(), credentials, tcp_ports.back().get());
      continue;
    }
    ASSIGN_OR_RETURN(UnixEndpoint endpoint, Listen(address.path));
    endpoints.push_back(std::make_unique<UnixEndpoint>(std::move(endpoint)));
    AddAcceptors(endpoints.back().get(), builder);
  }
  Configure(options, has_tcp, builder);
  return absl::OkStatus();
}

absl::Status GrpcServer::Impl::Launch(grpc::ServerBuilder* builder) {
  // BuildAndStart() returns null for any failure; a port that could not be bound is recognised by the ports,
  // which it still fills in.
  server = builder->BuildAndStart();
  size_t tcp = 0;
  for (ListenAddress& address : options.addresses) {
    if (address.kind == ListenAddress::Kind::kTcp) {
      const int port = *tcp_ports[tcp++];
      if (port <= 0) {
        return absl::AlreadyExistsError(
            absl::StrCat("cannot listen on ", address.ToString(), ": is the port in use?"));
      }
      address.port = static_cast<uint16_t>(port);
    }
  }
  return server != nullptr ? absl::OkStatus() : absl::InternalError("gRPC could not start its server");
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(GrpcServerOptions options,
                                                              const std::vector<NamedService>& services) {
  // Health service and reflection are switches of the whole process in gRPC 1.51, not of a server.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<GrpcServer> result(new GrpcServer(std::make_unique<Impl>()));
  Impl& impl = *result->impl_;
  impl.options = std::move(options);
  grpc::ServerBuilder builder;
  for (const NamedService& service : services) {
    builder.RegisterService(service.service);
    impl.service_names.push_back(service.name);
  }
  RETURN_IF_ERROR(impl.Bind(&builder));
  RETURN_IF_ERROR(impl.Launch(&builder));
  // Connections are accepted only after the health service answers: no client sees "serving" before the
  // daemon reports it.
  result->SetServing(false);
  for (const std::unique_ptr<UnixEndpoint>& endpoint : impl.endpoints) {
    RETURN_IF_ERROR(StartLoop(endpoint.get(), impl.options));
  }
  return result;
}

GrpcServer::~GrpcServer() { Shutdown(absl::ZeroDuration()); }

void GrpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = impl_->server->GetHealthCheckService();
  if (health == nullptr || impl_->stopped.load()) {
    return;
  }
  // gRPC notifies every watcher at each call here, changed or not, so only changes are passed on.
  const absl::MutexLock lock(&impl_->serving_mutex);
  if (impl_->serving == serving) {
    return;
  }
  impl_->serving = serving;
  health->SetServingStatus("", serving);
  for (const std::string& name : impl_->service_names) {
    health->SetServingStatus(name, serving);
  }
}

void GrpcServer::SetPeers(const PeerPolicy& peers) {
  for (const std::unique_ptr<UnixEndpoint>& endpoint : impl_->endpoints) {
    if (endpoint->loop != nullptr) {
      endpoint->loop->SetPolicy(peers);
    }
  }
}

void GrpcServer::Shutdown(absl::Duration timeout) {
  if (impl_->server == nullptr || impl_->stopped.load()) {
    return;
  }
  SetServing(false);
  impl_->stopped.store(true);
  for (const std::unique_ptr<UnixEndpoint>& endpoint : impl_->endpoints) {
    if (endpoint->loop != nullptr) {
      endpoint->loop->Stop();  // before the server: gRPC would not close a socket that it gets later
    }
  }
  impl_->server->Shutdown(absl::ToChronoTime(ToWallClock(SteadyNow() + timeout)));
  impl_->server->Wait();
}

const std::vector<ListenAddress>& GrpcServer::addresses() const { return impl_->options.addresses; }

// Counts the process's own descriptors, because gRPC does not report its number of connections.
size_t GrpcServer::CountConnections() const {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) {
    return 0;
  }
  size_t count = 0;
  while (const dirent* entry = readdir(directory)) {
    const int fd = std::atoi(entry->d_name);
    count += entry->d_name[0] != '.' && fd != dirfd(directory) && IsConnectionOf(fd, addresses()) ? 1 : 0;
  }
  closedir(directory);
  return count;
}

// gRPC shuts down when its last user leaves, and a new user may arrive during that shutdown. This user never
// leaves.
void SkipGrpcShutdown() { grpc_init(); }

std::string ClientClassOf(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth != nullptr) {
    const std::vector<grpc::string_ref> values = auth->FindPropertyValues(kClassProperty);
    if (!values.empty()) {
      return std::string(values[0].data(), values[0].size());
    }
    const std::vector<grpc::string_ref> names = auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
    if (!names.empty()) {
      return absl::StrCat("cert:", absl::string_view(names[0].data(), names[0].size()));
    }
  }
  return "tcp";
}

}  // namespace sluice
