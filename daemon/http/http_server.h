// HttpServer: HTTP/1.1 for many clients over TCP, TLS and unix sockets.
//
// One thread reads and writes for all connections; a few workers handle requests. Addresses beyond loopback
// require keys or TLS.
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
#include "common/base/connection_acceptor.h"
#include "common/base/listen_address.h"
#include "common/base/unix_listener.h"
#include "daemon/http/http_message.h"

namespace sluice {

struct HttpServerOptions {
  std::vector<ListenAddress> addresses;  // at least one
  PeerPolicy peers;                      // allowed peers of the unix sockets
  mode_t socket_mode = 0600;
  InheritedSockets* inherited = nullptr;  // unix addresses found here are adopted; borrowed during Start
  std::string keys_file;                  // empty: no key required
  std::string tls_certificate;            // PEM files for the TCP addresses; both or none
  std::string tls_key;
  std::vector<std::string> cors_origins;  // origins of allowed pages; "*": all
  size_t max_body_bytes = 16 << 20;
  uint32_t max_connections = 2048;
  absl::Duration head_timeout = absl::Seconds(10);     // from a request's first byte to the end of its head
  absl::Duration body_timeout = absl::Seconds(20);     // base timeout of a body, plus 1 s for each 8 KiB
  std::function<absl::Duration()> stall_timeout;       // a reader that accepts nothing for so long is cut
  std::function<void(const std::string&)> on_refused;  // called for refused connections; may be empty
};

// Validates the options without opening anything: INVALID_ARGUMENT for an address reachable from other
// machines without keys or TLS, and for an incomplete TLS pair.
absl::Status CheckHttpOptions(const HttpServerOptions& options);

class HttpServer {
 public:
  // Binds and serves. `handler` must outlive the server. Errors: of CheckHttpOptions, of keys and
  // certificates, ALREADY_EXISTS if an address is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options, HttpHandler* handler);
  // Same as Shutdown().
  ~HttpServer();

  // Sets the allowed peers of the unix sockets for new connections.
  void SetPeers(const PeerPolicy& peers);
  // Reloads keys and certificates; open connections continue. An error leaves both unchanged.
  absl::Status Reload();

  // Accepts no new connections and closes idle ones; current answers are finished.
  void StartDrain();
  // Calls StartDrain(), then cuts the remaining connections. On return, all observers have been notified of
  // the end.
  void Shutdown();

  // Addresses with their actual ports.
  const std::vector<ListenAddress>& addresses() const;
  HttpCounts Counts() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
