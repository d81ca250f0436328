// Listening unix sockets: binding with recovery of stale files, the lock file of a path, and sockets
// inherited from a service manager.
//
// Thread safety: thread-compatible.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace sluice {

// UnixListener: a listening unix socket at a path; removes the file that it created on destruction.
//
// Thread safety: thread-compatible, like std::unique_ptr.

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

// SocketLock: the right to serve a unix socket's path, held by a lock file beside it.
//
// The lock makes it safe to remove the socket file of a killed process: its holder knows that no other server
// is starting on the same path.
//
// Thread safety: thread-compatible, like std::unique_ptr.
class SocketLock {
 public:
  // Locks `<socket_path>.lock` without waiting. ALREADY_EXISTS names the path and the process that holds it.
  // The file itself stays: removing it would let two servers lock two files of one name.
  static absl::StatusOr<SocketLock> Acquire(const std::string& socket_path);

 private:
  explicit SocketLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Sockets that a service manager opened before it started this process (systemd's LISTEN_FDS protocol),
// claimed by their path.
//
// Unix sockets only: gRPC 1.51 cannot be given a listening TCP socket.
//
// Thread safety: thread-compatible; main's thread reads them before it starts other threads.
class InheritedSockets {
 public:
  // Reads LISTEN_PID and LISTEN_FDS, takes the descriptors from 3 on and sets close-on-exec; the variables
  // are removed, so that children do not use them. Empty if they are not set or meant for another process.
  // INVALID_ARGUMENT: LISTEN_FDS is not a number, or a descriptor is not a listening unix socket.
  static absl::StatusOr<InheritedSockets> Take();

  InheritedSockets() = default;

  // Returns the socket that listens at `path`, once; none if there is none. The caller states its type:
  // INVALID_ARGUMENT if it is another.
  absl::StatusOr<std::optional<UnixListener>> Claim(const std::string& path, UnixSocketType type);

  // INVALID_ARGUMENT naming the paths that were not claimed: the units and the options disagree.
  absl::Status CheckAllClaimed() const;

 private:
  struct Entry {
    UniqueFd fd;
    std::string path;
  };
  std::vector<Entry> entries_;
};

}  // namespace sluice
