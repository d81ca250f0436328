// UnixListener: a listening unix socket at a path; a file that it made is removed when it goes.
//
// Thread safety: thread-compatible, like std::unique_ptr.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/ring/unique_fd.h"

namespace sluice {

// The longest path that a unix socket address holds.
inline constexpr size_t kMaxUnixPath = 107;

enum class UnixSocketType { kStream, kSeqPacket };

class UnixListener {
 public:
  // Binds and listens, non-blocking. The file has `mode` from its first moment. A socket file that nobody
  // answers on is replaced. REQUIRES: the caller holds the SocketLock of the server that `path` belongs to.
  // INVALID_ARGUMENT: the path is empty, relative or too long. ALREADY_EXISTS: somebody answers there, or it
  // is no socket.
  static absl::StatusOr<UnixListener> Bind(const std::string& path, UnixSocketType type, mode_t mode);

  // Takes a listening socket that a service manager made: its file stays when this goes. INVALID_ARGUMENT: it
  // is no listening unix socket of this type with a path.
  static absl::StatusOr<UnixListener> Adopt(UniqueFd fd, UnixSocketType type);

  UnixListener(UnixListener&&) = default;
  UnixListener& operator=(UnixListener&&) = delete;
  ~UnixListener();

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }

 private:
  UnixListener(UniqueFd fd, std::string path, bool owns_file)
      : fd_(std::move(fd)), path_(std::move(path)), owns_file_(owns_file) {}
  UniqueFd fd_;
  std::string path_;
  bool owns_file_;
};

// Connects to `path` without waiting; the socket is non-blocking. NOT_FOUND: no such file; UNAVAILABLE:
// nobody listens there; RESOURCE_EXHAUSTED: its queue is full.
absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path, UnixSocketType type);

}  // namespace sluice
