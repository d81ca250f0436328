// The supervisor: the process that keeps the two daemons of a runtime directory while somebody uses them.
//
// It listens on a SEQPACKET socket. A connection is a user of the daemons; while there is one, a daemon that
// is killed is started again (a daemon that ends itself is not: it had a reason). When the last connection
// has ended, or `keep` after it, both daemons are ended and the supervisor exits. The daemons hold the read
// end of a pipe whose write end the supervisor alone holds: if the supervisor is killed, they end too.
//
// Thread safety: thread-compatible; a supervisor is a process with one thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/launch/daemon_process.h"

namespace sluice::cli {

// Messages over the supervisor's socket, one packet each.
//   from a user: "keep MILLISECONDS": how long the daemons stay after the last user
//                "bye": ends the connection; the supervisor closes it once the daemons have ended, or at once
//                if others use them or they are kept
//                "yield": as "bye", but daemons that are kept end too unless others use them
//   to a user:   "failed NAME REASON": the daemon ended and is not started again (also on connecting later)
//                "restarted NAME": it was killed and started again
inline constexpr char kKeepWord[] = "keep ";
inline constexpr char kByeWord[] = "bye";
inline constexpr char kYieldWord[] = "yield";
inline constexpr char kFailedWord[] = "failed ";
inline constexpr char kRestartedWord[] = "restarted ";

struct SupervisorOptions {
  std::string socket_path;
  std::string lock_path;
  bool restart = true;
  std::vector<DaemonCommand> daemons;  // started in this order, ended in reverse
  // Time that a daemon has to end after SIGTERM before it is killed.
  absl::Duration stop_patience = absl::Seconds(5);
  // Time to wait for a predecessor that is still ending.
  absl::Duration lock_patience = absl::Seconds(20);
};

// Listens, starts the daemons, writes one byte to `ready_fd` and closes it, and serves until the last user is
// gone or `cancel_fd` (-1: none) is readable. A supervisor without a first user within 10 s ends, too.
// Errors: no lock, socket or program.
absl::Status Supervise(const SupervisorOptions& options, int ready_fd, int cancel_fd);

// The arguments of `sluice supervise` for `options`, and back.
std::vector<std::string> SupervisorArguments(const SupervisorOptions& options);
absl::StatusOr<SupervisorOptions> ParseSupervisorArguments(const std::vector<std::string>& args);

}  // namespace sluice::cli
