#include "common/net/inherited_sockets.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice {
namespace {

// The protocol of sd_listen_fds(3): descriptors from 3 on, their number in LISTEN_FDS.
constexpr int kFirst = 3;
constexpr int kMaxSockets = 256;  // a larger number is a mistake: our units have a few sockets each

// Path that a unix socket is bound to; "" for any other descriptor and for a socket without a path.
std::string PathOf(int fd) {
  sockaddr_un address{};
  socklen_t length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 || address.sun_family != AF_UNIX ||
      length <= offsetof(sockaddr_un, sun_path)) {
    return "";
  }
  return std::string(address.sun_path, strnlen(address.sun_path, length - offsetof(sockaddr_un, sun_path)));
}

}  // namespace

absl::StatusOr<InheritedSockets> InheritedSockets::Take() {
  InheritedSockets sockets;
  const char* pid = std::getenv("LISTEN_PID");
  const char* fds = std::getenv("LISTEN_FDS");
  if (pid == nullptr || fds == nullptr) {
    return sockets;
  }
  const std::string meant_for = pid;
  const std::string how_many = fds;
  // The variables are removed even if they are meant for another process: a child must not treat its own
  // descriptors as these sockets.
  unsetenv("LISTEN_PID");
  unsetenv("LISTEN_FDS");
  unsetenv("LISTEN_FDNAMES");
  if (meant_for != absl::StrCat(getpid())) {
    return sockets;
  }
  int count = 0;
  if (!absl::SimpleAtoi(how_many, &count) || count < 0 || count > kMaxSockets) {
    return absl::InvalidArgumentError(
        absl::StrCat("LISTEN_FDS is \"", how_many, "\", which is no number of sockets"));
  }
  for (int fd = kFirst; fd < kFirst + count; ++fd) {
    UniqueFd owned(fd);
    const std::string path = PathOf(fd);
    if (path.empty() || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "inherited descriptor ", fd, " is no unix socket with a path: only those can be taken"));
    }
    sockets.entries_.push_back({std::move(owned), path});
  }
  return sockets;
}

absl::StatusOr<std::optional<UnixListener>> InheritedSockets::Claim(const std::string& path,
                                                                    UnixSocketType type) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->path == path) {
      UniqueFd fd = std::move(entry->fd);
      entries_.erase(entry);
      ASSIGN_OR_RETURN(UnixListener listener, UnixListener::Adopt(std::move(fd), type));
      return std::optional<UnixListener>(std::move(listener));
    }
  }
  return std::optional<UnixListener>();
}

// A socket that systemd made and nobody serves would accept clients and never answer them.
absl::Status InheritedSockets::CheckAllClaimed() const {
  if (entries_.empty()) {
    return absl::OkStatus();
  }
  std::string paths;
  for (const Entry& entry : entries_) {
    absl::StrAppend(&paths, " ", entry.path);
  }
  return absl::InvalidArgumentError(absl::StrCat("sockets were inherited that no option names:", paths,
                                                 "; the socket units and the daemon's options must agree"));
}

}  // namespace sluice
