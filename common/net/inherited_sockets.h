// Sockets that a service manager opened before it started this process (systemd's LISTEN_FDS protocol), taken
// up by the path that they listen on.
//
// Unix sockets only: gRPC 1.51 cannot be given a listening TCP socket.
//
// Thread safety: thread-compatible; main's thread takes them before it starts others.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/unix_listener.h"

namespace sluice {

class InheritedSockets {
 public:
  // Reads LISTEN_PID, LISTEN_FDS and takes the descriptors from 3 on, setting close-on-exec; the variables
  // are removed, so that children do not take them for theirs. None when they are not set or meant for
  // another process. INVALID_ARGUMENT: LISTEN_FDS is no number, or a descriptor is no listening unix socket.
  static absl::StatusOr<InheritedSockets> Take();

  InheritedSockets() = default;

  // The socket that listens at `path`, once; none if there is none. Its type is the caller's to know:
  // INVALID_ARGUMENT if it is another.
  absl::StatusOr<std::optional<UnixListener>> Claim(const std::string& path, UnixSocketType type);

  // INVALID_ARGUMENT naming the paths that nobody claimed: the units and the options disagree.
  absl::Status CheckAllClaimed() const;

 private:
  struct Entry {
    UniqueFd fd;
    std::string path;
  };
  std::vector<Entry> entries_;
};

}  // namespace sluice
