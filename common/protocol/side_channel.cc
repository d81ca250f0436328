#include "common/protocol/side_channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr size_t kControlBytes = CMSG_SPACE(kMaxSideFds * sizeof(int));

// A full buffer is UNAVAILABLE, to be tried again; a peer that left is FAILED_PRECONDITION, the end of the
// session. Callers distinguish the two.
absl::Status SocketError(int error_number, const char* what) {
  if (error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS ||
      error_number == ETOOMANYREFS) {
    return absl::UnavailableError(absl::StrCat(what, ": would block"));
  }
  if (error_number == EPIPE || error_number == ECONNRESET || error_number == ENOTCONN) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": peer is gone"));
  }
  return ErrnoToStatus(error_number, what);
}

// Takes ownership of every descriptor in the message's control data, even of a malformed message: a
// descriptor without an owner here would leak.
void TakeFds(msghdr& header, std::vector<UniqueFd>* fds) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0)) {
      continue;
    }
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
}

}  // namespace

absl::Status SendSideMessage(int socket, SideMessage message, std::span<const int> fds) {
  if (fds.size() > kMaxSideFds) {
    return absl::InvalidArgumentError(
        absl::StrCat("side message with ", fds.size(), " descriptors, at most ", kMaxSideFds));
  }
  message.fd_count = static_cast<uint16_t>(fds.size());
  iovec data{&message, sizeof(message)};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[kControlBytes] = {};
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    return SocketError(errno, "side channel send");
  }
  return absl::OkStatus();
}

absl::StatusOr<SidePacket> ReceiveSideMessage(int socket) {
  SidePacket packet;
  iovec data{&packet.message, sizeof(packet.message)};
  alignas(cmsghdr) char control[kControlBytes];
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t got;
  do {
    got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    return SocketError(errno, "side channel receive");
  }
  // Runs before any check: the received descriptors belong to this process now, and every return below must
  // close them.
  TakeFds(header, &packet.fds);
  if (got == 0) {
    return absl::FailedPreconditionError("side channel receive: peer is gone");
  }
  const SideMessage& m = packet.message;
  if (static_cast<size_t>(got) != sizeof(SideMessage) || (header.msg_flags & MSG_TRUNC) != 0 ||
      m.magic != kSideMagic) {
    return absl::InvalidArgumentError(absl::StrCat("side channel: ", got, " bytes are no side message"));
  }
  if (m.version != kAbiVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("side channel: ABI version ", m.version, ", this build has ", kAbiVersion));
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0 || packet.fds.size() != m.fd_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("side channel: ", packet.fds.size(), " descriptors came of ", m.fd_count, " announced"));
  }
  return packet;
}

}  // namespace sluice
