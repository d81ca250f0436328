// HttpServer: HTTP/1.1 for many clients on one thread, over TCP, TLS and unix sockets.
//
// One thread reads and writes for all connections; requests are made out by a few workers. Beyond loopback it
// is served only with keys or with TLS.
//
// Thread safety: thread-safe after Start(), but Shutdown() and destruction belong to one thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics/metric_text.h"
#include "common/net/connection_acceptor.h"
#include "common/net/inherited_sockets.h"
#include "common/net/listen_address.h"
#include "inferd/http/http_message.h"

namespace sluice {

struct HttpServerOptions {
  std::vector<ListenAddress> addresses;  // at least one
  PeerPolicy peers;                      // who may connect to the unix sockets
  mode_t socket_mode = 0600;
  InheritedSockets* inherited = nullptr;  // unix addresses found here are taken over; borrowed during Start
  std::string keys_file;                  // empty: everybody may ask
  std::string tls_certificate;            // PEM files of the TCP addresses; both or none
  std::string tls_key;
  std::vector<std::string> cors_origins;  // whose pages may ask; "*": everybody's
  size_t max_body_bytes = 16 << 20;
  uint32_t max_connections = 2048;
  absl::Duration head_patience = absl::Seconds(10);    // from a request's first byte to the end of its head
  absl::Duration body_patience = absl::Seconds(20);    // for a body, and a second more for each 8 KiB of it
  std::function<absl::Duration()> stall_timeout;       // a reader that takes nothing for so long is cut
  std::function<void(const std::string&)> on_refused;  // told of refused connections; may be empty
};

// Whether Start() would take these, without opening anything: INVALID_ARGUMENT for an address that other
// machines can reach without keys or TLS, and for half of TLS.
absl::Status CheckHttpOptions(const HttpServerOptions& options);

class HttpServer {
 public:
  // Binds and serves. `handler` outlives the server. Errors: of CheckHttpOptions, of keys and certificates,
  // ALREADY_EXISTS: an address is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options, HttpHandler* handler);
  // As Shutdown().
  ~HttpServer();

  // Who may connect to the unix sockets from now on.
  void SetPeers(const PeerPolicy& peers);
  // Reads keys and certificates again; connections that are open go on. An error leaves both as they were.
  absl::Status Reload();

  // Takes no new connections and closes those that wait; what is being answered is answered.
  void StartDrain();
  // StartDrain(), then cuts what is left. Watchers of all answers have heard of the end when it returns.
  void Shutdown();

  // The addresses with the ports in use.
  const std::vector<ListenAddress>& addresses() const;
  void WriteMetrics(MetricText* text) const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
