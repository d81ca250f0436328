// Descriptors of processes (pidfds): readable once the process has exited, even if its number is reused.
//
// Thread safety: free functions, safe from any thread.
#pragma once

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "common/ring/unique_fd.h"

namespace sluice {

// A descriptor of this process, to be passed to others.
absl::StatusOr<UniqueFd> ProcessFdOfSelf();

// A descriptor of the process that connected `socket`, an accepted unix socket; invalid if the kernel cannot
// tell. Useless at the connecting end: there it names the process that opened the listening socket, which may
// be a service manager.
UniqueFd ProcessFdOfClient(int socket);

// The number of the descriptor's process as this one sees it; 0: it is in another PID namespace, has exited,
// or there is no such descriptor.
pid_t ProcessOf(int process_fd);

}  // namespace sluice
