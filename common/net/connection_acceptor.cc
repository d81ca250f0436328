#include "common/net/connection_acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice {

absl::StatusOr<PeerCredentials> PeerOf(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoToStatus(errno, "credentials of a connection");
  }
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

bool PeerPolicy::Allows(const PeerCredentials& peer) const {
  return peer.uid == geteuid() || peer.uid == 0 ||
         std::find(allowed_uids.begin(), allowed_uids.end(), peer.uid) != allowed_uids.end();
}

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Start(int listener, PeerPolicy policy,
                                                                              OnConnection on_connection,
                                                                              OnRefused on_refused) {
  UniqueFd stop_event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd spare(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!stop_event.valid() || !spare.valid()) {
    return ErrnoToStatus(errno, "accept loop");
  }
  std::unique_ptr<ConnectionAcceptor> acceptor(
      new ConnectionAcceptor(listener, std::move(policy), std::move(on_connection), std::move(on_refused),
                             std::move(stop_event), std::move(spare)));
  acceptor->thread_ = std::thread([raw = acceptor.get()] { raw->Run(); });
  return acceptor;
}

ConnectionAcceptor::ConnectionAcceptor(int listener, PeerPolicy policy, OnConnection on_connection,
                                       OnRefused on_refused, UniqueFd stop_event, UniqueFd spare)
    : listener_(listener),
      policy_(std::move(policy)),
      on_connection_(std::move(on_connection)),
      on_refused_(std::move(on_refused)),
      stop_event_(std::move(stop_event)),
      spare_(std::move(spare)) {}

ConnectionAcceptor::~ConnectionAcceptor() { Stop(); }

void ConnectionAcceptor::Stop() {
  if (thread_.joinable()) {
    eventfd_write(stop_event_.get(), 1);
    thread_.join();
  }
}

void ConnectionAcceptor::Run() {
  while (true) {
    pollfd polled[2] = {{stop_event_.get(), POLLIN, 0}, {listener_, POLLIN, 0}};
    if (poll(polled, 2, -1) < 0) {
      continue;  // EINTR
    }
    if (polled[0].revents != 0) {
      return;
    }
    AcceptOne();
  }
}

void ConnectionAcceptor::AcceptOne() {
  UniqueFd fd(accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) {
    if (errno == EMFILE || errno == ENFILE) {
      // Left in the queue the connection would keep the listener readable and this thread spinning.
      on_refused_("a connection was refused: out of file descriptors");
      spare_.reset();
      fd.reset(accept(listener_, nullptr, nullptr));
      fd.reset();
      spare_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
    return;  // others: the peer has gone already
  }
  const auto peer = PeerOf(fd.get());
  if (!peer.ok()) {
    on_refused_(absl::StrCat("a connection was refused: ", peer.status().message()));
    return;
  }
  if (!policy_.Allows(*peer)) {
    on_refused_(absl::StrCat("a connection of uid ", peer->uid, " (process ", peer->pid, ") was refused"));
    return;
  }
  on_connection_(std::move(fd), *peer);
}

}  // namespace sluice
