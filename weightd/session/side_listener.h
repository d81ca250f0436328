// SideListener: the server of the side channel. It accepts connections, waits for their HELLO, redeems the
// nonce for its session and hands the socket on; a connection that sends anything else, or nothing, is
// closed.
//
// Thread safety: thread-safe; callbacks run on the listener's own thread, one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/connection_acceptor.h"
#include "common/ring/side_channel.h"
#include "common/ring/unique_fd.h"
#include "weightd/session/session_nonces.h"

namespace sluice::weightd {

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
