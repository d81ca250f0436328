// ChildProcess: a program of this build started by a test, killed and reaped with the object.
//
// Thread safety: thread-compatible.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/unique_fd.h"

namespace sluice {

// Path of a program in build/<preset>/bin, from $SLUICE_BIN that ctest sets (build/release/bin without it).
std::string ProgramPath(const std::string& name);

class ChildProcess {
 public:
  // Starts argv[0]; its output and errors go to `log_path`, appended. `inherit_fd` (-1: none) stays open in
  // it under the same number. Fails the test if it cannot be started.
  ChildProcess(const std::vector<std::string>& argv, const std::string& log_path, int inherit_fd = -1);
  // SIGKILL, if it still runs.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  void Signal(int number) const;
  // True if it has exited within `patience`; then status() is valid.
  bool AwaitExit(absl::Duration patience);
  // wait(2)'s status. REQUIRES: AwaitExit was true.
  int status() const { return status_; }
  // Its exit code, or -1 if a signal ended it. REQUIRES: as status().
  int exit_code() const;

  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  bool exited_ = false;
  int status_ = 0;
};

}  // namespace sluice
