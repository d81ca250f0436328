#include "cli/launch/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/size.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

// flock has no time limit of its own: how often a held lock is tried again.
constexpr int kLockRetryMs = 10;
// A wait that people begin to wonder about.
constexpr absl::Duration kNoticeAfter = absl::Seconds(1);

// Daemons write their process into the file that they lock; others leave it empty.
std::string LockHolder(int fd) {
  char text[32];
  const ssize_t n = pread(fd, text, sizeof(text), 0);
  const absl::string_view pid = absl::StripAsciiWhitespace(absl::string_view(text, n > 0 ? n : 0));
  return pid.empty() ? "another process" : absl::StrCat("process ", pid);
}

}  // namespace

// By number: glibc 2.36 declares pidfd_open without C linkage.
UniqueFd OpenPidfd(pid_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration patience,
                                  const std::atomic<bool>* cancel,
                                  const std::function<void(const std::string&)>& on_wait) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, absl::StrCat("cannot open the lock ", path));
  }
  const absl::Time start = absl::Now();
  const absl::Time deadline = start + patience;
  bool told = !on_wait;
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
    if (!told && absl::Now() - start >= kNoticeAfter) {
      told = true;
      on_wait(LockHolder(fd.get()));
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
