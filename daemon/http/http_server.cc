#include "daemon/http/http_server.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/base/unix_listener.h"
#include "daemon/http/http_connection.h"
#include "daemon/http/http_core.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::chrono::milliseconds kTick(250);
// Delay of accepting while the process has no free descriptor.
constexpr std::chrono::milliseconds kAcceptPause(100);

struct TcpEndpoint {
  explicit TcpEndpoint(asio::io_context& io) : acceptor(io), pause(io) {}
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::shared_ptr<HttpOrigin> origin;
};

// Members are destroyed in reverse order: the loop first, the socket's file before the lock that guards it.
struct UnixEndpoint {
  std::optional<SocketLock> lock;  // none: the socket was inherited
  UnixListener listener;
  std::unique_ptr<ConnectionAcceptor> loop;
};

std::string ClassOf(const PeerCredentials& peer) {
  return peer.uid == geteuid() ? "owner" : peer.uid == 0 ? "root" : "listed";
}

// Raises the file limit: a thousand idle clients exceed most shells' soft limit.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace

struct HttpServer::Impl {
  explicit Impl(HttpServerOptions given) : options(std::move(given)), core(std::make_shared<HttpCore>()) {}

  absl::Status LoadSecrets();
  absl::Status ListenTcp(ListenAddress* address);
  absl::StatusOr<UnixEndpoint> BindUnix(const std::string& path);
  absl::Status ListenUnix(const ListenAddress& address);
  void Accept(TcpEndpoint* endpoint);
  void Add(StreamSocket socket, std::shared_ptr<TlsContext> with, std::shared_ptr<const HttpOrigin> origin);
  void Tick();
  void DrainHere();

  HttpServerOptions options;
  const std::shared_ptr<HttpCore> core;
  std::shared_ptr<TlsContext> tls;  // null: plain. Belongs to the io_context's thread once it runs
  std::vector<std::unique_ptr<TcpEndpoint>> tcp_endpoints;
  std::vector<std::unique_ptr<UnixEndpoint>> unix_endpoints;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> guard;
  std::optional<asio::steady_timer> timer;
  std::thread thread;
  std::atomic<bool> stopped{false};
};

absl::Status CheckHttpOptions(const HttpServerOptions& options) {
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("--http-tls-certificate and --http-tls-key go together");
  }
  const bool guarded = !options.keys_file.empty() || !options.tls_certificate.empty();
  for (const ListenAddress& address : options.addresses) {
    if (!address.IsLocal() && !guarded) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--http ", address.ToString(),
          " can be reached from other machines: that needs --http-keys or --http-tls-certificate"));
    }
  }
  return absl::OkStatus();
}

absl::Status HttpServer::Impl::LoadSecrets() {
  std::unique_ptr<HttpKeys> keys;
  std::shared_ptr<TlsContext> fresh;
  if (!options.keys_file.empty()) {
    ASSIGN_OR_RETURN(keys, HttpKeys::Load(options.keys_file, core->keys.get()));
  }
  if (!options.tls_certificate.empty()) {
    ASSIGN_OR_RETURN(fresh, LoadTls(options.tls_certificate, options.tls_key));
  }
  core->keys = std::move(keys);
  tls = std::move(fresh);
  return absl::OkStatus();
}

absl::Status HttpServer::Impl::ListenTcp(ListenAddress* address) {
  auto endpoint = std::make_unique<TcpEndpoint>(core->io);
  boost::system::error_code error;
  const auto host = asio::ip::make_address(address->host, error);
  const tcp::endpoint at(host, address->port);
  tcp::acceptor& acceptor = endpoint->acceptor;
  if (!error) acceptor.open(at.protocol(), error);
  // Not SO_REUSEPORT: a second instance must fail instead of sharing the port.
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && host.is_v6()) acceptor.set_option(asio::ip::v6_only(true), error);
  if (!error) acceptor.bind(at, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return error == boost::system::errc::address_in_use
               ? absl::AlreadyExistsError(
                     absl::StrCat("cannot listen on ", address->ToString(), ": the port is in use"))
               : absl::UnavailableError(
                     absl::StrCat("cannot listen on ", address->ToString(), ": ", error.message()));
  }
  address->port = acceptor.local_endpoint().port();
  endpoint->origin = std::make_shared<HttpOrigin>();
  endpoint->origin->client = "tcp";
  endpoint->origin->policy = {address->IsLocal() && options.keys_file.empty(), options.cors_origins};
  tcp_endpoints.push_back(std::move(endpoint));
  return absl::OkStatus();
}

