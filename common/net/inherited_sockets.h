// Sockets that a service manager opened before it started this process (systemd's LISTEN_FDS protocol),
// claimed by their path.
//
// Unix sockets only: gRPC 1.51 cannot be given a listening TCP socket.
//
// Thread safety: thread-compatible; main's thread reads them before it starts other threads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/unix_listener.h"

namespace sluice {

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
