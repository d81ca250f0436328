// InferdServer: the gRPC services on their sockets, and health that follows the engine.
//
// Thread safety: thread-safe after Start(), but Shutdown() and destruction belong to one thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/listen_address.h"
#include "common/base/unix_listener.h"
#include "daemon/grpc_server.h"
#include "inferd/api/control_api.h"
#include "inferd/serving/server_state.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

struct InferdServerOptions {
  std::vector<ListenAddress> addresses;  // client addresses; at least one
  std::vector<ListenAddress> admin;      // addresses of AdminService; unix sockets only
  std::vector<uid_t> allowed_uids;       // besides the own user and root
  std::vector<gid_t> allowed_gids;       // groups whose members may use the client services
  mode_t socket_mode = 0600;             // of the client sockets; the admin socket is 0600
  GrpcTls tls;                           // of the client TCP addresses
  // Inherited sockets; those with matching addresses are adopted. Borrowed during Start; may be null.
  InheritedSockets* inherited = nullptr;
  // Implementation of AdminService.Tune. Borrowed, must outlive the server; null: UNIMPLEMENTED.
  TuningApi* tuning = nullptr;
  // Interval of health updates.
  absl::Duration health_interval = absl::Milliseconds(100);
  // Called on each change of phase, on the server's own thread, first soon after Start; may be empty.
  std::function<void(const ServerState::View&)> on_phase;
};

class InferdServer {
 public:
  // The server sets `context.calls`; everything else in `context` and `state` is borrowed and must outlive
  // the server.
  static absl::StatusOr<std::unique_ptr<InferdServer>> Start(InferdServerOptions options,
                                                             ServingContext context);
  // Same as Shutdown(0).
  ~InferdServer();

  // Reports NOT_SERVING and refuses new requests from now on; running requests continue.
  void StartDrain();
  // Waits up to `timeout` until every call has ended; true if they have.
  bool AwaitCalls(absl::Duration timeout);

  // Calls StartDrain() and AwaitCalls(timeout), then cancels the rest and closes the sockets, the admin
  // socket last. Idempotent.
  void Shutdown(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sets allowed peers and call limits for new connections and calls, while others run.
  void Tune(std::vector<uid_t> allowed_uids, std::vector<gid_t> allowed_gids, const ServingLimits& limits);

  // Context of the services, including live calls and limits; the HTTP server shares it.
  const ServingContext& context() const;

  // Client addresses with their actual ports.
  const std::vector<ListenAddress>& addresses() const;

 private:
  struct Parts;
  InferdServer(InferdServerOptions options, ServingContext context);
  absl::Status Listen();
  void WatchHealth() ABSL_LOCKS_EXCLUDED(mutex_);

  const InferdServerOptions options_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  const std::unique_ptr<Parts> parts_;  // constant once started
};

}  // namespace sluice::inferd