absl::StatusOr<UnixEndpoint> HttpServer::Impl::BindUnix(const std::string& path) {
  if (options.inherited != nullptr) {
    ASSIGN_OR_RETURN(std::optional<UnixListener> listener,
                     options.inherited->Claim(path, UnixSocketType::kStream));
    if (listener.has_value()) {
      return UnixEndpoint{std::nullopt, *std::move(listener), nullptr};
    }
  }
  ASSIGN_OR_RETURN(SocketLock lock, SocketLock::Acquire(path));
  ASSIGN_OR_RETURN(UnixListener listener,
                   UnixListener::Bind(path, UnixSocketType::kStream, options.socket_mode));
  return UnixEndpoint{std::move(lock), std::move(listener), nullptr};
}

absl::Status HttpServer::Impl::ListenUnix(const ListenAddress& address) {
  ASSIGN_OR_RETURN(UnixEndpoint listening, BindUnix(address.path));
  auto endpoint = std::make_unique<UnixEndpoint>(std::move(listening));
  auto hand_over = [this](AcceptedPeer peer) {
    auto origin = std::make_shared<HttpOrigin>();
    origin->client = ClassOf(peer.credentials);
    origin->needs_key = false;
    origin->policy.cors_origins = options.cors_origins;
    core->Post([this, fd = std::make_shared<UniqueFd>(std::move(peer.socket)), origin] {
      boost::system::error_code error;
      StreamSocket socket(core->io);
      socket.assign(asio::local::stream_protocol(), fd->get(), error);
      if (!error) {
        fd->release();
        Add(std::move(socket), nullptr, origin);
      }
    });
  };
  auto refused = [this](const std::string& why) {
    core->metrics.Refused();
    if (options.on_refused) {
      options.on_refused(why);
    }
  };
  ASSIGN_OR_RETURN(endpoint->loop, ConnectionAcceptor::Start(endpoint->listener.fd(), options.peers,
                                                             std::move(hand_over), std::move(refused)));
  unix_endpoints.push_back(std::move(endpoint));
  return absl::OkStatus();
}

void HttpServer::Impl::Accept(TcpEndpoint* endpoint) {
  endpoint->acceptor.async_accept([this, endpoint](boost::system::error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || core->draining) {
      return;
    }
    if (error) {
      endpoint->pause.expires_after(kAcceptPause);
      endpoint->pause.async_wait([this, endpoint](boost::system::error_code ended) {
        if (!ended) {
          Accept(endpoint);
        }
      });
      return;
    }
    boost::system::error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(asio::socket_base::keep_alive(true), ignored);
    Add(StreamSocket(std::move(socket)), tls, endpoint->origin);
    Accept(endpoint);
  });
}

// Adds a connection. Beyond the maximum it replaces the one that has been idle longest.
void HttpServer::Impl::Add(StreamSocket socket, std::shared_ptr<TlsContext> with,
                           std::shared_ptr<const HttpOrigin> origin) {
  if (core->draining) {
    return;
  }
  if (core->connections.size() >= core->limits.max_connections) {
    std::shared_ptr<HttpConnection> idlest;
    for (const auto& connection : core->connections) {
      const std::optional<absl::Time> since = connection->idle_since();
      if (since.has_value() && (idlest == nullptr || *since < *idlest->idle_since())) {
        idlest = connection;
      }
    }
    core->metrics.Refused();
    if (idlest == nullptr) {
      return;
    }
    idlest->Drop();
  }
  const auto connection = std::make_shared<HttpConnection>(
      core, MakeHttpTransport(std::move(socket), std::move(with)), std::move(origin));
  core->connections.insert(connection);
  core->metrics.ConnectionsAre(core->connections.size());
  if (core->connections.size() == 1) {
    Tick();
  }
  connection->Start();
}

// Runs while connections exist.
void HttpServer::Impl::Tick() {
  timer->expires_after(kTick);
  timer->async_wait([this](boost::system::error_code error) {
    if (error) {
      return;
    }
    const absl::Time now = SteadyNow();
    const std::vector<std::shared_ptr<HttpConnection>> all(core->connections.begin(),
                                                           core->connections.end());
    for (const auto& connection : all) {
      connection->Tick(now);
    }
    if (!core->connections.empty()) {
      Tick();
    }
  });
}

