// The side channel's server and the nonces that attach a connection to its session.
//
// Thread safety: thread-safe; the listener's callbacks run on its own thread, one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/connection_acceptor.h"
#include "common/base/mutex.h"
#include "common/base/unique_fd.h"
#include "common/protocol/side_channel.h"

namespace sluice::weightd {

// SessionNonces: one-time secrets that attach a side socket to the session that its client has just opened
// over gRPC, which cannot carry file descriptors.
//
// Thread safety: thread-safe.

using SessionNonce = std::array<uint8_t, kNonceBytes>;

struct SessionNoncesOptions {
  // Lifetime of a nonce.
  absl::Duration lifetime = absl::Seconds(10);
  // Maximum number of waiting nonces; each costs 60 bytes, and its session a pin array.
  size_t limit = 256;
  std::function<absl::Time()> now = SteadyNow;
};

class SessionNonces {
 public:
  explicit SessionNonces(SessionNoncesOptions options = {}) : options_(std::move(options)) {}

  // A new random nonce for `session`. RESOURCE_EXHAUSTED (reason TOO_MANY_SESSIONS): `limit` of them wait.
  absl::StatusOr<SessionNonce> Issue(uint64_t session);

  // Returns the nonce's session and consumes the nonce. NOT_FOUND: never issued, used before, or too old.
  absl::StatusOr<uint64_t> Redeem(const SessionNonce& nonce);

  // Removes the nonce of a session that was closed before it was attached.
  void Revoke(uint64_t session);

  size_t waiting() const;
  absl::Duration lifetime() const { return options_.lifetime; }

 private:
  struct Waiting {
    uint64_t session = 0;
    absl::Time expires;
  };
  void DropExpired(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionNoncesOptions options_;
  mutable Mutex mutex_;
  absl::flat_hash_map<SessionNonce, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

// SideListener: the server of the side channel. It accepts connections, waits for their HELLO, redeems the
// nonce for its session and hands the socket on; a connection that sends anything else, or nothing, is
// closed.
//
// Thread safety: thread-safe; callbacks run on the listener's own thread, one at a time.
struct SideListenerOptions {
  PeerPolicy policy;
  // A client sends its HELLO right after connecting; a second is long for that.
  absl::Duration hello_timeout = absl::Milliseconds(900);
  // Maximum number of connections that wait for their HELLO; the oldest is closed first.
  size_t max_pending = 64;
  // Attaches the socket to its session. A failure is answered REJECT with its code.
  std::function<absl::Status(uint64_t session, UniqueFd socket)> attach;
  // Receives the reason why a connection was refused. May be empty.
  OnRefused on_refused;
};

class SideListener {
 public:
  // `listener` (listening, non-blocking, SEQPACKET) and `nonces` are borrowed and outlive this object.
  static absl::StatusOr<std::unique_ptr<SideListener>> Start(int listener, SessionNonces* nonces,
                                                             SideListenerOptions options);
  ~SideListener();

  // Sets the peers that may connect from now on.
  void SetPolicy(PeerPolicy policy) { accepter_.SetPolicy(std::move(policy)); }

  // Closes what is pending and ends the thread. Idempotent; not from a callback.
  void Stop();

 private:
  struct Pending {
    AcceptedPeer peer;
    absl::Time deadline;
  };

  SideListener(int listener, SessionNonces* nonces, SideListenerOptions options, UniqueFd stop_event);
  void Run();
  void TakeNewcomer();
  // False: the connection is finished.
  bool OnReadable(Pending* pending);
  void Join(Pending* pending, const SessionNonce& nonce);
  void DropLate();
  int TimeoutMs() const;
  // Answers REJECT and logs.
  void Refuse(const AcceptedPeer& peer, int socket, const absl::Status& why) const;

  SessionNonces* const nonces_;
  const SideListenerOptions options_;
  const UniqueFd stop_event_;
  PeerAccepter accepter_;       // the thread's
  std::list<Pending> pending_;  // the thread's, oldest first
  std::thread thread_;
};

}  // namespace sluice::weightd
