#include "cli/launch/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"

extern char** environ;

namespace sluice::cli {
namespace {

// Killed this often within the window: something kills it on purpose or it crashes at once.
constexpr size_t kMaxDeaths = 5;
constexpr absl::Duration kDeathWindow = absl::Seconds(1);

UniqueFd OpenLog(const std::string& path, bool append) {
  // O_APPEND also for the first start: the daemon's two streams share the file.
  return UniqueFd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC), 0600));
}

// The child's signals are as in a fresh shell: the CLI blocks and ignores some.
void ResetSignals(posix_spawnattr_t* attributes, bool new_session) {
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(attributes, &none);
  posix_spawnattr_setsigdefault(attributes, &all);
  short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
  if (new_session) {
    flags |= POSIX_SPAWN_SETSID;
  }
  posix_spawnattr_setflags(attributes, flags);
}

}  // namespace

absl::StatusOr<pid_t> SpawnProcess(const std::vector<std::string>& argv, const std::string& log_path,
                                   bool append, int inherit_fd, bool new_session) {
  const UniqueFd log = OpenLog(log_path, append);
  if (!log.valid()) {
    return ErrnoToStatus(errno, absl::StrCat("cannot open the log ", log_path));
  }
  // Above the numbers that the actions below overwrite, in the order in which they do.
  const UniqueFd inherited(inherit_fd < 0 ? -1 : fcntl(inherit_fd, F_DUPFD_CLOEXEC, kInheritedFd + 1));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  const absl::Cleanup cleanup = [&] {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  };
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, log.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, log.get(), STDERR_FILENO);
  if (inherited.valid()) {
    posix_spawn_file_actions_adddup2(&actions, inherited.get(), kInheritedFd);
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, inherited.valid() ? kInheritedFd + 1 : kInheritedFd);
  ResetSignals(&attributes, new_session);
  std::vector<char*> pointers;
  for (const std::string& argument : argv) {
    pointers.push_back(const_cast<char*>(argument.c_str()));
  }
  pointers.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0].c_str(), &actions, &attributes, pointers.data(), environ);
  if (error != 0) {
    return ErrnoToStatus(error, absl::StrCat("cannot start ", argv[0]));
  }
  return pid;
}

DaemonProcess::~DaemonProcess() {
  if (running()) {
    Signal(SIGKILL);
    Stop(absl::ZeroDuration());
  }
}

absl::Status DaemonProcess::Start(int lifeline) {
  std::vector<std::string> argv = command_.argv;
  argv.push_back(kLifelineOption);
  argv.push_back(absl::StrCat(kInheritedFd));
  ASSIGN_OR_RETURN(pid_,
                   SpawnProcess(argv, command_.log_path, started_before_, lifeline, /*new_session=*/false));
  started_before_ = true;
  exit_fd_ = OpenPidfd(pid_);
  if (!exit_fd_.valid()) {
    const absl::Status status = ErrnoToStatus(errno, absl::StrCat("cannot watch process ", pid_));
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
    return status;
  }
  return absl::OkStatus();
}

DaemonProcess::Exit DaemonProcess::Reap() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  exit_fd_.reset();
  Exit result;
  result.killed = WIFSIGNALED(status);
  result.how = result.killed
                   ? absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")")
                   : absl::StrCat("exit code ", WEXITSTATUS(status));
  return result;
}

bool DaemonProcess::MayRestart() {
  const absl::Time now = absl::Now();
  deaths_.push_back(now);
  while (now - deaths_.front() > kDeathWindow) {
    deaths_.pop_front();
  }
  return deaths_.size() < kMaxDeaths;
}

void DaemonProcess::Signal(int signal_number) {
  if (running()) {
    kill(pid_, signal_number);
  }
}

void DaemonProcess::Stop(absl::Duration patience) {
  if (!running()) {
    return;
  }
  Signal(SIGTERM);
  pollfd ended = {exit_fd_.get(), POLLIN, 0};
  if (poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 0) {
    Signal(SIGKILL);
  }
  Reap();
}

}  // namespace sluice::cli
