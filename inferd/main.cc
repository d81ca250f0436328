// The inferd program: reads its options, starts an InferdDaemon, tells the service manager how it goes, and
// ends it when told to.
#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/ring/unique_fd.h"
#include "common/status.h"
#include "inferd/daemon.h"
#include "inferd/inferd_options.h"

namespace sluice {
namespace {

constexpr int kFailed = 1;
// While the start takes long, the service manager is told this often that it goes on.
constexpr absl::Duration kBeat = absl::Seconds(5);
// While answers end, a second signal is looked for this often.
constexpr absl::Duration kSignalCheck = absl::Milliseconds(50);

std::string Explain(const absl::Status& status) {
  return absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
}

std::shared_ptr<spdlog::logger> NewLogger(const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("inferd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(level));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  return logger;
}

// SIGTERM and SIGINT as a readable descriptor. Before any thread starts: they all inherit the mask.
absl::StatusOr<UniqueFd> TakeSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (sigprocmask(SIG_BLOCK, &signals, nullptr) != 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR) {
    return ErrnoToStatus(errno, "signals");
  }
  UniqueFd fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "signalfd");
  }
  return fd;
}

bool TakeSignal(int signals) {
  signalfd_siginfo info;
  return read(signals, &info, sizeof(info)) == sizeof(info);
}

// The loop of main's thread: what may end the process, and what the service manager wants to hear.
class Lifetime {
 public:
  Lifetime(const InferdOptions& options, InferdDaemon* daemon, int signals, spdlog::logger* log)
      : daemon_(daemon),
        log_(log),
        signals_(signals),
        keep_(options.keep),
        lifeline_(options.parent_lifeline) {
    uint64_t microseconds = 0;
    if (sd_watchdog_enabled(0, &microseconds) > 0) {
      beat_ = std::min(beat_, absl::Microseconds(microseconds) / 3);
      watchdog_ = true;
    }
  }

  // Waits until the start has ended; false if it failed or was interrupted.
  bool AwaitStart(absl::Status* failure) {
    while (true) {
      if (const char* reason = Wait(daemon_->start_event()); reason != nullptr) {
        *failure = absl::CancelledError(reason);
        return false;
      }
      if (start_ended_) {
        *failure = daemon_->StartStatus();
        return failure->ok();
      }
      sd_notify(0, "EXTEND_TIMEOUT_USEC=30000000");
    }
  }

  // Waits until it is time to end; says why.
  const char* AwaitEnd() {
    while (true) {
      if (const char* reason = Wait(-1); reason != nullptr) {
        return reason;
      }
      if (watchdog_ && !daemon_->IsStuck()) {
        sd_notify(0, "WATCHDOG=1");
      }
    }
  }

 private:
  // One look at everything, for at most a beat; the reason to end, if there is one.
  const char* Wait(int start_event) {
    pollfd polled[3] = {{signals_, POLLIN, 0}, {lifeline_.get(), POLLIN, 0}, {start_event, POLLIN, 0}};
    const absl::Duration wait = std::max(absl::ZeroDuration(), std::min(beat_, end_at_ - absl::Now()));
    if (poll(polled, 3, static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1) < 0) {
      return nullptr;  // EINTR
    }
    if (polled[0].revents != 0 && TakeSignal(signals_)) {
      return "told by a signal";
    }
    if (polled[1].revents != 0) {
      char byte;
      if (read(lifeline_.get(), &byte, 1) <= 0) {
        lifeline_.reset();
        end_at_ = absl::Now() + keep_;
        log_->info("the parent has gone; ending in {}", absl::FormatDuration(keep_));
      }
    }
    start_ended_ = start_ended_ || polled[2].revents != 0;
    return absl::Now() >= end_at_ ? "the parent has gone" : nullptr;
  }

  InferdDaemon* const daemon_;
  spdlog::logger* const log_;
  const int signals_;
  const absl::Duration keep_;
  UniqueFd lifeline_;
  absl::Duration beat_ = kBeat;
  bool watchdog_ = false;
  bool start_ended_ = false;
  absl::Time end_at_ = absl::InfiniteFuture();
};

void NotifyPhase(spdlog::logger* log, const ServerState::View& view) {
  const std::string line = view.phase == ServerState::Phase::kServing ? "serving" : view.detail;
  log->info("{}", line);
  sd_notify(0, absl::StrCat("STATUS=", line).c_str());
}

int Run(const InferdCommand& command, spdlog::logger* log) {
  auto signals = TakeSignals();
  if (!signals.ok()) {
    log->error("cannot start: {}", Explain(signals.status()));
    return kFailed;
  }
  auto daemon = InferdDaemon::Prepare(command.options, command.set, log,
                                      [log](const ServerState::View& view) { NotifyPhase(log, view); });
  if (!daemon.ok()) {
    log->error("cannot start: {}", Explain(daemon.status()));
    return kFailed;
  }
  log->info("{}", (*daemon)->DescribeStart());
  (*daemon)->Begin();
  Lifetime lifetime(command.options, daemon->get(), signals->get(), log);
  absl::Status failure;
  if (!lifetime.AwaitStart(&failure)) {
    const bool interrupted = absl::IsCancelled(failure);
    log->log(interrupted ? spdlog::level::info : spdlog::level::err, "ended while starting: {}",
             Explain(failure));
    (*daemon)->Shutdown(absl::ZeroDuration());
    log->flush();
    if (interrupted) {
      // The start goes on in its thread and cannot be called off; nothing of it outlives the process.
      std::_Exit(0);
    }
    return kFailed;
  }
  sd_notify(0, "READY=1");
  log->info("ending: {}", lifetime.AwaitEnd());
  sd_notify(0, "STOPPING=1");
  const absl::Time patience = absl::Now() + command.options.drain_timeout;
  while (!(*daemon)->Drain(kSignalCheck) && absl::Now() < patience) {
    if (TakeSignal(signals->get())) {
      log->info("told again: answers are cut");
      break;
    }
  }
  daemon->reset();
  log->info("ended");
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const sluice::InferdCommand command = sluice::ParseInferdCommand(argc, argv);
  if (command.exit_code.has_value()) {
    return *command.exit_code;
  }
  const std::shared_ptr<spdlog::logger> log = sluice::NewLogger(command.options.log_level);
  return sluice::Run(command, log.get());
}
