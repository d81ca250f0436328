// MetricsServer: an HttpServer on a loopback port that answers GET /metrics with text generated on demand.
//
// Thread safety: thread-safe; `text` is called on the server's workers, at most kHttpWorkers at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/http/http_server.h"

namespace sluice {

class MetricsServer {
 public:
  // "127.0.0.1:9400" or "[::1]:9400"; port 0 picks any free one. INVALID_ARGUMENT: another form, or an
  // address that other machines can reach (metrics name packs, clients and loads, and this server does not
  // authenticate). ALREADY_EXISTS: the port is in use.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Open(const std::string& address,
                                                             std::function<std::string()> text);

  // The address with the port in use, also if port 0 was requested.
  std::string address() const { return server_->addresses().front().ToString(); }

 private:
  explicit MetricsServer(std::function<std::string()> text);

  const std::unique_ptr<HttpHandler> handler_;  // outlives the server
  std::unique_ptr<HttpServer> server_;
};

// Checks `address` as Open() does, without opening it: INVALID_ARGUMENT as above.
absl::Status CheckMetricsAddress(const std::string& address);

}  // namespace sluice
