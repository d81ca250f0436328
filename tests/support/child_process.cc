#include "tests/support/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

extern char** environ;

namespace sluice {

std::string ProgramPath(const std::string& name) {
  const char* folder = getenv("SLUICE_BIN");
  return std::string(folder != nullptr ? folder : "build/release/bin") + "/" + name;
}

ChildProcess::ChildProcess(const std::vector<std::string>& argv, const std::string& log_path,
                           int inherit_fd) {
  const UniqueFd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, log.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, log.get(), STDERR_FILENO);
  if (inherit_fd >= 0) {
    posix_spawn_file_actions_adddup2(&actions, inherit_fd, inherit_fd);  // the same number: clears FD_CLOEXEC
  }
  std::vector<char*> pointers;
  for (const std::string& argument : argv) {
    pointers.push_back(const_cast<char*>(argument.c_str()));
  }
  pointers.push_back(nullptr);
  const int error = posix_spawn(&pid_, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(error, 0) << argv[0] << ": " << std::strerror(error);
  if (error != 0) {
    pid_ = -1;
    exited_ = true;
    return;
  }
  pidfd_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
}

ChildProcess::~ChildProcess() {
  if (!exited_) {
    Signal(SIGKILL);
    waitpid(pid_, &status_, 0);
  }
}

void ChildProcess::Signal(int number) const {
  if (!exited_) {
    kill(pid_, number);
  }
}

bool ChildProcess::AwaitExit(absl::Duration patience) {
  if (!exited_) {
    pollfd polled{pidfd_.get(), POLLIN, 0};
    poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(patience)));
    exited_ = waitpid(pid_, &status_, WNOHANG) == pid_;
  }
  return exited_;
}

int ChildProcess::exit_code() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1; }

}  // namespace sluice
