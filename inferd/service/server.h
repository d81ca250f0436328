// InferdServer: the services on their sockets, and health that follows the engine.
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
#include "common/net/inherited_sockets.h"
#include "common/net/listen_address.h"
#include "daemon/grpc/grpc_tls.h"
#include "inferd/api/tuning_api.h"
#include "inferd/serving/server_state.h"
#include "inferd/serving/serving_context.h"

namespace sluice {

struct InferdServerOptions {
  std::vector<ListenAddress> addresses;  // of clients; at least one
  std::vector<ListenAddress> admin;      // of AdminService; unix sockets only
  std::vector<uid_t> allowed_uids;       // besides our own and root
  std::vector<gid_t> allowed_gids;       // whose members may use the clients' services
  mode_t socket_mode = 0600;             // of the clients' sockets; the admin's is 0600
  GrpcTls tls;                           // of the clients' TCP addresses
  // Sockets of these addresses in here are taken over. Borrowed during Start; may be null.
  InheritedSockets* inherited = nullptr;
  // What AdminService.Tune does. Borrowed, and outlives the server; null: UNIMPLEMENTED.
  TuningApi* tuning = nullptr;
  // Health is looked at this often.
  absl::Duration health_interval = absl::Milliseconds(100);
  // Told when the phase changes, from the server's own thread, first soon after Start; may be empty.
  std::function<void(const ServerState::View&)> on_phase;
};

class InferdServer {
 public:
  // `context.pump` is set by the server; the rest of what `context` and `state` lead to is borrowed and
  // outlives the server.
  static absl::StatusOr<std::unique_ptr<InferdServer>> Start(InferdServerOptions options,
                                                             ServingContext context, ServerState* state);
  // As Shutdown(0).
  ~InferdServer();

  // Reports NOT_SERVING and refuses new requests from now on; running ones go on.
  void StartDrain();
  // Waits until every call has ended, up to `patience`; whether they have.
  bool AwaitCalls(absl::Duration patience);

  // StartDrain(), AwaitCalls(patience), then cancels the rest and closes the sockets, the admin's last.
  // Idempotent.
  void Shutdown(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);

  // Who may connect from now on, and the limits that calls go by. Beside running calls.
  void Tune(std::vector<uid_t> allowed_uids, std::vector<gid_t> allowed_gids, const ServingLimits& limits);

  const StreamPump& pump() const;
  // What the services work with; other doors share it, pump and limits and all.
  const ServingContext& context() const;

  // The clients' addresses with the ports in use.
  const std::vector<ListenAddress>& addresses() const;

 private:
  struct Parts;
  InferdServer(InferdServerOptions options, ServingContext context, ServerState* state);
  absl::Status Listen();
  void WatchHealth() ABSL_LOCKS_EXCLUDED(mutex_);

  const InferdServerOptions options_;
  ServerState* const state_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  const std::unique_ptr<Parts> parts_;  // constant once started
};

}  // namespace sluice
