// MetricsDoor: a small HTTP server on a loopback port that answers GET /metrics with text made on demand.
//
// Thread safety: thread-safe; `text` is called on the door's own threads, at most kThreads at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

class MetricsDoor {
 public:
  // "127.0.0.1:9400" or "[::1]:9400"; port 0 takes any free one. INVALID_ARGUMENT: another form, or an
  // address that other machines can reach (metrics name packs, clients and loads, and the door asks nobody
  // who they are). ALREADY_EXISTS: the port is taken.
  static absl::StatusOr<std::unique_ptr<MetricsDoor>> Open(const std::string& address,
                                                           std::function<std::string()> text);
  // Ends scrapes that run, and the threads.
  ~MetricsDoor();

  // The address with the port that is in use, also where 0 was asked for.
  const std::string& address() const;

 private:
  struct Impl;
  explicit MetricsDoor(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// Whether Open() would take `address`, without opening it: INVALID_ARGUMENT as above.
absl::Status CheckMetricsAddress(const std::string& address);

}  // namespace sluice
