// Locks and local sockets for the launcher and the supervisor.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ring/unique_fd.h"

namespace sluice::cli {

// A descriptor that is readable once the process has ended; invalid (errno says why) if it cannot be watched.
UniqueFd OpenPidfd(pid_t pid);

// Opens (creates, mode 0600) and locks `path`, waiting up to `patience`. DeadlineExceeded naming the path.
// Cancelled once *cancel (may be null) is true. `on_wait` (may be empty) hears once, after a second, who
// holds the lock: "process 123", or "another process" if the file does not say.
absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration patience,
                                  const std::atomic<bool>* cancel,
                                  const std::function<void(const std::string& holder)>& on_wait = {});

// Sends one packet; false once the peer is gone or does not read.
bool SendPacket(int fd, std::string_view text);

enum class Receive { kPacket, kNothing, kClosed };
// Takes one packet without blocking.
Receive ReceivePacket(int fd, std::string* text);

}  // namespace sluice::cli
