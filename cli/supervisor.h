// The process that keeps the daemons of a runtime directory: its sockets, its children, and its protocol.
//
// Thread safety: stated at each part; the functions on sockets may be called from any thread.
#pragma once

#include <sys/types.h>

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/unique_fd.h"

namespace sluice::cli {

// A descriptor that is readable once the process has ended; invalid (errno says why) if it cannot be watched.
UniqueFd OpenPidfd(pid_t pid);

// Sends one packet; false once the peer is gone or does not read.
bool SendPacket(int fd, std::string_view text);

enum class Receive { kPacket, kNothing, kClosed };
// Takes one packet without blocking.
Receive ReceivePacket(int fd, std::string* text);

// DaemonProcess: one daemon as the supervisor's child.
//
// Thread safety: thread-compatible.

struct DaemonCommand {
  std::string name;               // "weightd"
  std::vector<std::string> argv;  // argv[0] is the program's path; the lifeline option is added
  std::string log_path;
};

// The option that names the inherited lifeline.
inline constexpr char kLifelineOption[] = "--parent-lifeline";

// Starts `argv` in a new process: standard input empty, output and errors appended to `log_path` (truncated
// first unless `append`), `inherit_fd` (or -1) kept as descriptor 3, every other descriptor closed, default
// signals, a session of its own if `new_session`. Returns the process id.
absl::StatusOr<pid_t> SpawnProcess(const std::vector<std::string>& argv, const std::string& log_path,
                                   bool append, int inherit_fd, bool new_session);
inline constexpr int kInheritedFd = 3;

class DaemonProcess {
 public:
  explicit DaemonProcess(DaemonCommand command) : command_(std::move(command)) {}
  ~DaemonProcess();
  DaemonProcess(DaemonProcess&&) = default;

  const std::string& name() const { return command_.name; }
  bool running() const { return pid_ > 0; }
  // Readable once the process has ended; -1 if none runs.
  int exit_fd() const { return exit_fd_.get(); }

  // `lifeline` is the read end that the daemon inherits. The first start truncates the log.
  absl::Status Start(int lifeline);

  struct Exit {
    bool killed = false;  // by a signal, not by its own exit
    std::string how;      // "signal 9 (Killed)", "exit code 1"
  };
  // REQUIRES: exit_fd() is readable.
  Exit Reap();

  // False if it was killed so often within a second that starting it again is pointless.
  bool MayRestart();

  void Signal(int signal_number);
  // SIGTERM, and SIGKILL after `patience`; returns when the process is gone.
  void Stop(absl::Duration patience);

 private:
  DaemonCommand command_;
  pid_t pid_ = -1;
  UniqueFd exit_fd_;
  bool started_before_ = false;
  std::deque<absl::Time> deaths_;
};

// The supervisor: the process that keeps the two daemons of a runtime directory while somebody uses them.
//
// It listens on a SEQPACKET socket. A connection is a user of the daemons; while there is one, a daemon that
// is killed is started again (a daemon that ends itself is not: it had a reason). When the last connection
// has ended, or `keep` after it, both daemons are ended and the supervisor exits. The daemons hold the read
// end of a pipe whose write end the supervisor alone holds: if the supervisor is killed, they end too.
//
// Thread safety: thread-compatible; a supervisor is a process with one thread.

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
