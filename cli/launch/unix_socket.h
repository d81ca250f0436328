// Local sockets for the launcher and the supervisor.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "common/ring/unique_fd.h"

namespace sluice::cli {

// A descriptor that is readable once the process has ended; invalid (errno says why) if it cannot be watched.
UniqueFd OpenPidfd(pid_t pid);

// Sends one packet; false once the peer is gone or does not read.
bool SendPacket(int fd, std::string_view text);

enum class Receive { kPacket, kNothing, kClosed };
// Takes one packet without blocking.
Receive ReceivePacket(int fd, std::string* text);

}  // namespace sluice::cli
