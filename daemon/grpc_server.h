// The daemons' gRPC server, with TLS, health and reflection, on sockets whose connections it accepts
// itself.
//
// Thread safety: stated at each part.
#pragma once

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
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_context.h"

namespace sluice {

// TLS of a gRPC server, with client certificates: a client without one that the authority signed is refused.
//
// The files are read again when they change, so writing the file renews a certificate; open connections keep
// the old one.
//
// Thread safety: pure functions and plain values, safe to use from any thread.

// PEM files; all or none.
struct GrpcTls {
  std::string certificate;  // the server's, with its chain
  std::string key;
  std::string client_ca;  // signs clients' certificates

  bool enabled() const { return !certificate.empty(); }
};

// INVALID_ARGUMENT if only some of the files are named. Opens nothing.
absl::Status CheckGrpcTls(const GrpcTls& tls);

// INVALID_ARGUMENT naming an unreadable file, or a key that does not match its certificate.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> LoadGrpcTls(const GrpcTls& tls);

}  // namespace sluice

// GrpcServer: a gRPC server on sockets with our own accept loop, with health and reflection.
//
// On unix sockets every peer's credentials are checked before HTTP/2 begins, and the services can read the
// peer's class (ClientClassOf). TCP beyond loopback is served only by TLS with client certificates. Both
// daemons use it.
//
// Thread safety: thread-safe after Start(), but Shutdown() and destruction belong to one thread.

namespace grpc {
class Service;
}  // namespace grpc

namespace sluice {

struct GrpcServerOptions {
  std::vector<ListenAddress> addresses;  // at least one
  PeerPolicy peers;                      // peers that may connect to the unix sockets
  mode_t socket_mode = 0600;
  GrpcTls tls;                               // of the TCP addresses
  int max_receive_bytes = 16 << 20;          // of one request
  size_t memory_quota_bytes = 256ull << 20;  // gRPC's buffers in total; beyond it new calls are refused
  std::function<void(const std::string&)> on_refused;  // called for each refused connection; may be empty
  // Unix addresses found here are adopted, not bound, without a lock file: the opener of these sockets
  // ensures that only one process serves them. Borrowed during Start; may be null.
  InheritedSockets* inherited = nullptr;
};

// A service and the full name under which its health is queried ("sluice.inference.v1.InferenceService").
struct NamedService {
  grpc::Service* service = nullptr;  // borrowed, outlives the server
  std::string name;
};

class GrpcServer {
 public:
  // Binds and serves. Health reports NOT_SERVING until SetServing(true). INVALID_ARGUMENT: an address beyond
  // loopback without TLS, or invalid TLS files. ALREADY_EXISTS: another process serves an address.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(GrpcServerOptions options,
                                                           const std::vector<NamedService>& services);
  // Equivalent to Shutdown(0).
  ~GrpcServer();

  // Sets the status that the standard health service reports, for "" and for each service; watchers are
  // notified of changes only. No effect after Shutdown. Any thread.
  void SetServing(bool serving);

  // Replaces the policy for new connections to the unix sockets.
  void SetPeers(const PeerPolicy& peers);

  // Reports NOT_SERVING, accepts no more connections, lets running calls end for up to `timeout`, cancels
  // the rest. Idempotent.
  void Shutdown(absl::Duration timeout);

  // The addresses with the ports in use.
  const std::vector<ListenAddress>& addresses() const;

  // Number of open client connections, counted by this process's descriptors.
  size_t CountConnections() const;

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// Skips gRPC's own shutdown at process exit. Programs call it before their first server and after they have
// blocked their signals (gRPC's threads start here and inherit the mask). That shutdown waits for a thread
// that flushes data to slow readers and that, once it was needed, polls for up to 10 s more.
void SkipGrpcShutdown();

// Class of a caller: "owner" (the server's own user), "root", "listed" (PeerPolicy::allowed_uids), "tcp", or
// with TLS "cert:" and the certificate's common name.
std::string ClientClassOf(const grpc::ServerContextBase& context);

}  // namespace sluice
