#include "cli/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cli/output_files.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unix_listener.h"

namespace sluice::cli {

// A raw system call, since glibc 2.36 declares pidfd_open without C linkage.
UniqueFd OpenPidfd(pid_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

bool SendPacket(int fd, std::string_view text) {
  return send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(text.size());
}

Receive ReceivePacket(int fd, std::string* text) {
  char buffer[4096];
  const ssize_t n = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (n < 0) {
    return errno == EAGAIN || errno == EINTR ? Receive::kNothing : Receive::kClosed;
  }
  text->assign(buffer, static_cast<size_t>(n));
  return n == 0 ? Receive::kClosed : Receive::kPacket;
}

}  // namespace sluice::cli

extern char** environ;

namespace sluice::cli {
namespace {

// Restarts stop after this many deaths within the window: the daemon crashes at once, or is killed on
// purpose.
constexpr size_t kMaxDeaths = 5;
constexpr absl::Duration kDeathWindow = absl::Seconds(1);

UniqueFd OpenLog(const std::string& path, bool append) {
  // O_APPEND from the first start on, since the daemon's two streams share the file.
  return UniqueFd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC), 0600));
}

// Resets the child's signals to those of a fresh shell: the CLI blocks and ignores some.
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
  // Moved above the descriptors that the actions below overwrite.
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
                   SpawnProcess(argv, command_.log_path, started_before_, lifeline, command_.new_session));
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
  const absl::Time now = SteadyNow();
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

namespace sluice::cli {
namespace {

constexpr absl::Duration kFirstUserPatience = absl::Seconds(10);
constexpr char kEndOfArguments[] = "--end--";

void Log(const std::string& text) {
  std::fprintf(stderr, "%s supervisor: %s\n",
               absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::LocalTimeZone()).c_str(), text.c_str());
}

class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, UnixListener listener, UniqueFd lifeline, int cancel_fd)
      : options_(options),
        listener_(std::move(listener)),
        lifeline_(std::move(lifeline)),
        cancel_fd_(cancel_fd) {
    for (const DaemonCommand& command : options.daemons) {
      daemons_.emplace_back(command);
    }
  }

  void StartAll() {
    for (DaemonProcess& daemon : daemons_) {
      StartOne(&daemon);
    }
  }

  // Serves until the last user has left and the grace time has passed.
  void Serve() {
    empty_since_ = SteadyNow();
    grace_ = kFirstUserPatience;
    while (!cancelled_ && !(users_.empty() && SteadyNow() >= empty_since_ + grace_)) {
      PollOnce();
    }
  }

  // Closes the listener first, so that a new user whose connection was accepted sees it close and retries.
  // Connections of users who sent "bye" close only with this process, after everything else.
  void StopAll() {
    listener_.reset();
    for (auto daemon = daemons_.rbegin(); daemon != daemons_.rend(); ++daemon) {
      daemon->Stop(options_.stop_patience);
    }
  }

 private:
  struct User {
    UniqueFd connection;
  };

  void StartOne(DaemonProcess* daemon) {
    const absl::Status status = daemon->Start(lifeline_.get());
    if (!status.ok()) {
      Fail(daemon->name(), std::string(status.message()));
    }
  }

  void Fail(const std::string& name, const std::string& reason) {
    Log(absl::StrCat(name, " failed: ", reason));
    failures_[name] = reason;
    Tell(absl::StrCat(kFailedWord, name, " ", reason));
  }

  void Tell(const std::string& packet) {
    for (const User& user : users_) {
      SendPacket(user.connection.get(), packet);
    }
  }

  int TimeoutMs() const {
    if (!users_.empty()) {
      return -1;
    }
    const int64_t left = absl::ToInt64Milliseconds(empty_since_ + grace_ - SteadyNow());
    return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1 << 30));
  }

  void PollOnce() {
    std::vector<pollfd> fds = {{listener_->fd(), POLLIN, 0}, {cancel_fd_, POLLIN, 0}};
    for (const User& user : users_) {
      fds.push_back({user.connection.get(), POLLIN, 0});
    }
    for (const DaemonProcess& daemon : daemons_) {
      fds.push_back({daemon.exit_fd(), POLLIN, 0});
    }
    if (poll(fds.data(), fds.size(), TimeoutMs()) < 0) {
      return;
    }
    cancelled_ = fds[1].revents != 0;
    // Accepts new users first: they keep daemons that the last user is just leaving, and learn of a daemon
    // that died meanwhile.
    const size_t polled_users = users_.size();
    AcceptUsers();
    size_t next = 2;
    auto user = users_.begin();
    for (size_t i = 0; i < polled_users; ++i) {
      const bool readable = fds[next++].revents != 0;
      user = readable && !OnUserReadable(&*user) ? users_.erase(user) : std::next(user);
    }
    for (DaemonProcess& daemon : daemons_) {
      if (fds[next++].revents != 0) {
        OnDaemonExit(&daemon);
      }
    }
    if (had_user_ && users_.empty() && !idle_) {
      idle_ = true;
      empty_since_ = SteadyNow();
      // After a daemon's failure the others are useless and are not kept.
      grace_ = failures_.empty() ? keep_ : absl::ZeroDuration();
    }
  }

  void OnDaemonExit(DaemonProcess* daemon) {
    const DaemonProcess::Exit exit = daemon->Reap();
    if (!exit.killed || !options_.restart || !daemon->MayRestart()) {
      Fail(daemon->name(), exit.how);
      return;
    }
    Log(absl::StrCat(daemon->name(), " ended by ", exit.how, ", started again"));
    StartOne(daemon);
    Tell(absl::StrCat(kRestartedWord, daemon->name()));
  }

  // Reads all pending packets. False: the connection has ended.
  bool OnUserReadable(User* user) {
    std::string packet;
    while (true) {
      switch (ReceivePacket(user->connection.get(), &packet)) {
        case Receive::kClosed:
          return false;
        case Receive::kNothing:
          return true;
        case Receive::kPacket:
          break;
      }
      int64_t ms = 0;
      absl::string_view view(packet);
      if (absl::ConsumePrefix(&view, kKeepWord) && absl::SimpleAtoi(view, &ms) && ms >= 0) {
        keep_ = std::max(keep_, absl::Milliseconds(ms));
      } else if (view == kByeWord || view == kYieldWord) {
        if (view == kYieldWord && users_.size() == 1) {
          keep_ = absl::ZeroDuration();
        }
        const bool last = users_.size() == 1 && keep_ == absl::ZeroDuration();
        if (!last) {
          return false;
        }
        // Left open until this process ends: the close tells the user that the daemons are gone.
        user->connection.release();
        return false;
      }
    }
  }

  void AcceptUsers() {
    while (true) {
      UniqueFd connection(accept4(listener_->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!connection.valid()) {
        return;
      }
      for (const auto& [name, reason] : failures_) {
        SendPacket(connection.get(), absl::StrCat(kFailedWord, name, " ", reason));
      }
      users_.push_back({std::move(connection)});
      had_user_ = true;
      idle_ = false;
    }
  }

  const SupervisorOptions& options_;
  std::optional<UnixListener> listener_;
  const UniqueFd lifeline_;  // read end, inherited by the daemons
  const int cancel_fd_;
  std::list<DaemonProcess> daemons_;
  std::list<User> users_;  // connected users
  std::map<std::string, std::string> failures_;
  absl::Duration keep_ = absl::ZeroDuration();
  absl::Duration grace_ = absl::ZeroDuration();
  absl::Time empty_since_;
  bool had_user_ = false;
  bool idle_ = false;
  bool cancelled_ = false;
};

}  // namespace

