// Supervisor: the process that keeps the daemons of a runtime directory; its sockets, children and protocol.
//
// Thread safety: stated at each part; socket functions may be called from any thread.
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

// Returns a descriptor that is readable once the process has ended; invalid (with errno) on failure.
UniqueFd OpenPidfd(pid_t pid);

// Sends one packet; false if the peer has gone or does not read.
bool SendPacket(int fd, std::string_view text);

enum class Receive { kPacket, kNothing, kClosed };
// Receives one packet without blocking.
Receive ReceivePacket(int fd, std::string* text);

// DaemonProcess: a daemon as the supervisor's child.
//
// Thread safety: thread-compatible.

struct DaemonCommand {
  std::string name;               // "weightd"
  std::vector<std::string> argv;  // path of the program in argv[0]; the lifeline option is added
  std::string log_path;
  bool new_session = false;  // signals of a terminal do not reach it
};

// Option that names the inherited lifeline.
inline constexpr char kLifelineOption[] = "--parent-lifeline";

// Starts `argv` in a new process: empty standard input, output and errors appended to `log_path` (truncated
// first unless `append`), `inherit_fd` (-1: none) as descriptor 3, all others closed, default signals, a
// session of its own if `new_session`. Returns the process id.
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
  // Readable once the process has ended; -1 if none is running.
  int exit_fd() const { return exit_fd_.get(); }

  // `lifeline`: read end that the daemon inherits. The first start truncates the log.
  absl::Status Start(int lifeline);

  struct Exit {
    bool killed = false;  // by a signal, not by its own exit
    std::string how;      // "signal 9 (Killed)", "exit code 1"
  };
  // REQUIRES: exit_fd() is readable.
  Exit Reap();

  // False if it was killed too often within the window: another restart is pointless.
  bool MayRestart();

  void Signal(int signal_number);
  // Sends SIGTERM, and SIGKILL after `patience`; returns when the process has ended.
  void Stop(absl::Duration patience);

 private:
  DaemonCommand command_;
  pid_t pid_ = -1;
  UniqueFd exit_fd_;
  bool started_before_ = false;
  std::deque<absl::Time> deaths_;
};

// Supervisor: keeps both daemons of a runtime directory running while they have users.
//
// It listens on a SEQPACKET socket; each connection is a user. While there is a user, a daemon that was
// killed is restarted, but not one that ended by itself. When the last connection has ended (or `keep`
// later), both daemons are stopped and the supervisor exits. The daemons hold the read end of a pipe whose
// only write end belongs to the supervisor: if it is killed, they end too.
//
// Thread safety: thread-compatible; a supervisor is a single-threaded process.

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
  std::vector<DaemonCommand> daemons;  // started in this order, stopped in reverse
  // Time for a daemon to end after SIGTERM before it is killed.
  absl::Duration stop_patience = absl::Seconds(5);
  // Time to wait for a predecessor that is ending.
  absl::Duration lock_patience = absl::Seconds(20);
};

// Listens, starts the daemons, writes one byte to `ready_fd` and closes it, then serves until the last user
// has left or `cancel_fd` (-1: none) is readable. Also ends if no user connects within 10 s. Errors: no lock,
// socket or program.
absl::Status Supervise(const SupervisorOptions& options, int ready_fd, int cancel_fd);

// Converts `options` to the arguments of `sluice supervise`, and back.
std::vector<std::string> SupervisorArguments(const SupervisorOptions& options);
absl::StatusOr<SupervisorOptions> ParseSupervisorArguments(const std::vector<std::string>& args);

}  // namespace sluice::cli
