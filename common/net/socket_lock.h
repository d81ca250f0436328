// SocketLock: the right to serve a unix socket's path, held by a lock file beside it.
//
// The lock makes it safe to remove the socket file of a killed process: its holder knows that no other server
// is starting on the same path.
//
// Thread safety: thread-compatible, like std::unique_ptr.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/ring/unique_fd.h"

namespace sluice {

class SocketLock {
 public:
  // Locks `<socket_path>.lock` without waiting. ALREADY_EXISTS names the path and the process that holds it.
  // The file itself stays: removing it would let two servers lock two files of one name.
  static absl::StatusOr<SocketLock> Acquire(const std::string& socket_path);

 private:
  explicit SocketLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace sluice