void HttpServer::Impl::DrainHere() {
  core->draining = true;
  boost::system::error_code ignored;
  for (const auto& endpoint : tcp_endpoints) {
    endpoint->acceptor.close(ignored);
    endpoint->pause.cancel();
  }
  const std::vector<std::shared_ptr<HttpConnection>> all(core->connections.begin(), core->connections.end());
  for (const auto& connection : all) {
    connection->Drain();
  }
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                              HttpHandler* handler) {
  RETURN_IF_ERROR(CheckHttpOptions(options));
  std::unique_ptr<HttpServer> server(new HttpServer(std::make_unique<Impl>(std::move(options))));
  Impl& impl = *server->impl_;
  impl.core->handler = handler;
  impl.core->limits.max_body_bytes = impl.options.max_body_bytes;
  impl.core->limits.max_connections = impl.options.max_connections;
  impl.core->limits.head_timeout = impl.options.head_timeout;
  impl.core->limits.body_timeout = impl.options.body_timeout;
  impl.core->stall_timeout =
      impl.options.stall_timeout ? impl.options.stall_timeout : [] { return absl::Seconds(30); };
  RaiseFileLimit();
  RETURN_IF_ERROR(impl.LoadSecrets());
  impl.timer.emplace(impl.core->io);
  impl.guard.emplace(impl.core->io.get_executor());
  for (ListenAddress& address : impl.options.addresses) {
    RETURN_IF_ERROR(address.kind == ListenAddress::Kind::kTcp ? impl.ListenTcp(&address)
                                                              : impl.ListenUnix(address));
  }
  for (const auto& endpoint : impl.tcp_endpoints) {
    impl.Accept(endpoint.get());
  }
  impl.thread = std::thread([&impl] { impl.core->io.run(); });
  return server;
}

HttpServer::~HttpServer() { Shutdown(); }

void HttpServer::SetPeers(const PeerPolicy& peers) {
  for (const auto& endpoint : impl_->unix_endpoints) {
    endpoint->loop->SetPolicy(peers);
  }
}

absl::Status HttpServer::Reload() {
  // Read on this thread, installed on the server's thread, which alone uses them.
  std::shared_ptr<TlsContext> fresh;
  if (!impl_->options.tls_certificate.empty()) {
    ASSIGN_OR_RETURN(fresh, LoadTls(impl_->options.tls_certificate, impl_->options.tls_key));
  }
  if (!impl_->options.keys_file.empty()) {
    RETURN_IF_ERROR(HttpKeys::Load(impl_->options.keys_file, nullptr).status());
  }
  impl_->core->Post([impl = impl_.get(), fresh] {
    impl->tls = fresh;
    if (impl->core->keys != nullptr) {
      if (auto keys = HttpKeys::Load(impl->options.keys_file, impl->core->keys.get()); keys.ok()) {
        impl->core->keys = *std::move(keys);
      }
    }
  });
  return absl::OkStatus();
}

void HttpServer::StartDrain() {
  for (const auto& endpoint : impl_->unix_endpoints) {
    if (endpoint->loop != nullptr) {
      endpoint->loop->Stop();
    }
  }
  impl_->core->Post([impl = impl_.get()] { impl->DrainHere(); });
}

void HttpServer::Shutdown() {
  if (impl_->stopped.exchange(true)) {
    return;
  }
  StartDrain();
  impl_->core->workers.join();  // requests still in the workers get their exchange's end below
  HttpCore& core = *impl_->core;
  core.Post([impl = impl_.get()] {
    const std::vector<std::shared_ptr<HttpConnection>> all(impl->core->connections.begin(),
                                                           impl->core->connections.end());
    for (const auto& connection : all) {
      connection->Drop();
    }
    impl->timer->cancel();
    impl->guard.reset();
  });
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  }
  {
    const MutexLock lock(&core.mutex);
    core.ended = true;
  }
  core.io.restart();
  core.io.poll();  // runs the last posted work: answers of connections that are gone
}

const std::vector<ListenAddress>& HttpServer::addresses() const { return impl_->options.addresses; }

HttpCounts HttpServer::Counts() const { return impl_->core->metrics.Counts(); }

}  // namespace sluice
