#include "daemon/daemon_loop.h"

#include <poll.h>
#include <signal.h>
#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <syslog.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice {
namespace {

int PriorityOf(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::critical:
      return LOG_CRIT;
    case spdlog::level::err:
      return LOG_ERR;
    case spdlog::level::warn:
      return LOG_WARNING;
    case spdlog::level::info:
      return LOG_INFO;
    default:
      return LOG_DEBUG;
  }
}

class JournalFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string line =
        JournalLine(message.level, std::string(message.payload.data(), message.payload.size()));
    out.append(line.data(), line.data() + line.size());
    out.push_back('\n');
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JournalFormatter>(); }
};

}  // namespace

// The journal splits a message into lines and reads the level from the number in front of each line, so every
// line carries it.
std::string JournalLine(spdlog::level::level_enum level, const std::string& text) {
  const std::string prefix = absl::StrCat("<", PriorityOf(level), ">");
  std::string line = prefix;
  for (const char c : text) {
    line += c;
    if (c == '\n') {
      line += prefix;
    }
  }
  return line;
}

// systemd's JOURNAL_STREAM holds the device and inode of the stream that it gave. A redirected stderr is
// another file, and a person reads it.
bool IsJournalStream(int fd, const char* journal_stream) {
  struct stat status;
  return journal_stream != nullptr && fstat(fd, &status) == 0 &&
         absl::StrCat(status.st_dev, ":", status.st_ino) == journal_stream;
}

std::shared_ptr<spdlog::logger> NewDaemonLog(const std::string& name, const std::string& level) {
  std::shared_ptr<spdlog::logger> logger;
  if (IsJournalStream(STDERR_FILENO, std::getenv("JOURNAL_STREAM"))) {
    logger = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_formatter(std::make_unique<JournalFormatter>());
  } else {
    logger = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  }
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  return logger;
}

absl::StatusOr<ProcessSignals> ProcessSignals::Block() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    sigaddset(&signals, number);
  }
  // Blocked before any thread starts, so that every thread inherits the mask and signals arrive only by the
  // descriptor. SIGPIPE is ignored: a disconnected peer is an error of write(), not the daemon's end.
  if (sigprocmask(SIG_BLOCK, &signals, nullptr) != 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR) {
    return ErrnoToStatus(errno, "signals");
  }
  UniqueFd fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "signalfd");
  }
  return ProcessSignals(std::move(fd));
}

SignalKind ProcessSignals::Take() {
  signalfd_siginfo info;
  if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) {
    return SignalKind::kNone;
  }
  return info.ssi_signo == SIGHUP ? SignalKind::kReload : SignalKind::kEnd;
}

bool ProcessSignals::AwaitEnd(absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (true) {
    // A reload request is ignored here: the process is ending.
    for (SignalKind kind = Take(); kind != SignalKind::kNone; kind = Take()) {
      if (kind == SignalKind::kEnd) {
        return true;
      }
    }
    const absl::Duration left = deadline - SteadyNow();
    if (left <= absl::ZeroDuration()) {
      return false;
    }
    pollfd polled{fd_.get(), POLLIN, 0};
    // Long waits are split, so that none overflows poll's milliseconds.
    poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(std::min(left, absl::Hours(1)))) + 1);
  }
}

namespace {

// Errors are ignored: a daemon serves its clients even if the service manager misses the message.
void Tell(const std::string& message) { sd_notify(/*unset_environment=*/0, message.c_str()); }

}  // namespace

ServiceNotifier::ServiceNotifier() : watchdog_(absl::InfiniteDuration()) {
  uint64_t microseconds = 0;
  if (sd_watchdog_enabled(/*unset_environment=*/0, &microseconds) > 0) {
    watchdog_ = absl::Microseconds(microseconds);
  }
}

void ServiceNotifier::Ready() const { Tell("READY=1"); }

