#include "common/net/socket_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice {
namespace {

// The process id in the lock file, for the message only.
std::string Holder(int fd) {
  char text[32];
  const ssize_t got = pread(fd, text, sizeof(text), 0);
  if (got <= 0) {
    return "another process";
  }
  return absl::StrCat("process ", absl::StripAsciiWhitespace(absl::string_view(text, got)));
}

}  // namespace

absl::StatusOr<SocketLock> SocketLock::Acquire(const std::string& socket_path) {
  const std::string path = absl::StrCat(socket_path, ".lock");
  // The lock file is never removed: between unlink and the next open two processes could each hold a lock on
  // a file of that name. O_NOFOLLOW, because the folder may be writable by others.
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, absl::StrCat("lock file ", path));
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return ErrnoToStatus(errno, absl::StrCat("lock file ", path));
    }
    return absl::AlreadyExistsError(
        absl::StrCat("socket ", socket_path, " is served by ", Holder(fd.get()), " (lock file ", path, ")"));
  }
  // The kernel drops the lock when the process ends for any reason; the number serves people and Holder().
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd.get(), 0) != 0 || pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) {
    return ErrnoToStatus(errno, absl::StrCat("lock file ", path));
  }
  return SocketLock(std::move(fd));
}

}  // namespace sluice
