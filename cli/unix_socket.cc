#include "cli/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/runtime_dir.h"
#include "common/size.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

constexpr int kBacklog = 64;
// flock has no time limit of its own: how often a held lock is tried again.
constexpr int kLockRetryMs = 10;

sockaddr_un Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), std::min(path.size(), sizeof(address.sun_path) - 1));
  return address;
}

bool Connect(int fd, const std::string& path) {
  const sockaddr_un address = Address(path);
  return connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

// By number: glibc 2.36 declares pidfd_open without C linkage.
UniqueFd OpenPidfd(pid_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration patience,
                                  const std::atomic<bool>* cancel) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, absl::StrCat("cannot open the lock ", path));
  }
  const absl::Time deadline = absl::Now() + patience;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return ErrnoToStatus(errno, absl::StrCat("cannot lock ", path));
    }
    if (cancel != nullptr && cancel->load()) {
      return absl::CancelledError("interrupted");
    }
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(path, " is still locked by another process after ", FormatTimeSpan(patience)));
    }
    poll(nullptr, 0, kLockRetryMs);
  }
  return fd;
}

absl::StatusOr<UniqueFd> ListenSeqpacket(const std::string& path) {
  RETURN_IF_ERROR(CheckSocketPath(path));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "cannot make a socket");
  }
  unlink(path.c_str());
  const sockaddr_un address = Address(path);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("cannot listen on ", path));
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectSeqpacket(const std::string& path) {
  RETURN_IF_ERROR(CheckSocketPath(path));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "cannot make a socket");
  }
  if (!Connect(fd.get(), path)) {
    return absl::UnavailableError(absl::StrCat("nobody listens on ", path, " (errno ", errno, ")"));
  }
  return fd;
}

bool SomebodyListens(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  return fd.valid() && Connect(fd.get(), path);
}

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
