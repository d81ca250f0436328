// The inferd program: reads its options, starts an InferdDaemon, tells the service manager how it goes, and
// ends it when told to.
#include <poll.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/net/inherited_sockets.h"
#include "common/process_signals.h"
#include "common/ring/unique_fd.h"
#include "common/service_notifier.h"
#include "common/status.h"
#include "inferd/daemon.h"
#include "inferd/inferd_options.h"

namespace sluice {
namespace {

constexpr int kFailed = 1;
// While the start takes long, the service manager is told this often that it goes on.
constexpr absl::Duration kBeat = absl::Seconds(5);
constexpr absl::Duration kStartExtension = absl::Seconds(30);
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

// The loop of main's thread: what may end the process, and what the service manager wants to hear.
class Lifetime {
 public:
  Lifetime(const InferdOptions& options, int argc, const char* const* argv, InferdDaemon* daemon,
           ProcessSignals* signals, spdlog::logger* log)
      : options_(options),
        argc_(argc),
        argv_(argv),
        daemon_(daemon),
        log_(log),
        signals_(signals),
        lifeline_(options.parent_lifeline),
        beat_(std::min(kBeat, notifier_.watchdog() / 3)) {}

  const ServiceNotifier& notifier() const { return notifier_; }
  absl::Duration drain_timeout() const { return options_.drain_timeout; }

  // Waits until the start has ended; false if it failed or was interrupted.
  bool AwaitStart(absl::Status* failure) {
    while (true) {
      if (const char* reason = Wait(daemon_->start_event()); reason != nullptr) {
        *failure = absl::CancelledError(reason);
        return false;
      }
      if (start_ended_) {
        *failure = daemon_->StartStatus();
        has_started_ = failure->ok();
        return has_started_;
      }
      notifier_.ExtendStart(kStartExtension);
    }
  }

  // Waits until it is time to end; says why.
  const char* AwaitEnd() {
    while (true) {
      if (const char* reason = Wait(-1); reason != nullptr) {
        return reason;
      }
      // Only progress is reported: a step that hangs must end in a restart.
      if (notifier_.watchdog() != absl::InfiniteDuration() && !daemon_->IsStuck()) {
        notifier_.Watchdog();
      }
    }
  }

 private:
  // One look at everything, for at most a beat; the reason to end, if there is one.
  const char* Wait(int start_event) {
    pollfd polled[3] = {{signals_->fd(), POLLIN, 0}, {lifeline_.get(), POLLIN, 0}, {start_event, POLLIN, 0}};
    const absl::Duration wait = std::max(absl::ZeroDuration(), std::min(beat_, end_at_ - absl::Now()));
    if (poll(polled, 3, static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1) < 0) {
      return nullptr;  // EINTR
    }
    switch (polled[0].revents != 0 ? signals_->Take() : SignalKind::kNone) {
      case SignalKind::kEnd:
        return "told by a signal";
      case SignalKind::kReload:
        Reload();
        break;
      case SignalKind::kNone:
        break;
    }
    if (polled[1].revents != 0) {
      char byte;
      if (read(lifeline_.get(), &byte, 1) <= 0) {
        lifeline_.reset();
        end_at_ = absl::Now() + options_.keep;
        log_->info("the parent has gone; ending in {}", absl::FormatDuration(options_.keep));
      }
    }
    start_ended_ = start_ended_ || polled[2].revents != 0;
    return absl::Now() >= end_at_ ? "the parent has gone" : nullptr;
  }

  void Reload() {
    notifier_.Reloading();
    const InferdCommand read = ParseInferdCommand(argc_, argv_);
    if (read.exit_code.has_value()) {
      log_->error("the options that were read anew are wrong; those in effect stay");
    } else {
      const ReloadPlan plan =
          PlanReload(OptionTextsOf(options_), OptionTextsOf(read.options), ReloadableInferdOptions());
      options_.log_level = read.options.log_level;
      options_.drain_timeout = read.options.drain_timeout;
      log_->set_level(spdlog::level::from_str(options_.log_level));
      log_->log(plan.needs_restart.empty() ? spdlog::level::info : spdlog::level::warn,
                "options read anew: {}", plan.Describe());
    }
    if (has_started_) {
      notifier_.Ready();
    }
  }

  InferdOptions options_;  // in effect
  const int argc_;
  const char* const* const argv_;
  InferdDaemon* const daemon_;
  spdlog::logger* const log_;
  ProcessSignals* const signals_;
  const ServiceNotifier notifier_;
  UniqueFd lifeline_;
  const absl::Duration beat_;
  bool has_started_ = false;
  bool start_ended_ = false;
  absl::Time end_at_ = absl::InfiniteFuture();
};

void NotifyPhase(const ServiceNotifier& notifier, spdlog::logger* log, const ServerState::View& view) {
  const std::string line = view.phase == ServerState::Phase::kServing ? "serving" : view.detail;
  log->info("{}", line);
  notifier.Status(line);
}

// Lets answers end; a second signal cuts them.
void DrainAnswers(InferdDaemon* daemon, absl::Duration patience, ProcessSignals* signals,
                  spdlog::logger* log) {
  const absl::Time end = absl::Now() + patience;
  while (!daemon->Drain(kSignalCheck) && absl::Now() < end) {
    if (signals->Take() == SignalKind::kEnd) {
      log->info("told again: answers are cut");
      return;
    }
  }
}

absl::StatusOr<std::unique_ptr<InferdDaemon>> Prepare(const InferdCommand& command, spdlog::logger* log) {
  ASSIGN_OR_RETURN(InheritedSockets inherited, InheritedSockets::Take());
  ASSIGN_OR_RETURN(std::unique_ptr<InferdDaemon> daemon,
                   InferdDaemon::Prepare(
                       command.options, command.set, log,
                       [log, notifier = ServiceNotifier()](const ServerState::View& view) {
                         NotifyPhase(notifier, log, view);
                       },
                       &inherited));
  RETURN_IF_ERROR(inherited.CheckAllClaimed());
  return daemon;
}

int Run(const InferdCommand& command, int argc, const char* const* argv, spdlog::logger* log) {
  auto signals = ProcessSignals::Block();
  if (!signals.ok()) {
    log->error("cannot start: {}", Explain(signals.status()));
    return kFailed;
  }
  auto daemon = Prepare(command, log);
  if (!daemon.ok()) {
    log->error("cannot start: {}", Explain(daemon.status()));
    return kFailed;
  }
  log->info("{}", (*daemon)->DescribeStart());
  (*daemon)->Begin();
  Lifetime lifetime(command.options, argc, argv, daemon->get(), &*signals, log);
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
  lifetime.notifier().Ready();
  log->info("ending: {}", lifetime.AwaitEnd());
  lifetime.notifier().Stopping();
  DrainAnswers(daemon->get(), lifetime.drain_timeout(), &*signals, log);
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
  return sluice::Run(command, argc, argv, log.get());
}
