// DaemonProcess: one daemon as the supervisor's child.
//
// Thread safety: thread-compatible.
#pragma once

#include <sys/types.h>

#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/launch/unix_socket.h"

namespace sluice::cli {

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

}  // namespace sluice::cli