absl::Status Supervise(const SupervisorOptions& options, int ready_fd, int cancel_fd) {
  UniqueFd ready(ready_fd);
  ASSIGN_OR_RETURN(const UniqueFd lock, LockFile(options.lock_path, options.lock_patience, nullptr));
  ASSIGN_OR_RETURN(UnixListener listener,
                   UnixListener::Bind(options.socket_path, UnixSocketType::kSeqPacket, 0600));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoToStatus(errno, "cannot make the lifeline");
  }
  const UniqueFd write_end(ends[1]);  // the kernel closes it when this process ends, for any reason
  Supervisor supervisor(options, std::move(listener), UniqueFd(ends[0]), cancel_fd);
  supervisor.StartAll();
  if (ready.valid() && write(ready.get(), "r", 1) != 1) {
    Log("nobody waits for the start");
  }
  ready.reset();
  supervisor.Serve();
  supervisor.StopAll();
  Log("ended");
  return absl::OkStatus();
}

std::vector<std::string> SupervisorArguments(const SupervisorOptions& options) {
  std::vector<std::string> args = {options.socket_path, options.lock_path,
                                   options.restart ? "restart" : "once"};
  for (const DaemonCommand& daemon : options.daemons) {
    args.push_back(daemon.name);
    args.push_back(daemon.log_path);
    args.insert(args.end(), daemon.argv.begin(), daemon.argv.end());
    args.push_back(kEndOfArguments);
  }
  return args;
}

absl::StatusOr<SupervisorOptions> ParseSupervisorArguments(const std::vector<std::string>& args) {
  const absl::Status malformed =
      absl::InvalidArgumentError("supervise: `sluice` starts it itself; it is not for people");
  if (args.size() < 3 || (args[2] != "restart" && args[2] != "once")) {
    return malformed;
  }
  SupervisorOptions options;
  options.socket_path = args[0];
  options.lock_path = args[1];
  options.restart = args[2] == "restart";
  for (auto at = args.begin() + 3; at != args.end();) {
    const auto end = std::find(at, args.end(), kEndOfArguments);
    if (end == args.end() || end - at < 3) {
      return malformed;
    }
    options.daemons.push_back({at[0], {at + 2, end}, at[1]});
    at = end + 1;
  }
  return options;
}

}  // namespace sluice::cli
