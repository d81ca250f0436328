// MetricsServer: a small HTTP server on a loopback port that answers GET /metrics with text generated on
// demand.
//
// Thread safety: thread-safe; `text` is called on the server's own threads, at most kThreads at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

class MetricsServer {
 public:
  // "127.0.0.1:9400" or "[::1]:9400"; port 0 picks any free one. INVALID_ARGUMENT: another form, or an
  // address that other machines can reach (metrics name packs, clients and loads, and this server does not
  // authenticate). ALREADY_EXISTS: the port is in use.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Open(const std::string& address,
                                                             std::function<std::string()> text);
  // Ends running scrapes and the threads.
  ~MetricsServer();

  // The address with the port in use, also if port 0 was requested.
  const std::string& address() const;

 private:
  struct Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// Checks `address` as Open() does, without opening it: INVALID_ARGUMENT as above.
absl::Status CheckMetricsAddress(const std::string& address);

}  // namespace sluice