void ServiceNotifier::Status(const std::string& text) const {
  std::string line = text;
  std::replace(line.begin(), line.end(), '\n', ' ');  // a line break begins another assignment
  Tell(absl::StrCat("STATUS=", line));
}

// systemd 253 and later require the time of the reload in the message; earlier versions ignore it.
void ServiceNotifier::Reloading() const {
  Tell(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", MonotonicClock().NowNanos() / 1000));
}

void ServiceNotifier::Stopping() const { Tell("STOPPING=1"); }

void ServiceNotifier::ExtendStart(absl::Duration more) const {
  Tell(absl::StrCat("EXTEND_TIMEOUT_USEC=", absl::ToInt64Microseconds(more)));
}

void ServiceNotifier::Watchdog() const { Tell("WATCHDOG=1"); }

DaemonLoop::DaemonLoop(Options options, ProcessSignals* signals, spdlog::logger* log)
    : options_(std::move(options)),
      signals_(signals),
      log_(log),
      heartbeat_interval_(std::min(options_.max_heartbeat_interval, notifier_.watchdog() / 3)) {}

void DaemonLoop::Ready() {
  ready_ = true;
  notifier_.Ready();
}

// Rounds up, so that a watchdog beat is never awaited in a loop of waits of 0 ms, and limits to an hour, so
// that an infinite deadline fits poll's milliseconds.
int DaemonLoop::PollMs() const {
  const absl::Duration left = std::min(next_heartbeat_, end_at_) - SteadyNow();
  return left > absl::Hours(1)
             ? 3'600'000
             : static_cast<int>(absl::ToInt64Milliseconds(std::max(left, absl::ZeroDuration()))) + 1;
}

bool DaemonLoop::LifelineEnded() {
  char byte;
  return read(options_.lifeline.get(), &byte, 1) <= 0;
}

DaemonLoop::Turn DaemonLoop::End(const char* why) {
  end_reason_ = why;
  return Turn::kEnd;
}

DaemonLoop::Turn DaemonLoop::Next(int event) {
  // Deadlines come before events: a flood of events must not delay the watchdog's beat, nor the end of a
  // daemon whose parent has gone.
  while (true) {
    if (SteadyNow() >= end_at_) {
      return End("the parent has gone");
    }
    if (SteadyNow() >= next_heartbeat_) {
      next_heartbeat_ = SteadyNow() + heartbeat_interval_;
      return Turn::kHeartbeat;
    }
    pollfd polled[3] = {
        {signals_->fd(), POLLIN, 0}, {options_.lifeline.get(), POLLIN, 0}, {event, POLLIN, 0}};
    if (poll(polled, 3, PollMs()) < 0) {
      continue;  // EINTR
    }
    switch (polled[0].revents != 0 ? signals_->Take() : SignalKind::kNone) {
      case SignalKind::kEnd:
        return End("ended by a signal");
      case SignalKind::kReload:
        Reload();
        break;
      case SignalKind::kNone:
        break;
    }
    if (polled[1].revents != 0 && LifelineEnded()) {
      options_.lifeline.reset();
      const absl::Duration keep = options_.keep();
      end_at_ = SteadyNow() + keep;
      log_->info("the parent has gone; ending in {}", absl::FormatDuration(keep));
    }
    if (polled[2].revents != 0) {
      return Turn::kEvent;
    }
  }
}

void DaemonLoop::Reload() {
  notifier_.Reloading();
  const absl::StatusOr<ReloadPlan> plan = options_.reload();
  if (plan.ok()) {
    log_->log(plan->needs_restart.empty() ? spdlog::level::info : spdlog::level::warn,
              "options read anew: {}", plan->Describe());
  } else {
    log_->error("the options that were read anew are wrong; those in effect stay");
  }
  // systemd waits for READY after RELOADING; before the first READY it would read RELOADING as a finished
  // start.
  if (ready_) {
    notifier_.Ready();
  }
}

}  // namespace sluice
