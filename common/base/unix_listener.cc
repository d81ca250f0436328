#include "common/base/unix_listener.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr int kBacklog = 128;

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  static_assert(sizeof(address.sun_path) == kMaxUnixPath + 1);
  if (path.empty() || path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("socket path is empty or holds a NUL");
  }
  if (path.size() > kMaxUnixPath) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, " has ", path.size(),
                                                   " bytes, unix sockets take at most ", kMaxUnixPath));
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd NewSocket(UnixSocketType type) {
  const int kind = type == UnixSocketType::kStream ? SOCK_STREAM : SOCK_SEQPACKET;
  return UniqueFd(socket(AF_UNIX, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// Removes the socket that a dead server left at `path`. A connection attempt finds out if the server is dead:
// then nobody listens on its socket, which is "unavailable"; every other result means a live server.
absl::Status ClearPath(const std::string& path, UnixSocketType type) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoToStatus(errno, absl::StrCat("socket ", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(absl::StrCat(path, " exists and is no socket"));
  }
  const auto peer = ConnectUnix(path, type);
  if (peer.ok() || !absl::IsUnavailable(peer.status())) {
    return absl::AlreadyExistsError(absl::StrCat("socket ", path, " is served by another process"));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoToStatus(errno, absl::StrCat("removing stale socket ", path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path, UnixSocketType type) {
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  UniqueFd fd = NewSocket(type);
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "unix socket");
  }
  int result;
  do {
    result = connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (result != 0 && errno == EINTR);
  // A full queue means a live, busy server: ClearPath() must not remove its socket.
  if (result != 0 && errno == EAGAIN) {
    return absl::ResourceExhaustedError(absl::StrCat("connecting to socket ", path, ": its queue is full"));
  }
  if (result != 0) {
    return ErrnoToStatus(errno, absl::StrCat("connecting to socket ", path));
  }
  return fd;
}

absl::StatusOr<UnixListener> UnixListener::Bind(const std::string& path, UnixSocketType type, mode_t mode) {
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  if (path[0] != '/') {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, " is not absolute"));
  }
  RETURN_IF_ERROR(ClearPath(path, type));
  UniqueFd fd = NewSocket(type);
  // fchmod on an unbound socket sets the mode of the file that bind creates: the mode is never wider.
  if (!fd.valid() || fchmod(fd.get(), mode) != 0) {
    return ErrnoToStatus(errno, "unix socket");
  }
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("binding socket ", path));
  }
  UnixListener listener(std::move(fd), path, /*owns_file=*/true);
  // The umask may have removed requested bits: chmod restores them before anyone can connect.
  if (chmod(path.c_str(), mode) != 0 || listen(listener.fd(), kBacklog) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("listening on socket ", path));
  }
  return listener;
}

absl::StatusOr<UnixListener> UnixListener::Adopt(UniqueFd fd, UnixSocketType type) {
  int listening = 0;
  int kind = 0;
  socklen_t length = sizeof(int);
  sockaddr_un address{};
  socklen_t address_length = sizeof(address);
  const bool is_socket = getsockopt(fd.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) == 0 &&
                         getsockopt(fd.get(), SOL_SOCKET, SO_TYPE, &kind, &length) == 0 &&
                         getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &address_length) == 0;
  if (!is_socket || listening == 0 || address.sun_family != AF_UNIX ||
      kind != (type == UnixSocketType::kStream ? SOCK_STREAM : SOCK_SEQPACKET) ||
      address_length <= offsetof(sockaddr_un, sun_path) || address.sun_path[0] == '\0') {
    return absl::InvalidArgumentError(
        absl::StrCat("inherited descriptor ", fd.get(), " is no listening unix ",
                     type == UnixSocketType::kStream ? "stream" : "seqpacket", " socket with a path"));
  }
  const int flags = fcntl(fd.get(), F_GETFL);
  if (flags < 0 || fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("inherited descriptor ", fd.get()));
  }
  // The kernel may leave out the terminating NUL if the path fills the whole field.
  const size_t path_bytes = address_length - offsetof(sockaddr_un, sun_path);
  const std::string path(address.sun_path, strnlen(address.sun_path, path_bytes));
  return UnixListener(std::move(fd), path, /*owns_file=*/false);
}

UnixListener::~UnixListener() {
  if (fd_.valid() && owns_file_) {
    unlink(path_.c_str());
  }
}

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
