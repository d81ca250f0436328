#include "cli/launch/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cli/ui/file_lock.h"
#include "common/net/unix_listener.h"
#include "common/status.h"

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

  // Serves until nobody needs the daemons any more.
  void Serve() {
    empty_since_ = absl::Now();
    grace_ = kFirstUserPatience;
    while (!cancelled_ && !(users_.empty() && absl::Now() >= empty_since_ + grace_)) {
      PollOnce();
    }
  }

  // The listener goes first, so that a newcomer who still got a connection sees it close and tries again.
  // Users who said goodbye hear the end of their connection only when everything is gone.
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
    const int64_t left = absl::ToInt64Milliseconds(empty_since_ + grace_ - absl::Now());
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
    // Newcomers first: they keep the daemons that the last user is just leaving, and who was there when a
    // daemon died is told.
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
      empty_since_ = absl::Now();
      // Daemons of which one has failed serve nobody: they are not kept.
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

  // Reads all that is there. False: the connection is over.
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
        // Never closed here: the kernel does it when this process is gone, the end that the user waits for.
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
  std::list<User> users_;  // open connections
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
  const UniqueFd write_end(ends[1]);  // closed by the kernel when this process ends, however it does
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
