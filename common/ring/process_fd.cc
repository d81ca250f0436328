#include "common/ring/process_fd.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5 and later
#endif

namespace sluice {

absl::StatusOr<UniqueFd> ProcessFdOfSelf() {
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "a descriptor of this process (pidfd_open)");
  }
  return fd;
}

UniqueFd ProcessFdOfClient(int socket) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    return UniqueFd(fd);
  }
  // Before Linux 6.5 the process is found by its number. It may have ended and its number been reused by now,
  // but a client that connected a moment ago is nearly always still alive.
  ucred peer{};
  length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.pid > 0) {
    return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  }
  return UniqueFd();
}

pid_t ProcessOf(int process_fd) {
  std::ifstream in(absl::StrCat("/proc/self/fdinfo/", process_fd));
  std::string key;
  while (in >> key) {
    pid_t pid = 0;
    // -1 stands for a process that has ended and been reaped, 0 for one of another pid namespace.
    if (key == "Pid:" && in >> pid) {
      return std::max<pid_t>(pid, 0);
    }
  }
  return 0;
}

}  // namespace sluice
