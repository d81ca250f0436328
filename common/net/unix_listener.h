// UnixListener: a listening unix socket at a path; removes the file that it created on destruction.
//
// Thread safety: thread-compatible, like std::unique_ptr.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/ring/unique_fd.h"

namespace sluice {

// Longest path that fits in a unix socket address.
inline constexpr size_t kMaxUnixPath = 107;

enum class UnixSocketType { kStream, kSeqPacket };

class UnixListener {
 public:
  // Binds and listens, non-blocking. The file has `mode` from its first moment. A socket file without a live
  // server is replaced. REQUIRES: the caller holds the SocketLock of the server that `path` belongs to.
  // INVALID_ARGUMENT: the path is empty, relative or too long. ALREADY_EXISTS: a server answers there, or the
  // file is not a socket.
  static absl::StatusOr<UnixListener> Bind(const std::string& path, UnixSocketType type, mode_t mode);

  // Adopts a listening socket that a service manager made: its file stays on destruction. INVALID_ARGUMENT:
  // it is not a listening unix socket of this type with a path.
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
