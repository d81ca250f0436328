// ModelRouter: serves several models over one HTTP port and one gRPC socket. weightd holds the experts of all
// of them within one budget; an inferd for each model runs from its first request until the model is idle or
// another one needs the memory.
//
// It passes requests of both protocols on by the model that they name (routed_call.h), and answers lists of
// models, health, metrics and the page itself. A daemon that was killed is started again: weightd at once, an
// inferd for its next request.
//
// Thread safety: thread-safe after Start(), but Shutdown() and destruction belong to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/router/model_table.h"
#include "cli/supervisor.h"
#include "common/base/listen_address.h"
#include "daemon/grpc_server.h"
#include "daemon/http/http_server.h"
#include "inferd/serving/serving_context.h"

namespace sluice::cli {

// A model as it is served.
struct RoutedModel {
  inferd::ServedModel served;  // names are unique among the models, as are ids
  bool has_tokenizer = false;
  uint64_t bytes = 0;  // of its weights
  ModelNeed need;
  DaemonCommand inferd;
  std::string http_socket;  // paths of inferd's servers
  std::string grpc_socket;
};

struct RouterOptions {
  HttpServerOptions http;
  GrpcServerOptions grpc;
  DaemonCommand weightd;
  std::vector<RoutedModel> models;  // at least one
  ModelNeed budget;                 // of all loaded models
  absl::Duration idle;              // a model without requests is unloaded after this; infinite: never
  bool restart = true;              // starts a killed weightd again
  size_t max_waiting = 256;         // requests that wait for models
  absl::Duration load_patience = absl::Minutes(10);
  std::function<void(const std::string&)> log;  // called on the router's thread
};

class ModelRouter {
 public:
  // Starts weightd and serves. Errors: RESOURCE_EXHAUSTED naming a model that exceeds a budget alone; of both
  // servers; of starting weightd.
  static absl::StatusOr<std::unique_ptr<ModelRouter>> Start(RouterOptions options);
  // Same as Shutdown().
  ~ModelRouter();

  // OK while it serves; otherwise the reason why weightd ended for good.
  absl::Status status() const;
  // Accepts no more requests, waits for the running ones as long as inferd does, and ends the daemons.
  void Shutdown();

  // Addresses of HTTP and gRPC with their actual ports.
  const std::vector<ListenAddress>& addresses() const;
  const std::vector<ListenAddress>& grpc_addresses() const;

 private:
  struct Impl;
  explicit ModelRouter(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::cli
