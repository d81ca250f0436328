#include "cli/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/size.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

// flock has no time limit of its own: how often a held lock is tried again.
constexpr int kLockRetryMs = 10;

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
