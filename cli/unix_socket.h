// Small owners of descriptors, locks and local sockets for the launcher and the supervisor.
//
// Thread safety: Fd is thread-compatible; the functions may be called from any thread.
#ifndef SLUICE_CLI_UNIX_SOCKET_H_
#define SLUICE_CLI_UNIX_SOCKET_H_

#include <sys/types.h>

#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice::cli {

// Owns a file descriptor; -1: none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

// A descriptor that is readable once the process has ended; invalid (errno says why) if it cannot be watched.
Fd OpenPidfd(pid_t pid);

// Opens (creates, mode 0600) and locks `path`, waiting up to `patience`. DeadlineExceeded naming the path.
// Cancelled once *cancel (may be null) is true.
absl::StatusOr<Fd> LockFile(const std::string& path, absl::Duration patience,
                            const std::atomic<bool>* cancel);

// A listening SEQPACKET socket at `path`; a socket file that is there is replaced. REQUIRES: the caller holds
// the lock that stands for the path.
absl::StatusOr<Fd> ListenSeqpacket(const std::string& path);

// A connection, non-blocking. Unavailable if nobody listens there.
absl::StatusOr<Fd> ConnectSeqpacket(const std::string& path);

// Whether somebody accepts stream connections at `path`.
bool SomebodyListens(const std::string& path);

// Sends one packet; false once the peer is gone or does not read.
bool SendPacket(int fd, std::string_view text);

enum class Receive { kPacket, kNothing, kClosed };
// Takes one packet without blocking.
Receive ReceivePacket(int fd, std::string* text);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_UNIX_SOCKET_H_
