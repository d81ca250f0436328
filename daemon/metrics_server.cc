#include "daemon/metrics_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/listen_address.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr size_t kThreads = 2;
constexpr time_t kSocketTimeoutSeconds = 5;  // timeout that frees the thread of a stalled scraper
constexpr size_t kMaxRequestBytes = 4096;
constexpr size_t kRequestsPerConnection = 1;  // an idle connection would keep a thread
constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

absl::StatusOr<ListenAddress> Check(const std::string& text) {
  absl::StatusOr<ListenAddress> parsed = ParseListenAddress(text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics: ", parsed.status().message()));
  }
  ListenAddress address = *std::move(parsed);
  if (address.kind != ListenAddress::Kind::kTcp) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics: they are served on a TCP port, as 127.0.0.1:9400, not on ", text));
  }
  if (!address.IsLocal()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics: ", text, " can be reached from other machines: only loopback is served"));
  }
  return address;
}

}  // namespace

struct MetricsServer::Impl {
  httplib::Server server;
  std::string address;
  std::atomic<bool> ended{false};
  std::thread thread;
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::Status CheckMetricsAddress(const std::string& address) { return Check(address).status(); }

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Open(const std::string& text,
                                                                   std::function<std::string()> metrics) {
  ASSIGN_OR_RETURN(ListenAddress address, Check(text));
  auto impl = std::make_unique<Impl>();
  httplib::Server& server = impl->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_read_timeout(kSocketTimeoutSeconds);
  server.set_write_timeout(kSocketTimeoutSeconds);
  server.set_keep_alive_timeout(kSocketTimeoutSeconds);
  server.set_keep_alive_max_count(kRequestsPerConnection);
  server.set_payload_max_length(kMaxRequestBytes);
  // The library sets SO_REUSEPORT by default, by which a second instance would silently share the port and
  // get half of the scrapes.
  server.set_socket_options([](socket_t socket) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  });
  server.Get("/metrics",
             [metrics = std::move(metrics)](const httplib::Request&, httplib::Response& response) {
               response.set_content(metrics(), kContentType);
             });
  // Port 0 asks for any free port; the address then has the real one.
  int port = address.port;
  const bool bound = port != 0 ? server.bind_to_port(address.host, port)
                               : (port = server.bind_to_any_port(address.host)) > 0;
  if (!bound) {
    return absl::AlreadyExistsError(absl::StrCat("cannot listen on ", text, ": is the port in use?"));
  }
  address.port = static_cast<uint16_t>(port);
  impl->address = address.ToString();
  impl->thread = std::thread([raw = impl.get()] {
    raw->server.listen_after_bind();
    raw->ended = true;
  });
  while (!server.is_running() && !impl->ended) {
    std::this_thread::yield();  // stop() has no effect on a server that does not run yet
  }
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

MetricsServer::~MetricsServer() {
  impl_->server.stop();
  impl_->thread.join();
}

const std::string& MetricsServer::address() const { return impl_->address; }

}  // namespace sluice
