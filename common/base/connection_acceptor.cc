#include "common/base/connection_acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

absl::StatusOr<PeerCredentials> PeerOf(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoToStatus(errno, "credentials of a connection");
  }
  PeerCredentials peer{credentials.pid, credentials.uid, credentials.gid, {}};
  socklen_t bytes = 0;
  // A first call with an empty buffer returns the needed size; without any group it succeeds with nothing.
  if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, nullptr, &bytes) != 0 && errno == ERANGE) {
    peer.groups.resize(bytes / sizeof(gid_t));
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, peer.groups.data(), &bytes) != 0) {
      return ErrnoToStatus(errno, "groups of a connection");
    }
    peer.groups.resize(bytes / sizeof(gid_t));
  }
  return peer;
}

// Our own user and root are always allowed: root could read the memory anyway, and refusing our own user
// would lock out the operator who started the daemon.
bool PeerPolicy::Allows(const PeerCredentials& peer) const {
  const auto is_listed = [this](gid_t gid) {
    return std::find(allowed_gids.begin(), allowed_gids.end(), gid) != allowed_gids.end();
  };
  return peer.uid == geteuid() || peer.uid == 0 ||
         std::find(allowed_uids.begin(), allowed_uids.end(), peer.uid) != allowed_uids.end() ||
         is_listed(peer.gid) || std::any_of(peer.groups.begin(), peer.groups.end(), is_listed);
}

PeerAccepter::PeerAccepter(int listener, PeerPolicy policy, OnRefused on_refused)
    : listener_(listener),
      policy_(std::make_shared<GuardedPolicy>(std::move(policy))),
      on_refused_(std::move(on_refused)),
      // The spare descriptor is closed to accept and close a connection when no descriptor is left
      // (RefuseOne()).
      spare_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

void PeerAccepter::SetPolicy(PeerPolicy policy) {
  MutexLock lock(&policy_->mutex);
  policy_->policy = std::move(policy);
}

bool PeerAccepter::Allows(const PeerCredentials& peer) const {
  MutexLock lock(&policy_->mutex);
  return policy_->policy.Allows(peer);
}

std::optional<AcceptedPeer> PeerAccepter::Accept() {
  UniqueFd socket(accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.valid()) {
    if (errno == EMFILE || errno == ENFILE) {
      RefuseOne();
    }
    return std::nullopt;  // for all other errors the peer has already gone
  }
  const auto peer = PeerOf(socket.get());
  if (!peer.ok()) {
    on_refused_(absl::StrCat("a connection was refused: ", peer.status().message()));
    return std::nullopt;
  }
  if (!Allows(*peer)) {
    on_refused_(absl::StrCat("a connection of uid ", peer->uid, " (process ", peer->pid, ") was refused"));
    return std::nullopt;
  }
  return AcceptedPeer{std::move(socket), *peer};
}

// A connection that cannot be accepted for lack of descriptors stays in the queue, keeps the listener
// readable and its thread spinning. So the spare descriptor is released while that connection is accepted and
// closed.
void PeerAccepter::RefuseOne() {
  on_refused_("a connection was refused: out of file descriptors");
  spare_.reset();
  { const UniqueFd refused(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)); }
  spare_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Start(int listener, PeerPolicy policy,
                                                                              OnConnection on_connection,
                                                                              OnRefused on_refused) {
  UniqueFd stop_event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event.valid()) {
    return ErrnoToStatus(errno, "accept loop");
  }
  std::unique_ptr<ConnectionAcceptor> acceptor(
      new ConnectionAcceptor(PeerAccepter(listener, std::move(policy), std::move(on_refused)),
                             std::move(on_connection), std::move(stop_event)));
  acceptor->thread_ = std::thread([raw = acceptor.get()] { raw->Run(); });
  return acceptor;
}

ConnectionAcceptor::ConnectionAcceptor(PeerAccepter accepter, OnConnection on_connection, UniqueFd stop_event)
    : accepter_(std::move(accepter)),
      on_connection_(std::move(on_connection)),
      stop_event_(std::move(stop_event)) {}

ConnectionAcceptor::~ConnectionAcceptor() { Stop(); }

void ConnectionAcceptor::Stop() {
  if (thread_.joinable()) {
    eventfd_write(stop_event_.get(), 1);
    thread_.join();
  }
}

void ConnectionAcceptor::Run() {
  while (true) {
    pollfd polled[2] = {{stop_event_.get(), POLLIN, 0}, {accepter_.listener(), POLLIN, 0}};
    if (poll(polled, 2, -1) < 0) {
      continue;  // EINTR
    }
    if (polled[0].revents != 0) {
      return;
    }
    if (std::optional<AcceptedPeer> peer = accepter_.Accept()) {
      on_connection_(*std::move(peer));
    }
  }
}

}  // namespace sluice
