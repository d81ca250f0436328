// GrpcServer: a gRPC server on sockets whose connections we accept ourselves, with health and reflection.
//
// On unix sockets every peer's credentials are checked before HTTP/2 begins and the peer's class is known to
// the services (ClientClassOf). TCP is served beyond loopback only by TLS with client certificates. Both
// daemons use it.
//
// Thread safety: thread-safe after Start(), but Shutdown() and destruction belong to one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/connection_acceptor.h"
#include "common/net/inherited_sockets.h"
#include "common/net/listen_address.h"
#include "daemon/grpc/grpc_tls.h"
#include "grpcpp/server_context.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace sluice {

struct GrpcServerOptions {
  std::vector<ListenAddress> addresses;  // at least one
  PeerPolicy peers;                      // who may connect to the unix sockets
  mode_t socket_mode = 0600;
  GrpcTls tls;                               // of the TCP addresses
  int max_receive_bytes = 16 << 20;          // of one request
  size_t memory_quota_bytes = 256ull << 20;  // gRPC's buffers in all; beyond it new calls are refused
  std::function<void(const std::string&)> on_refused;  // told of refused connections; may be empty
  // Unix addresses found here are not bound but taken over, without a lock file: whoever opened them sees to
  // it that one process serves them. Borrowed during Start; may be null.
  InheritedSockets* inherited = nullptr;
};

// A service and its full name ("sluice.inference.v1.InferenceService"), by which its health is asked for.
struct NamedService {
  grpc::Service* service = nullptr;  // borrowed, outlives the server
  std::string name;
};

class GrpcServer {
 public:
  // Binds and serves. Health reports NOT_SERVING until SetServing(true). INVALID_ARGUMENT: an address beyond
  // loopback without TLS, or files of TLS that are wrong. ALREADY_EXISTS: another process serves an address.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(GrpcServerOptions options,
                                                           const std::vector<NamedService>& services);
  // As Shutdown(0).
  ~GrpcServer();

  // What the standard health service answers, for "" and for each service; watchers hear of changes only.
  // Without effect after Shutdown. Any thread.
  void SetServing(bool serving);

  // Who may connect to the unix sockets from now on.
  void SetPeers(const PeerPolicy& peers);

  // Reports NOT_SERVING, accepts no more connections, lets running calls end for up to `patience`, cancels
  // the rest. Idempotent.
  void Shutdown(absl::Duration patience);

  // The addresses with the ports in use.
  const std::vector<ListenAddress>& addresses() const;

  // Connections of clients that are open now, by looking at this process's descriptors.
  size_t CountConnections() const;

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// For programs, before their first server and after they have blocked their signals (gRPC's threads begin
// here, and take over the mask): they end without gRPC's own end. That waits for a thread which
// flushes what a client was slow to read, and which, once it was needed, polls for up to 10 s on.
void LeaveGrpcToTheProcess();

// Who calls: "owner" (the server's own user), "root", "listed" (PeerPolicy::allowed_uids), "tcp", or by TLS
// "cert:" and the certificate's common name.
std::string ClientClassOf(const grpc::ServerContextBase& context);

}  // namespace sluice
