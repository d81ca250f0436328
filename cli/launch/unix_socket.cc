#include "cli/launch/unix_socket.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace sluice::cli {

// By number: glibc 2.36 declares pidfd_open without C linkage.
UniqueFd OpenPidfd(pid_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

bool SendPacket(int fd, std::string_view text) {
  return send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(text.size());
}

Receive ReceivePacket(int fd, std::string* text) {
  char buffer[4096];
  const ssize_t n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (n < 0) {
    return errno == EAGAIN || errno == EINTR ? Receive::kNothing : Receive::kClosed;
  }
  text->assign(buffer, static_cast<size_t>(n));
  return n == 0 ? Receive::kClosed : Receive::kPacket;
}

}  // namespace sluice::cli
