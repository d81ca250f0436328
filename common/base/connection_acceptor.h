// ConnectionAcceptor: the accept loop of a unix socket. It checks each peer's credentials and passes the
// connection on; gRPC itself would neither check them nor report the peer.
//
// Thread safety: thread-safe; the callback runs on the acceptor's own thread, one call at a time.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/unique_fd.h"

namespace sluice {

// Credentials of the process that connected to a unix socket. pid 0: in another PID namespace.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary groups
};

absl::StatusOr<PeerCredentials> PeerOf(int socket);

// Peers that may connect, within the socket file's mode: our own user, root, these users, and members of
// these groups.
struct PeerPolicy {
  std::vector<uid_t> allowed_uids;
  std::vector<gid_t> allowed_gids;
  bool Allows(const PeerCredentials& peer) const;
};

struct AcceptedPeer {
  UniqueFd socket;  // non-blocking
  PeerCredentials credentials;
};

// Called with the reason when a connection is refused.
using OnRefused = std::function<void(const std::string& why)>;

// Accepts connections of a listener one by one, for loops that poll several descriptors. Thread-compatible.
class PeerAccepter {
 public:
  // `listener` is borrowed: listening, non-blocking.
  PeerAccepter(int listener, PeerPolicy policy, OnRefused on_refused);

  // The next connection that the policy allows; none if the queue is empty or the connection was refused.
  std::optional<AcceptedPeer> Accept();

  // `policy` applies from the next connection on. Thread-safe, also during Accept().
  void SetPolicy(PeerPolicy policy);

  int listener() const { return listener_; }

 private:
  void RefuseOne();
  bool Allows(const PeerCredentials& peer) const;

  const int listener_;
  struct GuardedPolicy {
    explicit GuardedPolicy(PeerPolicy first) : policy(std::move(first)) {}
    Mutex mutex;
    PeerPolicy policy ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<GuardedPolicy> policy_;  // shared, because mutexes cannot move
  const OnRefused on_refused_;
  UniqueFd spare_;  // closed for a moment to refuse a connection when descriptors run out
};

class ConnectionAcceptor {
 public:
  using OnConnection = std::function<void(AcceptedPeer)>;

  // Accepts from `listener` (borrowed, listening, non-blocking; outlives this object) on its own thread.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Start(int listener, PeerPolicy policy,
                                                                   OnConnection on_connection,
                                                                   OnRefused on_refused);
  // Calls Stop().
  ~ConnectionAcceptor();

  // Ends the thread; no callback runs afterwards. Idempotent; not from a callback.
  void Stop();

  // `policy` applies from the next connection on.
  void SetPolicy(PeerPolicy policy) { accepter_.SetPolicy(std::move(policy)); }

 private:
  ConnectionAcceptor(PeerAccepter accepter, OnConnection on_connection, UniqueFd stop_event);
  void Run();

  PeerAccepter accepter_;  // used by the thread alone
  const OnConnection on_connection_;
  const UniqueFd stop_event_;
  std::thread thread_;
};

}  // namespace sluice
